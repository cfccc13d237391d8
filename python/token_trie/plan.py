r"""Plans: requests as generators of steps. This module says how to write one, and runs one or many.

A plan is a generator. It yields a list of steps that may run at once. It is sent their answers, in the order of the
list, or one error is raised at its yield. What it returns is the result.

    def triage(model, mail):
        mail = model.tokenize(mail)
        team = yield from choose_plan(model, mail, TEAMS)      # another plan is a part of this one
        mail = model.append(mail + list(team.tokens), "\nUrgent:")
        yes, no = yield from score_plan(model, mail, ["yes", "no"])
        return team.value, yes > no

    run(llm, mail, triage)                                     # alone
    run_many(llm, mails, triage)                               # many in one context, lazily
    await asynchronous.arun(llm, mail, triage)
    handle.run(triage)                                         # `mail` are then the tokens of its text

Steps are types: `Ask`, `AskBeside`, `AskOn`, `Keep`. Two drivers run them, on a stream and in a batch. They hold the
model while the code of a plan runs, which evaluates nothing by itself. So a plan is tested without running a model:

    plan = triage(model, mail)
    (step,) = next(plan)                                       # an Ask, with its tokens and its query
    (step,) = plan.send([Answer(leaf=0)])                      # a made-up answer
"""

from __future__ import annotations

import inspect
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

from token_trie.errors import ArgumentError, BusyError, CancelledError, TokenTrieError
from token_trie.llama.batch import (
    ENDED,
    WAIT_MS,
    Batch,
    Sequential,
    SharedBatch,
    can_share,
    own_stream_of,
    shared_batch_of,
)
from token_trie.llama.contexts import check_room, opened, require_decoder
from token_trie.llama.drivers import BatchDriver, Run, StreamDriver
from token_trie.llama.query import Answer, Ask, AskBeside, AskOn, Keep, Plan, Query, Step
from token_trie.llama.stream import Stream
from token_trie.llama.text import tokenize_after
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.lifetime import attachment
from token_trie.native.options import check_flags, check_limits, check_name, encode
from token_trie.progress import Progress
from token_trie.sets.prompt import Prompt, tokenize_alone, tokenize_prompt

__all__ = [
    "Answer",
    "Ask",
    "AskBeside",
    "AskOn",
    "Keep",
    "Model",
    "Plan",
    "Query",
    "Step",
    "run",
    "run_many",
    "together",
]

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Model:
    """The model as a plan has it: it tokenizes and remembers. Nothing is evaluated here.

    It is valid in the code of the plan that it was given to, while a driver runs it.
    """

    vocab: _core.Vocab
    known: dict[object, Any]
    """Remembered facts of the model; see `cache_in`."""
    n_ctx: int
    """Size of the context, in tokens."""
    llm: Llama | None
    """None for a handle on a file."""
    owner: str = "Llama"
    """Owner of the context, for messages; empty for a batch, which checks the length itself."""

    @classmethod
    def of(cls, llm: Llama, n_ctx: int | None = None) -> Model:
        """Return the model of a Llama, with its own context or another of n_ctx tokens, which is a batch's."""
        vocab, known = vocab_of(llm), attachment(llm).known  # first, because it refuses a closed Llama
        return cls(vocab, known, int(llm.n_ctx()), llm) if n_ctx is None else cls(vocab, known, n_ctx, llm, "")

    def tokenize(self, prompt: Prompt, *, thinks: bool = False) -> list[int]:
        """Return the tokens of a prompt; `thinks` and errors are those of `tokenize_prompt`."""
        if self.llm is None:
            return tokenize_alone(self.vocab, prompt)
        return tokenize_prompt(self.llm, prompt, self.n_ctx, thinks=thinks)

    def append(self, tokens: list[int], text: str) -> list[int]:
        """Return tokens with a text after them, in which names of control tokens become control tokens.

        If the text merges with the last tokens, these are replaced.
        """
        if not tokens:
            raise ArgumentError("tokens: none given to append to; tokenize makes the first ones")
        n_kept, more = tokenize_after(self.vocab, tokens, encode(text, "text"))
        return tokens[:n_kept] + more

    def check_room(self, n_prompt: int, n_answer: int) -> None:
        """Raise ContextError if a prompt and an answer of so many tokens do not fit into the context."""
        if self.owner:
            check_room(self.n_ctx, n_prompt, n_answer, self.owner)


PlanOf: TypeAlias = Callable[[Model, A], Plan[R]]
"""Makes a plan about something: a prompt, a state, a row."""


def together(plans: Iterable[Plan[Any]]) -> Plan[list[Any]]:
    """Run plans side by side and return their results; an error is raised in the plan whose step it is.

    If that plan goes on, the others ask their steps again.
    """
    runs: list[Run[Any]] = [Run(plan) for plan in plans]
    while under_way := [run for run in runs if not run.is_over]:
        owners = [(run, run.steps, i) for run in under_way for i in range(len(run.steps))]
        try:
            answers = yield [step for run in under_way for step in run.steps]
        except TokenTrieError as error:
            run, steps, i = owners[error.step]
            run.give(steps, i, error)
            run.go_on()
        else:
            for (run, steps, i), answer in zip(owners, answers, strict=True):
                run.give(steps, i, answer)
            for run in under_way:
                run.go_on()
    return [run.result for run in runs]


def run(llm: Llama, about: A, plan: PlanOf[A, R], *, reproducible: bool = False) -> R:
    """Run one plan.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. Its own context is not touched. What is evaluated stays for the next call.
    about
        What the plan is about: a prompt, or whatever it takes.
    plan : function
        Returns the plan, given the `Model` and what it is about.
    reproducible : bool
        Whether each prompt is evaluated on an empty sequence. Then an answer is the same, bit by bit, whatever was
        evaluated before, or is asked at the same time.

    Returns
    -------
    object
        The result of the plan.

    Raises
    ------
    TokenTrieError
        As of `choose`.
    """
    begun = Run(plan(Model.of(llm), about))
    attached = attachment(llm)
    own = own_stream_of(llm, attached)
    shared = None if reproducible else shared_batch_of(llm, attached, own)
    if shared is not None:
        return _run_in(shared, begun, attached.known)
    with own.lent() as stream:
        return StreamDriver(stream, from_empty=reproducible).finish(begun)


def _run_in(shared: SharedBatch, run: Run[R], known: dict[object, Any]) -> R:
    """Run a plan together with other threads, in a shared batch."""
    driver = BatchDriver(shared.batch, known)
    try:
        while not driver.advance(run):
            with closing(shared.answers(driver.tickets(run))) as answers:
                for answer in answers:
                    if driver.take(answer):
                        break
    except TokenTrieError:
        shared.batch.require_open()
        raise
    finally:
        shared.drop(driver.unanswered)
    return run.result


def run_after(stream: Stream, plan: PlanOf[list[int], R]) -> R:
    """Run a plan after the stream's sequence, its prompt, which then is what the plan has kept; the trie is removed.

    If that fails, the sequence and the trie are restored.
    """
    with stream.transaction() as before:
        if not before:
            raise ArgumentError("there is no text to continue: prefill first")
        answer = StreamDriver(stream, before).finish(begun_on(stream, before, plan))
        # Even without tokens, because this restarts the grammar after the answer.
        stream.splice(stream.raw_state.n_tokens, [])
        stream.clear_span()
        return answer


def begun_on(stream: Stream, about: A, plan: PlanOf[A, R]) -> Run[R]:
    """Begin a plan with the stream's own model."""
    n_ctx, llm = stream.n_ctx_max, stream.llm
    return stream.with_model(lambda vocab, known: Run(plan(Model(vocab, known, n_ctx, llm, "handle"), about)))


def run_many(
    llm: Llama,
    abouts: Iterable[A],
    plan: PlanOf[A, R],
    *,
    as_ready: bool = False,
    on_error: OnError = "raise",
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
) -> Iterator[Any]:
    """Run the same plan about many prompts, or whatever it takes, in one context.

    Parameters
    ----------
    llm, plan
        As of `run`.
    abouts : iterable
        What each plan is about.
    as_ready, on_error, progress, n_parallel, n_ctx
        As of `choose_many`.

    Yields
    ------
    object
        The result of each plan, in order.

    Raises
    ------
    TokenTrieError
        As of `choose_many`.
    """
    return Many(llm, abouts, "row", "run", progress, n_parallel, n_ctx, on_error, as_ready).run(plan)


# Many plans in one context

WINDOW = 256
"""Largest number of plans under way or waiting to be yielded, from which a pass may choose."""

OnError: TypeAlias = Literal["raise", "return"]


class Admission(Generic[A, R]):
    """Admits plans to a batch; holds at most `WINDOW` of them at a time."""

    def __init__(
        self,
        llm: Llama,
        batch: Batch | Sequential,
        abouts: Iterable[A],
        plan: PlanOf[A, R],
        *,
        reproducible: bool = False,
    ) -> None:
        self._llm = llm
        self._reproducible = reproducible
        self._batch = batch
        self._abouts = enumerate(abouts)
        self._plan = plan
        self._driver = BatchDriver(batch, attachment(llm).known) if isinstance(batch, Batch) else None
        self._failed: BaseException | None = None  # the error that ended the iterable
        self._under_way: dict[Run[R], int] = {}  # with their positions
        self._lengths: dict[int, int] = {}  # tokens of those under way, by position
        self._n_begun = self._n_tokens = 0  # plans, and tokens of those that are over
        self._done: dict[int, R | TokenTrieError] = {}  # by position
        self._is_over = False

    def results(self, in_order: bool, shown: Progress) -> Iterator[tuple[int, R | TokenTrieError]]:
        """Yield positions and results, and show what is done of them."""
        next_position = 0
        while True:
            self._admit()
            self._show(shown)
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
        window = 1 if self._driver is None else WINDOW
        while not self._is_over and len(self._under_way) + len(self._done) < window:
            if self._under_way and time.monotonic() > until:
                return
            try:
                position, about = next(self._abouts)
            except StopIteration:
                self._is_over = True
            except Exception as error:
                self._is_over, self._failed = True, error
            else:
                self._n_begun += 1
                self._attempt(position, partial(self._begin, position, about))

    def _attempt(self, position: int, work: Callable[[], None]) -> None:
        try:
            work()
        except TokenTrieError as error:
            self._batch.require_open()
            self._done[position] = error
        except Exception as error:  # raised by the caller's iterable or plan
            self._is_over, self._failed = True, error

    def _begin(self, position: int, about: A) -> None:
        if isinstance(self._batch, Sequential):
            self._done[position] = self._batch.call(
                lambda: run(self._llm, about, self._plan, reproducible=self._reproducible)
            )
        else:
            self._advance(position, Run(self._plan(Model.of(self._llm, self._batch.n_ctx), about)))

    def _advance(self, position: int, run: Run[R]) -> None:
        assert self._driver is not None
        if self._driver.advance(run):
            self._done[position] = run.result
        else:
            self._under_way[run] = position

    def _wait(self) -> None:
        assert self._driver is not None
        assert isinstance(self._batch, Batch)
        answer = self._batch.next()
        if answer is None:
            return
        for run in self._driver.take(answer):
            position = self._under_way.pop(run)
            self._lengths[position] = len(run.steps[-1].tokens) + len(answer.tokens)
            self._attempt(position, partial(self._advance, position, run))
            if run not in self._under_way:
                self._n_tokens += self._lengths.pop(position)

    def _show(self, shown: Progress) -> None:
        """Show how many plans are over, and how far the others are, by their tokens."""
        if not shown.is_due:
            return
        lengths = [self._lengths.get(position, 0) + self._n_running(run) for run, position in self._under_way.items()]
        n_ended = self._n_begun - len(self._under_way)
        usual = self._n_tokens / n_ended if self._n_tokens else math.inf
        parts = sum(min(length / usual, 1.0) for length in lengths)
        shown.move(n_ended, n_ended + parts, self._n_tokens + sum(lengths), sum(map(bool, lengths)))

    def _n_running(self, run: Run[R]) -> int:
        """Return the number of tokens of the texts that a plan waits for."""
        assert self._driver is not None
        assert isinstance(self._batch, Batch)
        texts = [ticket for ticket, step in self._driver.tickets(run).items() if step.query.mode == "text"]
        n = 0
        for ticket in texts:
            with suppress(TokenTrieError):  # it has its answer already
                n += len(self._batch.text(ticket, 0))
        return n


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
        shares = can_share(llm) and not many.reproducible
        work.batch = opened(lambda: Batch(llm, many.n_parallel or 0, many.n_ctx) if shares else Sequential(llm))
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
    reproducible: bool = False

    def __post_init__(self) -> None:
        check_flags(as_ready=self.as_ready, progress=self.progress)
        check_name(self.on_error, get_args(OnError), "on_error")
        check_limits(2, n_parallel=self.n_parallel)
        check_limits(n_ctx=self.n_ctx)
        is_text = isinstance(self.given, (str, bytes))
        if is_text or not isinstance(self.given, Iterable):
            kind = "a text" if is_text else type(self.given).__name__
            raise ArgumentError(f"{self.each}s must be a list, not {kind}; for one {self.each} there is {self.alone}")
        require_decoder(self.llm)

    def run(self, plan: PlanOf[Any, Any], abouts: Iterable[Any] | None = None) -> Results:
        """Run a plan about each input, or about what is read of each instead."""
        return Results(self, lambda batch: self.found(batch, plan, abouts))

    def found(
        self, batch: Batch | Sequential, plan: PlanOf[Any, Any], abouts: Iterable[Any] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield positions, each with the result of a plan or its error, and show the progress."""
        given = self.given if abouts is None else abouts
        admission = Admission(self.llm, batch, given, plan, reproducible=self.reproducible)
        total = len(self.given) if isinstance(self.given, Sized) else None
        with Progress(total, f"{self.each}s", wanted=self.progress) as shown:
            yield from admission.results(not self.as_ready, shown)

    def yielded(self, found: Iterator[tuple[int, Any]]) -> Iterator[Any]:
        """Yield results as `choose_many` does."""
        for position, result in found:
            if isinstance(result, TokenTrieError):
                placed = type(result)(f"{self.each}s[{position}]: {result}")
                placed.__cause__, result = result, placed
                if self.on_error == "raise":
                    raise result
            yield (position, result) if self.as_ready else result


def windows(results: Iterator[T], n: int) -> Iterator[list[T]]:
    """Split an iterator into lists of n items."""
    while window := list(itertools.islice(results, n)):
        yield window
