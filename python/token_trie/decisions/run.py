"""Requests and their drivers: on a stream, in a batch, after the text of a handle."""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from token_trie.decisions.bound_choices import BoundCalibration, Reader, reader_of
from token_trie.decisions.calibration import fingerprint
from token_trie.decisions.options import ChooseOptions, ListOptions, RecordOptions
from token_trie.decisions.think import Think, any_set, end_of_thought, marker_tokens
from token_trie.errors import ArgumentError, BusyError, CancelledError, ContextError, TokenTrieError
from token_trie.llama.batch import (
    ENDED,
    WAIT_MS,
    Batch,
    Sequential,
    SharedBatch,
    can_share,
    chooser,
    n_ctx_of,
    shared_batch_of,
)
from token_trie.llama.contexts import common_prefix, opened
from token_trie.llama.query import NO_ANSWER, Answer, Query
from token_trie.llama.stream import Stream
from token_trie.native.checks import check_counts, check_flags, lookup
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.ffi import lib
from token_trie.native.lifetime import lease
from token_trie.progress import Progress
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt

R = TypeVar("R")
T = TypeVar("T")


class Thought(NamedTuple):
    """Text that the model wrote before its answer."""

    text: str
    ms: float


class Prefix(NamedTuple):
    """Tokens before the answer of a request."""

    tokens: list[int]
    is_standing: bool = False
    """Whether the stream's sequence is these tokens already."""
    thought: Thought | None = None
    """The thought at its end, before the marker."""

    @property
    def thought_text(self) -> str | None:
        """Text of the thought."""
        return None if self.thought is None else self.thought.text


class Request(ABC, Generic[R]):
    """A question for the model, with checked options."""

    @property
    def think(self) -> Think | None:
        """How to think before the answer; None: not at all."""
        return None

    @property
    def seed(self) -> int | None:
        """Seed of the random draws."""
        return None

    @property
    def draws(self) -> bool:
        """Whether tokens are sampled."""
        return False

    @abstractmethod
    def steps(self, reader: Reader, prefix: Prefix) -> Plan[R]:
        """Yield its steps after a prompt; until the first one, the reader's lease is held.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError
            Request, prompt and model do not fit together.
        """


class Written(Request[R]):
    """A request whose answer the model writes, after a thought if one is requested."""

    options: ChooseOptions | ListOptions | RecordOptions

    @property
    def think(self) -> Think | None:
        """How to think before the answer; None: not at all."""
        return self.options.think

    @property
    def seed(self) -> int | None:
        """Seed of the random draws."""
        return self.options.seed

    @property
    def draws(self) -> bool:
        """Whether tokens are sampled."""
        return self.options.mode == "sampled" or self.options.think is not None


class PlanStep(NamedTuple):
    """A query and its prompt."""

    tokens: list[int]
    query: Query | None
    """None: these tokens are left as the sequence of a handle."""
    is_beside: bool = False
    """Whether the stream's sequence must not change."""


Plan: TypeAlias = Generator[PlanStep, Answer, R]
"""Yields steps, is sent their answers, and returns the result."""


class Running(Generic[R]):
    """A plan under way, at a step."""

    step: PlanStep | None
    """The step that is to be answered; None: the plan has ended."""
    result: R
    """The result, once it has ended."""

    def __init__(self, plan: Plan[R]) -> None:
        self._plan = plan
        self._go_on(plan.__next__)

    def read(self, answer: Callable[[], Answer]) -> None:
        """Go on with the answer to its step, or with the error that is raised instead."""
        try:
            found = answer()
        except TokenTrieError as error:
            self._go_on(partial(self._plan.throw, error))
        else:
            self._go_on(partial(self._plan.send, found))

    def rest(self) -> Plan[R]:
        """Yield its further steps, as part of another plan."""
        while self.step is not None:
            try:
                answer = yield self.step
            except TokenTrieError as error:
                self._go_on(partial(self._plan.throw, error))
            else:
                self._go_on(partial(self._plan.send, answer))
        return self.result

    def _go_on(self, following: Callable[[], PlanStep]) -> None:
        try:
            self.step = following()
        except StopIteration as end:
            self.step, self.result = None, end.value

    def submit(self, batch: Batch) -> int:
        """Put its step into a batch; return the ticket, or 0 if it has ended."""
        while self.step is not None:
            assert self.step.query is not None  # because a batch has no handle
            try:
                return batch.submit(self.step.tokens, self.step.query)
            except TokenTrieError as error:
                self._go_on(partial(self._plan.throw, error))
        return 0


def drive(running: Running[R], stream: Stream, sequence: Sequence[int] = ()) -> R:
    """Answer the steps of a plan on a stream.

    An answer's figures include the time of its prompt. Errors of the stream are raised inside the plan.

    Parameters
    ----------
    sequence
        The stream's sequence, if it is known: then only what differs is replaced.
    """
    n_cancels = stream.n_cancels

    def answer(step: PlanStep) -> Answer:
        nonlocal sequence
        if stream.n_cancels != n_cancels:
            raise CancelledError("cancelled between two steps")
        found = _answer(stream, step, sequence)
        if not step.is_beside:
            sequence = [*step.tokens, *found.tokens]
        return found

    while running.step is not None:
        running.read(partial(answer, running.step))
    return running.result


_MAX_SPLICED = 32
"""More new tokens are a prompt, which Ctrl-C can interrupt."""


def _answer(stream: Stream, step: PlanStep, sequence: Sequence[int]) -> Answer:
    if step.is_beside:
        assert step.query is not None
        return stream.answer(step.query, None if stream.tokens == step.tokens else step.tokens)
    started = time.perf_counter_ns()
    n_same = common_prefix(sequence, step.tokens) if sequence else 0
    if step.query is not None and (n_same == 0 or len(step.tokens) - n_same > _MAX_SPLICED):
        stream.prefill(step.tokens)
    elif n_same < max(len(step.tokens), len(sequence)):
        stream.splice(n_same, step.tokens[n_same:])
    if step.query is None:
        return NO_ANSWER
    prompt_ns = time.perf_counter_ns() - started
    answer = stream.answer(step.query)
    answer.figures.prompt_ns = prompt_ns
    return answer


def calibrated(calibration: BoundCalibration | None) -> Plan[BoundCalibration | None]:
    """Return a calibration that is ready for use: its prompts are scored first, unless their scores are known."""
    if calibration is None or not calibration.priors:
        return calibration
    scores = []
    for prior in calibration.priors:
        known = prior.find()
        scores.append(prior.keep((yield PlanStep(prior.tokens, prior.query)).logprobs) if known is None else known)
    return calibration.with_prior(scores[0] if len(scores) == 1 else np.mean(scores, axis=0))


_RESPELLED = 16
"""Extra tokens for a marker that begins inside a token and is tokenized again."""


WithVocab: TypeAlias = Callable[[Callable[[_core.Vocab], Any]], Any]
"""Calls a function with the vocabulary, which stays valid meanwhile."""
_CHECK_EVERY = 8
"""Tokens of a thought between two checks of its time limit."""


def thought_after(think: Think, seed: int | None, tokens: list[int], with_vocab: WithVocab) -> Plan[Prefix]:
    """Let the model think after tokens; return them with the thought and its marker."""
    marker = with_vocab(partial(marker_tokens, think))
    start, ns, n_texts = len(tokens), 0, 0
    while True:
        is_late = think.seconds is not None and ns >= think.seconds * 1e9
        left = 0 if is_late else think.max_tokens - (len(tokens) - start)
        is_last = think.seconds is None or left <= _CHECK_EVERY
        query = Query(
            "text",
            any_set(marker),
            sampling=replace(think, seed=None if seed is None else seed + n_texts),
            # Or as many as fit into the context.
            max_tokens=left + len(marker) + _RESPELLED if is_last else _CHECK_EVERY,
            start_after=marker,
            max_before=left,
            stop_strings=[think.marker] if isinstance(think.marker, str) else [],
        )
        answer = yield PlanStep(tokens, query)
        stop = answer.figures.stop
        if stop == lib.TOKEN_TRIE_STOP_MAX_TOKENS and (is_last or not answer.tokens):
            raise ContextError("the context is full before the thought has ended")
        seam, tokens = len(tokens), [*tokens, *answer.tokens]
        ns, n_texts = ns + answer.figures.decide_ns, n_texts + 1
        place = {"tokens": tokens, "start": start, "seam": seam, "stop": stop}
        found = with_vocab(partial(end_of_thought, think=think, marker=marker, **place))
        if found is not None:
            return Prefix(found[0], thought=Thought(found[1], ns / 1e6))


def think_on(stream: Stream, think: Think, seed: int | None, tokens: list[int]) -> Prefix:
    """Think after tokens on a stream, whose sequence then ends in the marker."""
    prefix = drive(Running(thought_after(think, seed, tokens, stream.with_vocab)), stream)
    stream.prefill(prefix.tokens)
    return prefix._replace(is_standing=True)


def run(llm: Llama, prompt: Prompt, request: Request[R]) -> R:
    """Answer a request after a prompt; errors are those of `Request.steps` and of `chooser`."""
    with lease(llm):
        running = begin(llm, prompt, request)
    shared = shared_batch_of(llm)
    if shared is not None:
        return _run_in(shared, running)
    with chooser(llm) as stream:
        if request.draws and request.seed is None:
            stream.set_seed(None)
        return drive(running, stream)


def begin(llm: Llama, prompt: Prompt, request: Request[R], n_ctx: int | None = None) -> Running[R]:
    """Begin a request after a prompt, under a lease; see `Request.steps` and `reader_of`."""
    reader = reader_of(llm, n_ctx)
    tokens = reader.tokenize(prompt)
    running = Running(request.steps(reader, Prefix(tokens)))
    if request.think is not None:  # they fit together, so the model may think
        return Running(_think_then(llm, request, request.think, tokens, n_ctx))
    return running


def _think_then(llm: Llama, request: Request[R], think: Think, tokens: list[int], n_ctx: int | None) -> Plan[R]:
    """Think, then answer the request."""

    def with_vocab(use: Callable[[_core.Vocab], Any]) -> Any:
        with lease(llm):
            return use(vocab_of(llm))

    prefix = yield from thought_after(think, request.seed, tokens, with_vocab)
    with lease(llm):
        running = Running(request.steps(reader_of(llm, n_ctx), prefix))
    return (yield from running.rest())


def run_behind(stream: Stream, request: Request[R]) -> R:
    """Answer a request after the stream's sequence, which then ends with the answer; the trie is removed.

    If that fails, the sequence and the trie are restored.
    """
    with stream.transaction() as before:
        if not before:
            raise ArgumentError("nothing to answer behind: prefill first")
        prefix = Prefix(before, is_standing=True)
        if request.think is not None:
            prefix = think_on(stream, request.think, request.seed, before)
        answer = drive(read_on(stream, partial(request.steps, prefix=prefix)), stream, prefix.tokens)
        # Even without tokens, because this restarts the grammar after the answer.
        stream.splice(stream.raw_state.n_tokens, [])
        stream.clear_span()
        return answer


def read_on(stream: Stream, steps: Callable[[Reader], Plan[R]]) -> Running[R]:
    """Begin a plan by a reader of the stream's own model."""
    n_ctx, tokenize = stream.n_ctx_max, stream.tokenize
    model = partial(fingerprint, stream.llm)
    return stream.with_model(
        lambda vocab, known: Running(steps(Reader(vocab, known, tokenize, n_ctx, model, stream.with_model, "handle")))
    )


def _run_in(shared: SharedBatch, running: Running[R]) -> R:
    """Answer together with other threads, in a shared batch."""
    while (answer := shared.answer(running.submit)) is not None:
        try:
            running.read(answer.found)
        except TokenTrieError:
            shared.require_open()
            raise
    return running.result


# Largest number of prompts in progress or waiting to be yielded, from which a pass may choose.
WINDOW = 256


Asked: TypeAlias = Callable[[], tuple[Prompt, Request[R]]]
"""Reads a prompt and the request after it."""


def asked(prompts: Iterable[Prompt], read: Callable[[], Request[R]]) -> Iterator[Asked[R]]:
    """Ask the same after each of many prompts, lazily."""
    return map(lambda prompt: lambda: (prompt, read()), prompts)


def paired(
    prompts: Iterable[Prompt], sets: Iterable[ChoicesLike], read: Callable[[ChoicesLike], Request[R]]
) -> Iterator[Asked[R]]:
    """Pair prompts with requests for their sets, lazily; ArgumentError if there are more of one than of the other."""
    if isinstance(prompts, Sized) and isinstance(sets, Sized) and len(prompts) != len(sets):
        raise ArgumentError(f"sets: {len(sets):,}, where there are {len(prompts):,} prompts")
    return _pair(iter(prompts), iter(sets), read)


def _pair(
    prompts: Iterator[Prompt], sets: Iterator[ChoicesLike], read: Callable[[ChoicesLike], Request[R]]
) -> Iterator[Asked[R]]:
    n, none = 0, object()
    for n, prompt in enumerate(prompts, 1):
        choices = next(sets, none)
        if choices is none:
            raise ArgumentError(f"sets: {n - 1:,}, where there are at least {n:,} prompts")
        yield partial(_read_pair, prompt, choices, read)
    if next(sets, none) is not none:
        raise ArgumentError(f"sets: at least {n + 1:,}, where there are {n:,} prompts")


def _read_pair(
    prompt: Prompt, choices: ChoicesLike, read: Callable[[ChoicesLike], Request[R]]
) -> tuple[Prompt, Request[R]]:
    return prompt, read(choices)


class Admission(Generic[R]):
    """Admits prompts with their requests to a batch; holds at most `WINDOW` of them at a time."""

    def __init__(self, llm: Llama, batch: Batch | Sequential, requests: Iterable[Asked[R]]) -> None:
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

    def _begin(self, position: int, read: Asked[R]) -> None:
        prompt, request = read()
        if isinstance(self._batch, Sequential):
            self._done[position] = self._batch.call(lambda: run(self._llm, prompt, request))
            return
        with lease(self._llm):
            running = begin(self._llm, prompt, request, self._batch.n_ctx)
        self._submit(self._batch, position, running)

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
    """Results of prompts in a batch, which is created when the first result is requested.

    Parameters
    ----------
    llm : Llama
    n_parallel, n_ctx
        As of `Batch`.
    results : callable
        Makes the generator of results from the batch, or from a `Sequential`.
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
        """End the work and free the context; a thread that waits for a decision is woken and does this itself."""
        if inspect.getgeneratorstate(self._results) == inspect.GEN_RUNNING:
            self.interrupt()
        else:
            self._results.close()

    def interrupt(self) -> bool:
        """Wake a thread that waits for a decision.

        Returns
        -------
        bool
            False if the batch is still being created; else at most the caller's own iterables are still running.
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
    """Make the batch, yield its results, close it; keeps no reference to the `Results`, so that it can be collected."""
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
        lookup(self.on_error, {"raise": 0, "return": 1}, "on_error")
        if self.n_parallel is not None:
            check_counts(2, n_parallel=self.n_parallel)
        is_text = isinstance(self.given, (str, bytes))
        if is_text or not isinstance(self.given, Iterable):
            what = f"{self.each}s: {'a text' if is_text else type(self.given).__name__}"
            raise ArgumentError(f"{what} where several belong; for one {self.each} there is {self.alone}")
        n_ctx_of(self.llm)

    def results(self, find: Callable[[Batch | Sequential], Iterator[tuple[int, Any]]]) -> Results:
        """Yield what `find` returns for a batch: positions, each with a result or its error."""

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
