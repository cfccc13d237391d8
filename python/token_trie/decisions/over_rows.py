"""Decisions about many rows, calibrated by what the model says to all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from token_trie.decisions.bound import Reader, check_finite
from token_trie.decisions.calibration import Added
from token_trie.decisions.calibrator import BatchPrior, Floats
from token_trie.decisions.choice import BoundChoice, ChoiceRequest, Seen
from token_trie.decisions.decision import Decision
from token_trie.decisions.request import Batched, Bound, Prefix, Request
from token_trie.errors import TokenTrieError
from token_trie.llama.batch import Batch
from token_trie.llama.query import Answer
from token_trie.llama.stream import Stream

T = TypeVar("T")
R = TypeVar("R")

LEAST = 8
"""Rows that tell too little by themselves."""


class Undecided(NamedTuple):
    """The scores of a row's choices."""

    bound: BoundChoice
    seen: Seen

    @property
    def log_shares(self) -> Floats:
        """The logarithm of each choice's probability, among all."""
        leaves = self.seen.answer.logprobs
        return self.bound.choices.aligned(leaves - np.logaddexp.reduce(leaves))

    def decide(self, weights: Floats) -> Decision[Any]:
        """Decide, with what is added to the score of each choice."""
        added = Added("batch", weights[self.bound.choices.firsts()])
        return self.bound.decide(self.seen, added)


@dataclass(frozen=True)
class UndecidedRequest(Request[Undecided]):
    """A request for a choice whose calibration is not known yet."""

    request: ChoiceRequest

    @classmethod
    def of(cls, request: ChoiceRequest) -> UndecidedRequest:
        """Let one score all its choices."""
        return cls(replace(request, options=replace(request.options, calibration=None, probabilities=True)))

    def bind(self, reader: Reader, prefix: Prefix) -> _BoundUndecided:
        """Bind it to what it stands behind."""
        return _BoundUndecided(self.request.bind(reader, prefix))


class _BoundUndecided(Bound[Undecided], Batched[Undecided]):
    def __init__(self, bound: BoundChoice) -> None:
        self.tokens = bound.tokens
        self._bound = bound

    def run(self, stream: Stream) -> Undecided:
        return self._undecided(self._bound.find(stream))

    def batched(self) -> _BoundUndecided:
        return self

    def submit(self, batch: Batch) -> int:
        return self._bound.submit(batch)

    def read(self, answer: Answer) -> Undecided:
        return self._undecided(self._bound.found(answer))

    def _undecided(self, seen: Seen) -> Undecided:
        check_finite(self._bound.choices.of_left(seen.answer.logprobs, -np.inf))
        return Undecided(self._bound, seen)


def decided(
    results: Iterator[tuple[int, Undecided | TokenTrieError]], prior: BatchPrior
) -> Iterator[tuple[int, Decision[Any] | TokenTrieError]]:
    """Decide about rows of one set, by windows; positions and errors go through."""
    total, n = np.zeros(0), 0
    for window in windows(results, prior.window):
        shares = [one.log_shares for _, one in window if isinstance(one, Undecided)]
        if not shares:
            yield from window  # type: ignore[misc]
            continue
        total = (total if n else np.zeros(len(shares[0]))) + np.exp(shares).sum(axis=0)
        n += len(shares)
        first = next(one for _, one in window if isinstance(one, Undecided))
        left = first.bound.choices.left()
        weights = np.zeros(len(total))
        weights[left] = prior.shift([first.bound.choices.value(i) for i in left.tolist()])
        if n >= LEAST:
            weights -= np.log(np.maximum(total / n, np.finfo(np.float64).tiny))
        for position, one in window:
            yield position, one.decide(weights) if isinstance(one, Undecided) else one


def windows(results: Iterator[T], n: int) -> Iterator[list[T]]:
    """Cut what comes into lists of so many."""
    while window := list(itertools.islice(results, n)):
        yield window
