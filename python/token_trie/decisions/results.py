"""Results that are handed out one by one, while another thread may end the work on them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from token_trie.errors import BusyError, CancelledError
from token_trie.llama.batch import ENDED, Batch, can_share
from token_trie.llama.contexts import opened
from token_trie.llama.sequential import Sequential
from token_trie.native.core import Llama


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
