"""Examples: states with known answers, which a model reads before the state of a question."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

from token_trie.arrays import Ints
from token_trie.decisions.gold import listed, read_gold
from token_trie.errors import ArgumentError
from token_trie.native.options import check_counts
from token_trie.questions.question import Question, state_text
from token_trie.sets.lru import Memory

_MAX_QUESTIONS = 16
"""Maximum number of questions in the cache of examples."""


class Shot(NamedTuple):
    """A state, and the position of its correct option."""

    state: str
    position: int


@dataclass(frozen=True, eq=False)
class Examples:
    """States with known answers, which the model reads before the state of a question.

    Parameters
    ----------
    states : sequence of states
        Each as for `decide`.
    gold : sequence
        The right answer for each state: a value of the question, or its name.
    n_each : int
        Number of examples for each answer. The first ones are taken. They are the same for all states, and are
        evaluated once.

    Raises
    ------
    ArgumentError
        A state is not valid, or the numbers of states and answers differ.
    """

    states: Sequence[object]
    gold: Sequence[Any]
    n_each: int = 1

    def __post_init__(self) -> None:
        check_counts(n_each=self.n_each)
        if isinstance(self.states, (str, bytes)) or not isinstance(self.states, Sequence):
            raise ArgumentError(f"states: {type(self.states).__name__} where a list of states belongs")
        if not self.states:
            raise ArgumentError("states: none given")
        object.__setattr__(self, "states", tuple(str(state_text(state)) for state in self.states))
        object.__setattr__(self, "gold", listed(self.gold, "gold"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle only the arguments."""
        return Examples, (self.states, self.gold, self.n_each)

    def of(self, question: Question, names: Sequence[str]) -> tuple[Shot, ...]:
        """Return the examples before a question, the options taking turns; ArgumentError for an answer that is none."""
        values, n = [*question.values, *([None] if len(names) > len(question.values) else [])], len(self.states)
        # By identity (the values are kept): different values can print alike, and equal ones have other names.
        key = tuple(names), tuple(map(id, values))
        return self._read.get(key, 1, lambda: (self._shots(read_gold(self.gold, n, names, values)), values))[0]

    @cached_property
    def _read(self) -> Memory[tuple[tuple[Shot, ...], Sequence[Any]]]:
        return Memory(_MAX_QUESTIONS, _MAX_QUESTIONS)

    def _shots(self, positions: Ints) -> tuple[Shot, ...]:
        """Return the first `n_each` examples of each option."""
        seen, taken = Counter[int](), list[tuple[int, Shot]]()
        for state, position in zip(self.states, positions.tolist(), strict=True):
            if seen[position] < self.n_each:
                taken.append((seen[position], Shot(str(state), position)))
            seen[position] += 1
        return tuple(shot for _, shot in sorted(taken, key=lambda one: (one[0], one[1].position)))


def digest_of(shots: Sequence[Shot]) -> str:
    """Return the digest of examples."""
    return sha256(json.dumps(shots).encode("utf-8", "surrogatepass")).hexdigest()
