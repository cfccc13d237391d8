"""Examples: states with known answers, which a model reads before the state of a question."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from token_trie.decisions.gold import import_sklearn, listed, read_gold
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
    nearest : int, optional
        Instead: the number of examples that have most words in common with the state (cosine of TF-IDF, by
        scikit-learn), the nearest one last. The state itself is never an example. The examples are evaluated anew for
        each state. There is then no contextual prior, because it would differ for each state.

    Raises
    ------
    ArgumentError
        A state is not valid, or the numbers of states and answers differ.
    """

    states: Sequence[object]
    gold: Sequence[Any]
    n_each: int = 1
    nearest: int | None = None

    def __post_init__(self) -> None:
        check_counts(n_each=self.n_each)
        if self.nearest is not None:
            check_counts(nearest=self.nearest)
        if isinstance(self.states, (str, bytes)) or not isinstance(self.states, Sequence):
            raise ArgumentError(f"states: {type(self.states).__name__} where a list of states belongs")
        if not self.states:
            raise ArgumentError("states: none given")
        object.__setattr__(self, "states", tuple(str(state_text(state)) for state in self.states))
        object.__setattr__(self, "gold", listed(self.gold, "gold"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle only the arguments."""
        return Examples, (self.states, self.gold, self.n_each, self.nearest)

    def of(self, question: Question, names: Sequence[str]) -> Shots:
        """Return the examples of a question; ArgumentError for an answer that is not an option."""
        values, n = [*question.values, *([None] if len(names) > len(question.values) else [])], len(self.states)
        # By identity (the values are kept): different values can print alike, and equal ones have other names.
        key = tuple(names), tuple(map(id, values))
        return self._read.get(key, 1, lambda: (Shots(self, read_gold(self.gold, n, names, values)), values))[0]

    @cached_property
    def _read(self) -> Memory[tuple[Shots, Sequence[Any]]]:
        return Memory(_MAX_QUESTIONS, _MAX_QUESTIONS)

    @cached_property
    def near(self) -> Callable[[str], list[int]]:
        """Returns the positions of all examples, nearest to a state first."""
        return _ranking([str(state) for state in self.states])


class Shots:
    """Examples with the positions of their correct options; `digest` is that of all and of their settings.

    With `nearest`, they depend on the state.
    """

    def __init__(self, examples: Examples, positions: Iterable[int]) -> None:
        self._examples, self.nearest = examples, examples.nearest
        pairs = zip(examples.states, positions, strict=True)
        self._shots = [Shot(str(state), int(position)) for state, position in pairs]
        seen, fixed = Counter[int](), list[tuple[int, Shot]]()
        for shot in self._shots:
            if seen[shot.position] < examples.n_each:
                fixed.append((seen[shot.position], shot))
            seen[shot.position] += 1
        # Round-robin, in the order of the options.
        self._fixed = tuple(shot for _, shot in sorted(fixed, key=lambda one: (one[0], one[1].position)))
        self._states = {shot.state for shot in self._fixed}
        content = json.dumps([self._fixed, self.nearest, self._shots if self.nearest else None])
        self.digest = sha256(content.encode("utf-8", "surrogatepass")).hexdigest()

    def before(self, state: str | None) -> tuple[Shot, ...]:
        """Return the examples for a state; None: the absent state."""
        if self.nearest is None or state is None:
            return self._fixed
        found = [i for i in self._examples.near(state) if self._shots[i].state != state][: self.nearest]
        return tuple(self._shots[i] for i in reversed(found))

    def has(self, state: str) -> bool:
        """Return whether a state is itself one of the fixed examples."""
        return self.nearest is None and state in self._states


def _ranking(texts: Sequence[str]) -> Callable[[str], list[int]]:
    """Return a function that gives the positions of the texts, nearest to a text first (TF-IDF); ties in order."""
    # Any run of non-spaces is a word, so every text has one.
    words = import_sklearn("feature_extraction.text").TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\S+")
    rows = words.fit_transform([text or " " for text in texts])

    def near(text: str) -> list[int]:
        similarity = (rows @ words.transform([text]).T).toarray()[:, 0]
        order: list[int] = np.argsort(-similarity, kind="stable").tolist()
        return order

    return near
