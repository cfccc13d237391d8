"""Many prompts in one context, lazily; `choose_many` and `score_many`."""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from token_trie.arrays import Floats
from token_trie.decisions.calibration import BATCH_ROWS, Mean, refuse_batch
from token_trie.decisions.choose import ChoiceRequest, ScoreRequest, Undecided
from token_trie.decisions.decision import Decision
from token_trie.decisions.options import ChooseOptions, ScoreOptions
from token_trie.decisions.run import Request, Running, begin, run
from token_trie.errors import ArgumentError, BusyError, CancelledError, TokenTrieError
from token_trie.llama.batch import ENDED, WAIT_MS, Batch, Sequential, can_share, n_ctx_of
from token_trie.llama.contexts import opened
from token_trie.native.core import Llama
from token_trie.native.lifetime import MAX_SEEN, LruCache
from token_trie.native.options import check_flags, check_limits, check_name, takes
from token_trie.progress import Progress
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import ChooseKeywords, ScoreKeywords

R = TypeVar("R")
T = TypeVar("T")


# Largest number of prompts in progress or waiting to be yielded, from which a pass may choose.
WINDOW = 256


Pending: TypeAlias = Callable[[], tuple[Prompt, Request[R]]]
"""Reads a prompt and the request after it."""


def asked(prompts: Iterable[Prompt], read: Callable[[], Request[R]]) -> Iterator[Pending[R]]:
    """Ask the same after each of many prompts, lazily."""
    return map(lambda prompt: lambda: (prompt, read()), prompts)


def paired(
    prompts: Iterable[Prompt], sets: Iterable[ChoicesLike], read: Callable[[ChoicesLike], Request[R]]
) -> Iterator[Pending[R]]:
    """Pair prompts with requests for their sets, lazily; ArgumentError if there are more of one than of the other."""
    if isinstance(prompts, Sized) and isinstance(sets, Sized) and len(prompts) != len(sets):
        raise ArgumentError(f"sets: {len(sets):,}, where there are {len(prompts):,} prompts")
    return _pair(prompts, iter(sets), read)


def _pair(
    prompts: Iterable[Prompt], sets: Iterator[ChoicesLike], read: Callable[[ChoicesLike], Request[R]]
) -> Iterator[Pending[R]]:
    n, none = 0, object()
    for n, prompt in enumerate(prompts, 1):
        choices = next(sets, none)
        if choices is none:
            raise ArgumentError(f"sets: {n - 1:,}, where there are at least {n:,} prompts")
        yield partial(lambda prompt, choices: (prompt, read(choices)), prompt, choices)
    if next(sets, none) is not none:
        raise ArgumentError(f"sets: at least {n + 1:,}, where there are {n:,} prompts")


class Admission(Generic[R]):
    """Admits prompts with their requests to a batch; holds at most `WINDOW` of them at a time."""

    def __init__(self, llm: Llama, batch: Batch | Sequential, requests: Iterable[Pending[R]]) -> None:
        self._llm = llm
        self._batch = batch
        self._requests = enumerate(requests)
        self._failed: BaseException | None = None  # the error that ended the iterable of prompts
        self._under_way: dict[int, tuple[int, Running[R]]] = {}  # positions and plans, by ticket
        self._done: dict[int, R | TokenTrieError] = {}  # by position
        self._is_over = False

    def results(self, in_order: bool) -> Iterator[tuple[int, R | TokenTrieError]]:
        """Yield positions and results."""
        next_position = 0
        while True:
            self._admit()
            for position in [next_position] if in_order else list(self._done):
                if position in self._done:
                    next_position = position + 1
                    yield position, self._done.pop(position)
                    break
            else:
                if not self._under_way:
                    break
                self._wait()
        if self._failed is not None:
            raise self._failed

    def _admit(self) -> None:
        until = time.monotonic() + WAIT_MS / 1000
        # Without a batch there is nothing to choose from, and the caller must not wait for slow prompts.
        window = 1 if isinstance(self._batch, Sequential) else WINDOW
        while not self._is_over and len(self._under_way) + len(self._done) < window:
            if self._under_way and time.monotonic() > until:
                return
            try:
                position, read = next(self._requests)
            except StopIteration:
                self._is_over = True
            except Exception as error:
                self._is_over, self._failed = True, error
            else:
                try:
                    self._begin(position, read)
                except TokenTrieError as error:
                    self._batch.require_open()
                    self._done[position] = error
                except Exception as error:  # raised by the caller's iterables
                    self._is_over, self._failed = True, error

    def _begin(self, position: int, read: Pending[R]) -> None:
        prompt, request = read()
        if isinstance(self._batch, Sequential):
            self._done[position] = self._batch.call(lambda: run(self._llm, prompt, request))
            return
        self._submit(self._batch, position, begin(self._llm, prompt, request, self._batch.n_ctx))

    def _submit(self, batch: Batch, position: int, running: Running[R]) -> None:
        if ticket := running.submit(batch):
            self._under_way[ticket] = position, running
        else:
            self._done[position] = running.result

    def _wait(self) -> None:
        assert isinstance(self._batch, Batch)
        answer = self._batch.next()
        if answer is None:
            return
        position, running = self._under_way.pop(answer.ticket)
        try:
            running.read(answer.found)
            self._submit(self._batch, position, running)
        except TokenTrieError as error:
            self._batch.require_open()
            self._done[position] = error


OnError: TypeAlias = Literal["raise", "return"]
Find: TypeAlias = Callable[[Batch | Sequential], Iterator[tuple[int, Any]]]
"""Returns positions, each with a result or its error, from a batch."""


@dataclass
class _Work:
    """State of work in progress, shared with the thread that may end it."""

    batch: Batch | Sequential | None = None
    is_opening: bool = False
    is_closed: bool = False

    def require_open(self) -> None:
        if self.is_closed:
            raise CancelledError(ENDED)


class Results(Iterator[Any]):
    """Results that `find` returns for a batch, which is created when the first one is requested."""

    def __init__(self, many: Many, find: Find) -> None:
        self._work = _Work()
        self._results = _generate(self._work, many, find)

    def __next__(self) -> Any:
        if inspect.getgeneratorstate(self._results) == inspect.GEN_RUNNING:
            raise BusyError("another thread waits for the next decision, or the prompts themselves ask for it")
        return next(self._results)

    def close(self) -> None:
        """End the work and free the context; a thread that waits for a decision is woken and does this itself."""
        if inspect.getgeneratorstate(self._results) == inspect.GEN_RUNNING:
            self.interrupt()
        else:
            self._results.close()

    def interrupt(self) -> bool:
        """Wake a thread that waits for a decision; return False if the batch is still being created.

        Otherwise at most the caller's own iterables are still running.
        """
        self._work.is_closed = True
        is_opening = self._work.is_opening
        if (batch := self._work.batch) is not None:
            batch.close()
        return not is_opening


def _generate(work: _Work, many: Many, find: Find) -> Generator[Any, None, None]:
    """Make the batch, yield its results, close it; keeps no reference to the `Results`, so that it can be collected."""
    llm = many.llm
    work.is_opening = True
    try:
        work.require_open()
        work.batch = opened(lambda: Batch(llm, many.n_parallel or 0, many.n_ctx) if can_share(llm) else Sequential(llm))
        work.is_opening = False
        work.require_open()
        yield from many.yielded(find(work.batch))
    finally:
        work.is_opening = False
        if work.batch is not None:
            work.batch.close()


@dataclass(frozen=True)
class Many:
    """Iteration over many prompts or states, and how results are yielded; options are those of `choose_many`."""

    llm: Llama
    given: Iterable[Any]
    each: str
    """Word for one input, for messages."""
    alone: str
    """Name of the function for a single input."""
    progress: bool
    n_parallel: int | None
    n_ctx: int | None
    on_error: OnError = "raise"
    as_ready: bool = False

    def __post_init__(self) -> None:
        check_flags(as_ready=self.as_ready, progress=self.progress)
        check_name(self.on_error, get_args(OnError), "on_error")
        check_limits(2, n_parallel=self.n_parallel)
        check_limits(n_ctx=self.n_ctx)
        is_text = isinstance(self.given, (str, bytes))
        if is_text or not isinstance(self.given, Iterable):
            kind = "a text" if is_text else type(self.given).__name__
            raise ArgumentError(f"{self.each}s must be a list, not {kind}; for one {self.each} there is {self.alone}")
        n_ctx_of(self.llm)

    def answers(self, requests: Iterable[Pending[Any]]) -> Results:
        """Yield the results of requests, one for each input."""
        return Results(self, lambda batch: Admission(self.llm, batch, requests).results(in_order=not self.as_ready))

    def yielded(self, found: Iterator[tuple[int, Any]]) -> Iterator[Any]:
        """Yield results as `choose_many` does, with the progress."""
        total = len(self.given) if isinstance(self.given, Sized) else None
        with Progress(total, f"{self.each}s", wanted=self.progress) as shown:
            for n, (position, result) in enumerate(found, 1):
                shown.move(n)
                if isinstance(result, TokenTrieError):
                    placed = type(result)(f"{self.each}s[{position}]: {result}")
                    placed.__cause__, result = result, placed
                    if self.on_error == "raise":
                        raise result
                yield (position, result) if self.as_ready else result


def decided_by_mean(
    results: Iterator[tuple[int, Undecided | TokenTrieError]],
) -> Iterator[tuple[int, Decision[Any] | TokenTrieError]]:
    """Decide rows of one set, window by window, by the mean over all different rows so far.

    Errors are passed on at their positions.
    """
    mean, seen = Mean(np.logaddexp), LruCache[bool](MAX_SEEN, MAX_SEEN)
    for window in windows(results, BATCH_ROWS):
        rows = [one for _, one in window if isinstance(one, Undecided)]
        if new := [one.log_shares for one in rows if seen.is_new(hash(tuple(one.bound.tokens)), True)]:
            mean = mean.with_rows(np.array(new))
        for position, one in window:
            yield position, one.decide(mean.prior) if isinstance(one, Undecided) else one


def windows(results: Iterator[T], n: int) -> Iterator[list[T]]:
    """Split an iterator into lists of n items."""
    while window := list(itertools.islice(results, n)):
        yield window


@takes(ChooseOptions)
def choose_many(
    llm: Llama,
    prompts: Iterable[Prompt],
    choices: ChoicesLike = None,
    *,
    sets: Iterable[ChoicesLike] | None = None,
    as_ready: bool = False,
    on_error: OnError = "raise",
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
    **options: Unpack[ChooseKeywords],
) -> Iterator[Any]:
    """Let the model answer many prompts with one choice each, as `choose` does for one prompt.

    All prompts share one context, which is not the model's own. A beginning that several prompts share is evaluated
    once, the rest in full batches. Prompts are read only when there is space for them, and decisions are yielded as the
    caller asks for them. So a generator of millions of prompts takes no more memory than one of hundreds.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. Its own context is not touched, and it may be used meanwhile.
    prompts : iterable of prompts
        Each as for `choose`.
    choices
        The choices for all prompts, as for `choose`; an iterator is read once.
    sets : iterable of choices
        Instead of `choices`: the choices for each prompt.
    as_ready : bool
        Whether to yield pairs (position, decision) as soon as they are ready, instead of decisions in order.
    on_error : {"raise", "return"}
        What happens if a prompt cannot be answered. "raise" raises the error, which names the prompt's position, and
        ends the iteration. "return" yields the error instead of a decision, and continues with the other prompts.
    progress : bool
        Whether to show on standard error how far it is, with the rate and, if prompts have a length, the time left: a
        bar on a terminal, and elsewhere a line every ten seconds.
    n_parallel : int, optional
        Largest number of sequences in the context, at least 2; by default a number that suits the model.
    n_ctx : int, optional
        Tokens of the context, which all current prompts share; by default as many as in the Llama's context. Its memory
        is allocated when the first decision is requested.

    Yields
    ------
    Decision
        The decision of `choose`, up to llama.cpp's rounding, which depends on the size of a batch. In its stats, times
        include the work for other prompts, and passes are shared with them.

    Raises
    ------
    ArgumentError
        At once: options that do not fit each other or the choices.
    ArgumentError, VocabularyError, ContextError
        Of a prompt, with its position.
    CancelledError
        The Llama was closed meanwhile.

    Notes
    -----
    If the iterable of prompts raises an error, the decisions for the prompts before it are yielded first. Ctrl-C, and
    closing the iterator, end the work within one pass; the Llama can still be used. Recurrent and hybrid models, whose
    sequences cannot share cells of the cache, answer one prompt after the other.
    """
    read = ChooseOptions.read("choose_many", options)
    many = Many(llm, prompts, "prompt", "choose", progress, n_parallel, n_ctx, on_error, as_ready)
    if read.calibration == "batch":
        if sets is not None:
            raise ArgumentError("calibration: 'batch' is taken over one set, and sets gives each prompt its own")
        undecided = ChoiceRequest.read(choices, read).undecided()
        rows = asked(prompts, lambda: undecided)
        return Results(many, lambda batch: decided_by_mean(Admission(llm, batch, rows).results(in_order=True)))
    requests: Iterable[Pending[Decision[Any]]]
    if sets is None:
        given = ChoiceRequest.read(choices, read)
        requests = asked(prompts, cache(lambda: given.evaluated(llm)))
    elif choices is not None:
        raise ArgumentError("choices and sets: one of the two")
    else:
        requests = paired(prompts, sets, lambda choices: ChoiceRequest.read(choices, read).evaluated(llm))
    return many.answers(requests)


@takes(ScoreOptions)
def score_many(
    llm: Llama,
    prompts: Iterable[Prompt],
    choices: ChoicesLike,
    *,
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
    **options: Unpack[ScoreKeywords],
) -> Floats:
    """Score every choice after each of many prompts, as `score` does after one prompt.

    Parameters
    ----------
    llm, prompts, progress, n_parallel, n_ctx
        As of `choose_many`.
    choices
        The answers, as of `score`, for all prompts.
    **options
        Those of `score`, except the normalization "prior", which works for one prompt at a time.

    Returns
    -------
    ndarray of float64, shape (n_prompts, n_choices)
        Natural logarithms, in the order of the prompts and of the choices; of a `TokenTrie`, of its leaves.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        Of a prompt, with its position.
    """
    read = ScoreOptions.read("score_many", options)
    refuse_batch(read.calibration)
    if read.normalize == "prior":
        raise ArgumentError("normalize: 'prior' is for score, which scores one prompt, and the text's begin besides")
    request = ScoreRequest.read(choices, read)
    many = Many(llm, prompts, "prompt", "score", progress, n_parallel, n_ctx)
    rows = list(many.answers(asked(prompts, cache(lambda: request.evaluated(llm)))))
    return np.stack(rows) if rows else np.empty((0, request.n_choices))
