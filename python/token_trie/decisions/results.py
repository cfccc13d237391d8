"""Results that are handed out one by one, while another thread may end the work on them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from token_trie.errors import ArgumentError, BusyError, CancelledError, TokenTrieError
from token_trie.llama.batch import ENDED, Batch, can_share
from token_trie.llama.chooser import n_ctx_of
from token_trie.llama.contexts import opened
from token_trie.llama.sequential import Sequential
from token_trie.native.arguments import check_counts, check_flags, lookup
from token_trie.native.core import Llama
from token_trie.progress import Progress

OnError: TypeAlias = Literal["raise", "return"]


@dataclass
class _Work:
    """What is under way, for who ends it."""

    batch: Batch | Sequential | None = None
    is_opening: bool = False
    is_closed: bool = False

    def require_open(self) -> None:
        if self.is_closed:
            raise CancelledError(ENDED)


class Results(Iterator[Any]):
    """The results of prompts under way in a batch, which is made when the first is asked for.

    Parameters
    ----------
    llm : Llama
    n_parallel, n_ctx
        As of `Batch`.
    results : callable
        Given the batch, or what stands in its place, a generator.
    """

    def __init__(
        self,
        llm: Llama,
        n_parallel: int,
        n_ctx: int | None,
        results: Callable[[Batch | Sequential], Generator[Any, None, None]],
    ) -> None:
        work = self._work = _Work()

        def make() -> Batch | Sequential:
            return Batch(llm, n_parallel, n_ctx) if can_share(llm) else Sequential(llm)

        self._results = _generate(work, make, results)

    def __next__(self) -> Any:
        if inspect.getgeneratorstate(self._results) == inspect.GEN_RUNNING:
            raise BusyError("another thread waits for the next decision, or the prompts themselves ask for it")
        return next(self._results)

    def close(self) -> None:
        """End what is under way, and free the context; where another thread waits for a decision, that ends first."""
        if inspect.getgeneratorstate(self._results) == inspect.GEN_RUNNING:
            self.interrupt()
        else:
            self._results.close()

    def interrupt(self) -> bool:
        """Let whoever waits for a decision stop waiting.

        Returns
        -------
        bool
            Whether nothing goes on natively, or will; what may go on is the prompts' own code.
        """
        self._work.is_closed = True
        is_opening = self._work.is_opening
        if (batch := self._work.batch) is not None:
            batch.close()
        return not is_opening


def _generate(
    work: _Work,
    make: Callable[[], Batch | Sequential],
    results: Callable[[Batch | Sequential], Generator[Any, None, None]],
) -> Generator[Any, None, None]:
    """Make the batch, hand out its results, close it; without a reference to the `Results`, which may be dropped."""
    work.is_opening = True
    try:
        work.require_open()
        work.batch = opened(make)
        work.is_opening = False
        work.require_open()
        yield from results(work.batch)
    finally:
        work.is_opening = False
        if work.batch is not None:
            work.batch.close()


@dataclass(frozen=True)
class Many:
    """Many prompts, or states, and how what is found of them is handed out; options are those of `choose_many`."""

    llm: Llama
    given: Iterable[Any]
    each: str
    """What each is called in messages."""
    alone: str
    """The function for one."""
    progress: bool
    n_parallel: int | None
    n_ctx: int | None
    on_error: OnError = "raise"
    as_ready: bool = False

    def __post_init__(self) -> None:
        check_flags(as_ready=self.as_ready, progress=self.progress)
        lookup(self.on_error, {"raise": 0, "return": 1}, "on_error")
        if self.n_parallel is not None:
            check_counts(2, n_parallel=self.n_parallel)
        is_text = isinstance(self.given, (str, bytes))
        if is_text or not isinstance(self.given, Iterable):
            what = f"{self.each}s: {'a text' if is_text else type(self.given).__name__}"
            raise ArgumentError(f"{what} where several belong; for one {self.each} there is {self.alone}")
        n_ctx_of(self.llm)

    def results(self, find: Callable[[Batch | Sequential], Iterator[tuple[int, Any]]]) -> Results:
        """Hand out what is found with a batch: positions, each with a result or its error."""

        def results(batch: Batch | Sequential) -> Generator[Any, None, None]:
            total = len(self.given) if isinstance(self.given, Sized) else None
            with Progress(total, f"{self.each}s", wanted=self.progress) as shown:
                for n, (position, result) in enumerate(find(batch), 1):
                    shown.move(n)
                    if isinstance(result, TokenTrieError):
                        result = _placed(f"{self.each}s[{position}]", result)
                        if self.on_error == "raise":
                            raise result
                    yield (position, result) if self.as_ready else result

        return Results(self.llm, self.n_parallel or 0, self.n_ctx, results)


def _placed(where: str, error: TokenTrieError) -> TokenTrieError:
    placed = type(error)(f"{where}: {error}")
    placed.__cause__ = error
    return placed
