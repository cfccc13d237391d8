"""Rows whose answers are known, which a model reads before the one that it is asked about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from token_trie.decisions.gold import read_gold
from token_trie.decisions.learn import import_sklearn
from token_trie.decisions.questions.question import Question
from token_trie.decisions.questions.wording import state_text
from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_counts


class Shot(NamedTuple):
    """A state, and the position of the option that is right of it."""

    state: str
    place: int


@dataclass(frozen=True, eq=False)
class Examples:
    """States with their right answers, which a model reads before the state that it is asked about.

    Parameters
    ----------
    states : sequence of states
        Each as of `decide`.
    gold : sequence
        The right answer of each: a value of the question, or its name.
    n_each : int
        So many of each answer, the first that there are, stand before the state. They are the same for all states, and
        are evaluated once.
    nearest : int, optional
        In place of these so many that have most words in common with the state (cosine of TF-IDF, by scikit-learn), the
        nearest last, but for the state itself. They are evaluated for each state anew, and there is no contextual prior
        then, as it would be another for each state.

    Raises
    ------
    ArgumentError
        A state is none; there are not as many answers as states.
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
        object.__setattr__(self, "gold", list(self.gold))

    def of(self, question: Question, names: Sequence[str]) -> Shots:
        """Return them as those of a question; ArgumentError for an answer that is none of its options."""
        values = [*question.values, *([None] if len(names) > len(question.values) else [])]
        gold = read_gold(self.gold, len(self.states), names, values)
        shots = [Shot(str(state), int(place)) for state, place in zip(self.states, gold, strict=True)]
        return Shots(shots, self.n_each, self.nearest)


class Shots:
    """Examples of a question's options.

    Attributes
    ----------
    digest : str
        Of all that they are.
    """

    def __init__(self, shots: Sequence[Shot], n_each: int, nearest: int | None) -> None:
        self._shots = shots
        self._nearest = nearest
        places = [shot.place for shot in shots]
        rounds = [places[:i].count(place) for i, place in enumerate(places)]
        order = sorted(range(len(shots)), key=lambda i: (rounds[i], places[i]))
        self._fixed = tuple(shots[i] for i in order if rounds[i] < n_each)
        told = json.dumps([self._fixed, nearest, shots if nearest else None])
        self.digest = sha256(told.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def are_the_same(self) -> bool:
        """Whether they are, for all states."""
        return self._nearest is None

    def before(self, state: str | None) -> tuple[Shot, ...]:
        """Return those that stand before a state, or where there is none."""
        if self._nearest is None or state is None:
            return self._fixed
        near = self._index.near(state)
        found = [i for i in near if self._shots[i].state != state][: self._nearest]
        return tuple(self._shots[i] for i in reversed(found))

    def has(self, state: str) -> bool:
        """Tell whether a state is answered by itself, standing before it."""
        return self._nearest is None and any(shot.state == state for shot in self._fixed)

    @cached_property
    def _index(self) -> _Index:
        return _Index([shot.state for shot in self._shots])


class _Index:
    """Texts by their words."""

    def __init__(self, texts: Sequence[str]) -> None:
        # Any run of letters is a word, so that no text has none.
        self._words = import_sklearn("feature_extraction.text").TfidfVectorizer(
            sublinear_tf=True, token_pattern=r"(?u)\S+"
        )
        self._rows = self._words.fit_transform([text or " " for text in texts])

    def near(self, text: str) -> list[int]:
        """Return the positions of all texts, the nearest first; of alike ones the first."""
        likeness = (self._rows @ self._words.transform([text]).T).toarray()[:, 0]
        order: list[int] = np.argsort(-likeness, kind="stable").tolist()
        return order
