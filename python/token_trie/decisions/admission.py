"""Prompts that are answered together: admitted as there is room, handed out in order or as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from token_trie.decisions.request import Batched, Request
from token_trie.decisions.runner import begin, run
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


Prompted: TypeAlias = tuple[Prompt, Callable[[], Request[R]]]
"""A prompt, and what reads the request that stands behind it."""


def paired(
    prompts: Iterable[Prompt], sets: Iterable[ChoicesLike], read: Callable[[ChoicesLike], Request[R]]
) -> Iterator[Prompted[R]]:
    """Pair prompts with requests for one of their sets, as they come; ArgumentError where there are more of one."""
    if isinstance(prompts, Sized) and isinstance(sets, Sized) and len(prompts) != len(sets):
        raise ArgumentError(f"sets: {len(sets):,}, where there are {len(prompts):,} prompts")
    return _pair(iter(prompts), iter(sets), read)


def _pair(
    prompts: Iterator[Prompt], sets: Iterator[ChoicesLike], read: Callable[[ChoicesLike], Request[R]]
) -> Iterator[Prompted[R]]:
    n, none = 0, object()
    for n, prompt in enumerate(prompts, 1):
        choices = next(sets, none)
        if choices is none:
            raise ArgumentError(f"sets: {n - 1:,}, where there are at least {n:,} prompts")
        yield prompt, partial(read, choices)
    if next(sets, none) is not none:
        raise ArgumentError(f"sets: at least {n + 1:,}, where there are {n:,} prompts")


class Admission(Generic[R]):
    """Prompts with their requests, each with its position; at most `WINDOW` of them are held at a time."""

    def __init__(self, llm: Llama, batch: Batch | Sequential, requests: Iterable[Prompted[R]]) -> None:
        self._llm = llm
        self._batch = batch
        self._requests = enumerate(requests)
        self._failed: BaseException | None = None  # what the prompts themselves ended with
        self._under_way: dict[int, tuple[int, Batched[R]]] = {}  # with their positions, by ticket
        self._done: dict[int, R | TokenTrieError] = {}  # by position
        self._is_over = False

    def results(self, in_order: bool) -> Iterator[tuple[int, R | TokenTrieError]]:
        """Iterate over positions and results."""
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
        # Whoever answers alone has nothing to choose from; and who waits is not to wait for slow prompts.
        window = 1 if isinstance(self._batch, Sequential) else WINDOW
        while not self._is_over and len(self._under_way) + len(self._done) < window:
            if self._under_way and time.monotonic() > until:
                return
            try:
                position, (prompt, read) = next(self._requests)
            except StopIteration:
                self._is_over = True
            except Exception as error:
                self._is_over, self._failed = True, error
            else:
                try:
                    self._begin(position, prompt, read)
                except TokenTrieError as error:
                    self._batch.require_open()
                    self._done[position] = error
                except Exception as error:  # of the prompt's or the set's own code
                    self._is_over, self._failed = True, error

    def _begin(self, position: int, prompt: Prompt, read: Callable[[], Request[R]]) -> None:
        request = read()
        if isinstance(self._batch, Sequential):
            self._done[position] = self._batch.call(lambda: run(self._llm, prompt, request))
            return
        with lease(self._llm):
            batched = begin(self._llm, prompt, request, self._batch.n_ctx)
        self._submit(self._batch, position, batched)

    def _submit(self, batch: Batch, position: int, batched: Batched[R]) -> None:
        self._under_way[batched.submit(batch)] = position, batched

    def _wait(self) -> None:
        assert isinstance(self._batch, Batch)
        answer = self._batch.next()
        if answer is None:
            return
        position, batched = self._under_way.pop(answer.ticket)
        try:
            if answer.error is not None:
                raise answer.error
            told = batched.read(answer)
            if isinstance(told, Batched):
                self._submit(self._batch, position, told)
            else:
                self._done[position] = told
        except TokenTrieError as error:
            self._batch.require_open()
            self._done[position] = error
