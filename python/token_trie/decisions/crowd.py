"""Prompts that are answered together: taken in as there is room, handed out in order or as they come."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Generic, TypeVar

from token_trie.decisions.batched import Question
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.batch import WAIT_MS, Batch
from token_trie.llama.sequential import Sequential
from token_trie.native.core import Llama
from token_trie.native.lease import lease
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt

R = TypeVar("R")

# Prompts under way or done and not handed out yet: what a pass may choose from.
WINDOW = 256


class Asker(ABC, Generic[R]):
    """What is asked about each prompt, and made of its answer."""

    llm: Llama

    @abstractmethod
    def ask(self, prompt: Prompt, choices: ChoicesLike, room: int) -> Question[R]:
        """Read a prompt and its set, for so many tokens; the caller holds a lease."""

    @abstractmethod
    def alone(self, prompt: Prompt, choices: ChoicesLike) -> Callable[[], R]:
        """Read the set, and return the call that gives the same without a batch, for models that have none."""


def paired(prompts: Iterable[Prompt], sets: Iterable[ChoicesLike]) -> Iterator[tuple[Prompt, ChoicesLike]]:
    """Pair prompts with their sets, as they come.

    Raises
    ------
    ArgumentError
        There are more of one than of the other: at once where both have a length, else when one has ended.
    """
    if isinstance(prompts, Sized) and isinstance(sets, Sized) and len(prompts) != len(sets):
        raise ArgumentError(f"sets: {len(sets):,}, where there are {len(prompts):,} prompts")
    return _pair(iter(prompts), iter(sets))


def _pair(prompts: Iterator[Prompt], sets: Iterator[ChoicesLike]) -> Iterator[tuple[Prompt, ChoicesLike]]:
    n, none = 0, object()
    for n, prompt in enumerate(prompts, 1):
        choices = next(sets, none)
        if choices is none:
            raise ArgumentError(f"sets: {n - 1:,}, where there are at least {n:,} prompts")
        yield prompt, choices
    if next(sets, none) is not none:
        raise ArgumentError(f"sets: at least {n + 1:,}, where there are {n:,} prompts")


class Crowd(Generic[R]):
    """Prompts with their sets, each with its place; at most `WINDOW` of them are held at a time."""

    def __init__(self, asker: Asker[R], batch: Batch | Sequential, asked: Iterable[tuple[Prompt, ChoicesLike]]) -> None:
        self._asker = asker
        self._batch = batch
        self._asked = enumerate(asked)
        self._failed: BaseException | None = None  # what the prompts themselves ended with
        self._under_way: dict[int, tuple[int, Question[R]]] = {}  # with their places, by ticket
        self._done: dict[int, R | TokenTrieError] = {}  # by place
        self._is_over = False
        self._n_members = self._n_tokens = 1  # of the largest answer there may be

    def results(self, in_order: bool) -> Iterator[tuple[int, R | TokenTrieError]]:
        """Iterate over places and results."""
        next_place = 0
        while True:
            self._take_in()
            for place in [next_place] if in_order else list(self._done):
                if place in self._done:
                    next_place = place + 1
                    yield place, self._done.pop(place)
                    break
            else:
                if not self._under_way:
                    break
                self._wait()
        if self._failed is not None:
            raise self._failed

    def _take_in(self) -> None:
        until = time.monotonic() + WAIT_MS / 1000
        # Whoever answers alone has nothing to choose from; and who waits is not to wait for slow prompts.
        window = 1 if isinstance(self._batch, Sequential) else WINDOW
        while not self._is_over and len(self._under_way) + len(self._done) < window:
            if self._under_way and time.monotonic() > until:
                return
            try:
                place, (prompt, choices) = next(self._asked)
            except StopIteration:
                self._is_over = True
            except Exception as error:
                self._is_over, self._failed = True, error
            else:
                try:
                    self._begin(place, prompt, choices)
                except TokenTrieError as error:
                    self._batch.require_open()
                    self._done[place] = _at(place, error)
                except Exception as error:  # of the prompt's or the set's own code
                    self._is_over, self._failed = True, error

    def _begin(self, place: int, prompt: Prompt, choices: ChoicesLike) -> None:
        if isinstance(self._batch, Sequential):
            self._done[place] = self._batch.call(self._asker.alone(prompt, choices))
            return
        with lease(self._asker.llm):
            question = self._asker.ask(prompt, choices, self._batch.room)
        self._submit(self._batch, place, question)

    def _submit(self, batch: Batch, place: int, question: Question[R]) -> None:
        self._n_members = max(self._n_members, question.n_members)
        self._n_tokens = max(self._n_tokens, question.n_tokens)
        self._under_way[question.submit(batch)] = place, question

    def _wait(self) -> None:
        assert isinstance(self._batch, Batch)
        answer = self._batch.next(self._n_members, self._n_tokens)
        if answer is None:
            return
        place, question = self._under_way.pop(answer.ticket)
        try:
            if answer.error is not None:
                raise answer.error
            told = question.read(answer)
            if isinstance(told, Question):
                self._submit(self._batch, place, told)
            else:
                self._done[place] = told
        except TokenTrieError as error:
            self._batch.require_open()
            self._done[place] = _at(place, error)


def _at(place: int, error: TokenTrieError) -> TokenTrieError:
    placed = type(error)(f"prompts[{place}]: {error}")
    placed.__cause__ = error
    return placed
