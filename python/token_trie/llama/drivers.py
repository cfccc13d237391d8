"""The two drivers of plans: on a stream, and in a batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import GEN_CREATED, getgeneratorstate
from typing import Any, Generic, TypeVar

from token_trie.errors import ArgumentError, CancelledError, ContextError, TokenTrieError
from token_trie.llama.batch import Batch
from token_trie.llama.contexts import common_prefix
from token_trie.llama.query import NO_ANSWER, Answer, Ask, AskBeside, AskOn, Plan, Step
from token_trie.llama.stream import Stream
from token_trie.native.lifetime import LruCache, cache_in

R = TypeVar("R")


class Run(Generic[R]):
    """A plan under way: the steps that it waits for, and their answers."""

    steps: Sequence[Step] = ()
    is_over = False
    result: R
    """The result, once it is over."""
    first: tuple[Step, Answer] | None = None
    """The first step, and its answer."""

    def __init__(self, plan: Plan[R]) -> None:
        if not isinstance(plan, Generator):
            raise ArgumentError(f"plan must return a generator, not {plan!r:.80}; a function with yield makes one")
        if getgeneratorstate(plan) != GEN_CREATED:
            raise ArgumentError("plan must return a new generator each time, not one that has begun")
        self._plan = plan
        self._answers: list[Any] = []
        self._n_missing = 0
        self._error: TokenTrieError | None = None
        self._advance(partial(next, plan))

    @property
    def can_go_on(self) -> bool:
        """Whether all answers are there, or an error."""
        return self._n_missing == 0 or self._error is not None

    def give(self, steps: Sequence[Step], i: int, answer: Answer | TokenTrieError) -> None:
        """Give the i-th of its steps an answer or an error; does nothing if it waits for other steps by now."""
        if steps is not self.steps:
            return
        if isinstance(answer, TokenTrieError):
            answer.step = i
            self._error = answer
        else:
            self._answers[i] = answer
            self._n_missing -= 1

    def go_on(self) -> None:
        """Run the plan's code, up to its next steps or its end; its errors are raised."""
        if self._error is not None:
            self._advance(partial(self._plan.throw, self._error))
            return
        if self.first is None and self.steps:
            self.first = self.steps[0], self._answers[0]
        self._advance(partial(self._plan.send, self._answers))

    def _advance(self, following: Callable[[], Sequence[Step]]) -> None:
        self._error = None
        try:
            found: Any = following()
        except StopIteration as end:
            self.steps, self.is_over, self.result = (), True, end.value
            return
        for step in found if isinstance(found, (list, tuple)) else [found]:
            if not isinstance(step, Step) or step is found:
                raise ArgumentError(f"plan must yield lists of steps, not {found!r:.80}")
        self.steps = list(found)  # a new one, by which late answers are told apart
        self._answers, self._n_missing = [None] * len(found), len(found)


_MAX_PRIORS, _MAX_SCORES = 4096, 1_000_000


def _priors_in(known: dict[object, Any]) -> LruCache[Answer]:
    return cache_in(known, "priors", _MAX_PRIORS, _MAX_SCORES)


_MAX_SPLICED = 32
"""More new tokens are a prompt, which Ctrl-C can interrupt."""


class StreamDriver:
    """Runs plans on a stream that this thread owns.

    `sequence` has the tokens of a handle's stream; then only what differs is replaced. With `is_beside`, no step
    changes them. With `from_empty`, each prompt is evaluated on an empty sequence, so that rounding in llama.cpp does
    not depend on what was evaluated before.
    """

    def __init__(
        self, stream: Stream, sequence: Sequence[int] = (), *, is_beside: bool = False, from_empty: bool = False
    ) -> None:
        self._stream = stream
        self._sequence = sequence
        self._is_handle = len(sequence) > 0
        self._is_beside = is_beside
        self._from_empty = from_empty

    def finish(self, run: Run[R]) -> R:
        """Run a plan to its end and return its result; its errors are raised."""
        stream, n_cancels = self._stream, self._stream.n_cancels
        is_of_file = stream.llm is None  # whose model is freed when another thread closes the handle
        while not run.is_over:
            steps = run.steps
            order: Sequence[int] = range(len(steps))
            if len(steps) > 1:  # priors first, because their prompts may take the place of the others
                order = sorted(order, key=lambda i: getattr(steps[i], "key", None) is None)
            for i in order:
                try:
                    if stream.n_cancels != n_cancels:
                        raise CancelledError("cancelled between two steps")
                    run.give(steps, i, self._answer(steps[i]))
                except TokenTrieError as error:
                    run.give(steps, i, error)
                    break
            if is_of_file:
                stream.with_vocab(lambda _: run.go_on())
            else:
                run.go_on()
        return run.result

    def _answer(self, step: Step) -> Answer:
        if not isinstance(step, Ask):
            if self._is_handle:
                self._move_to(step.tokens, is_prompt=False)
            return NO_ANSWER
        if step.key is None:
            return self._ask(step)
        key, priors = (step.key, self._from_empty), self._stream.with_model(lambda _, known: _priors_in(known))
        found = priors.find(key)
        if found is None:
            found = self._ask(step)
            priors.put(key, len(found.logprobs), found)
        return found

    def _ask(self, step: Ask) -> Answer:
        stream = self._stream
        is_prior_of_handle = step.key is not None and self._is_handle
        if self._is_beside or ((isinstance(step, AskBeside) or is_prior_of_handle) and not self._from_empty):
            try:
                return stream.answer(step.query, None if stream.tokens == step.tokens else step.tokens)
            except ContextError:
                if self._is_beside:
                    raise
        started = time.perf_counter_ns()
        if self._from_empty:
            stream.splice(0, [])
        self._move_to(step.tokens, is_prompt=True)
        prompt_ns = time.perf_counter_ns() - started
        try:
            answer = stream.answer(step.query)
        except TokenTrieError:
            self._sequence = stream.tokens  # with the beginning of a text
            raise
        answer.figures.prompt_ns = prompt_ns
        self._sequence = [*step.tokens, *answer.tokens]
        return answer

    def _move_to(self, tokens: list[int], *, is_prompt: bool) -> None:
        """Make tokens the sequence."""
        n_same = 0 if self._from_empty or not self._sequence else common_prefix(self._sequence, tokens)
        if is_prompt and (n_same == 0 or len(tokens) - n_same > _MAX_SPLICED):
            self._stream.prefill(tokens)
        elif n_same < max(len(tokens), len(self._sequence)):
            self._stream.splice(n_same, tokens[n_same:])
        self._sequence = tokens


@dataclass(frozen=True, eq=False)
class _Waiting:
    """The plans that wait for the answer to a step."""

    key: Hashable
    runs: list[tuple[Run[Any], Sequence[Step], int]]


class BatchDriver:
    """Runs plans in a batch. Any thread may submit them; one thread takes the answers.

    A prior under way is not asked twice: all plans with its key wait for one answer.
    """

    def __init__(self, batch: Batch, known: dict[object, Any]) -> None:
        self._batch = batch
        self._priors = _priors_in(known)
        self._waiting: dict[int, _Waiting] = {}  # by ticket
        self._tickets: dict[Run[Any], dict[int, Ask]] = {}
        self._keys: dict[Hashable, int] = {}  # tickets of priors under way
        self._early: dict[int, Answer] = {}  # that came before their ticket was known
        self._lock = threading.Lock()

    def advance(self, run: Run[Any]) -> bool:
        """Run the code of a plan that is new or can go on, and submit its next steps; return whether it is over."""
        while not run.is_over:
            if not run.can_go_on:
                self._submit(run)
            if not run.can_go_on:
                return False
            self.leave(run)
            run.go_on()
        return True

    def _submit(self, run: Run[Any]) -> None:
        steps = run.steps
        for i, step in enumerate(steps):
            if run.can_go_on:  # because another one failed meanwhile
                return
            try:
                answer = self._ask(run, i, step) if isinstance(step, Ask) else NO_ANSWER
            except TokenTrieError as error:
                run.give(steps, i, error)
            else:
                if answer is not None:
                    run.give(steps, i, answer.error or answer)

    def _ask(self, run: Run[Any], i: int, step: Ask) -> Answer | None:
        waits, key = (run, run.steps, i), None if step.key is None else (step.key, False)
        if key is not None:
            with self._lock:
                if (found := self._priors.find(key)) is not None:
                    return found
                if (ticket := self._keys.get(key)) is not None:
                    self._waiting[ticket].runs.append(waits)
                    self._tickets.setdefault(run, {})[ticket] = step
                    return None
        ticket = self._batch.submit(step.tokens, step.query, goes_on=isinstance(step, AskOn))  # slow for a large set
        with self._lock:
            answer = self._early.pop(ticket, None)
            if answer is None:
                self._waiting[ticket] = _Waiting(key, [waits])
                self._tickets.setdefault(run, {})[ticket] = step
                if key is not None:
                    self._keys[key] = ticket
            else:
                self._remember(key, answer)
        return answer

    def take(self, answer: Answer) -> list[Run[Any]]:
        """Give an answer to the plans that wait for it; return those that can go on."""
        ticket = answer.ticket
        with self._lock:
            waiting = self._waiting.pop(ticket, None)
            if waiting is None:
                self._early[ticket] = answer
                return []
            self._keys.pop(waiting.key, None)
            self._remember(waiting.key, answer)
            for run, _, _ in waiting.runs:
                self._tickets[run].pop(ticket, None)
        for run, steps, i in waiting.runs:
            run.give(steps, i, copy(answer.error) or answer)  # a copy, which says which step of this plan it is
        # Once each, although several steps of one list may have the same key.
        return [run for run in dict.fromkeys(run for run, _, _ in waiting.runs) if run.can_go_on]

    def _remember(self, key: Hashable, answer: Answer) -> None:
        if key is not None and answer.error is None:
            self._priors.put(key, len(answer.logprobs), answer)

    def leave(self, run: Run[Any]) -> None:
        """Withdraw what a plan still waits for, but not priors, which others may want."""
        alone = []
        with self._lock:
            for ticket in self._tickets.pop(run, {}):
                waiting = self._waiting[ticket]
                waiting.runs[:] = [one for one in waiting.runs if one[0] is not run]
                if not waiting.runs and waiting.key is None:
                    alone.append(ticket)
        for ticket in alone:
            self._batch.withdraw(ticket)

    def fail_all(self, error: TokenTrieError) -> list[Run[Any]]:
        """Give an error to all plans that wait; return them."""
        with self._lock:
            waiting = [one for asked in self._waiting.values() for one in asked.runs]
            self._waiting.clear()
            self._keys.clear()
            self._tickets.clear()
        for run, steps, i in waiting:
            run.give(steps, i, copy(error))
        return [run for run, _, _ in waiting]

    @property
    def unanswered(self) -> list[int]:
        """The tickets of all steps without an answer, also of those that no plan waits for."""
        with self._lock:
            return list(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether no step is without an answer."""
        return not self._waiting

    def tickets(self, run: Run[Any]) -> dict[int, Ask]:
        """Return the steps of a plan that have no answer yet, by ticket."""
        with self._lock:
            return dict(self._tickets.get(run, {}))
