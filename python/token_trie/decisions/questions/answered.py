"""What questions are answered with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.decisions.questions.question import Choice, Predicate, Question

T = TypeVar("T")
Floats = npt.NDArray[np.float64]

Calibration: TypeAlias = Literal["raw", "contextual", "batch", "running", "trained", "fitted"]
"""How scores became probabilities.

raw
    They are the model's own, renormalized over the options.
contextual
    They were divided by what the question gives the options without a state, and tempered; see `Form`.
batch
    They were divided by what the question gives the options in the mean over many states, likewise.
running
    Likewise, of all states that a server has been asked about.
trained
    The model was trained for decisions, and its file says by what they are tempered.
fitted
    By a `Calibration` that was fitted on rows.
"""

LOW_MASS = 0.01
"""Of options that are said not to fit."""


@dataclass(frozen=True)
class QuestionStats:
    """What an answer took."""

    n_prompt: int
    """Tokens of the state and the question."""
    n_evaluated: int
    """Tokens of answers that the model was asked about."""


@dataclass(frozen=True)
class Answered(Generic[T]):
    """An answer.

    Attributes
    ----------
    value : object
        The most probable of those that there may be, as it was given; of equal ones the first.
    probabilities : dict
        Of each, in the order given. They sum up to 1.
    mass : float or None
        The model's own probability that what it writes is one of their texts, before any calibration. Near 0, none of
        them is what it would write; of long descriptions that is the rule, and says little. None where a head has
        decided by the hidden state alone.
    calibration : {"raw", "contextual", "batch", "running", "trained", "fitted"}
        How the probabilities were made.
    stats : QuestionStats
        What it took.
    instead : str or None
        Where it was asked for: what the model would write itself, a line of it at most: a refusal, another answer; a
        line break for a blank line, and empty where it would end.
    thought : str or None
        Where the model thought first: what it wrote.
    """

    value: T
    probabilities: dict[T, float]
    mass: float | None
    calibration: Calibration
    stats: QuestionStats = field(compare=False, repr=False)
    instead: str | None = field(default=None, kw_only=True)
    thought: str | None = field(default=None, kw_only=True)

    @property
    def confidence(self) -> float:
        """How far the best is above an even share, from 0 to 1; 1 where there is no other."""
        n = len(self.probabilities)
        return 1.0 if n == 1 else max(0.0, (self.probabilities[self.value] - 1 / n) / (1 - 1 / n))


@dataclass(frozen=True)
class ChoiceAnswer(Answered[T]):
    """What a `Choice` is answered with.

    Attributes
    ----------
    other : float or None
        Where it was offered: the probability of "none of these", against all options together.
    """

    other: float | None = None


@dataclass(frozen=True)
class PredicateAnswer(Answered[bool]):
    """What a `Predicate` is answered with."""

    @property
    def probability(self) -> float:
        """Of True."""
        return self.probabilities[True]


@dataclass(frozen=True)
class ScoreAnswer(Answered[int]):
    """What a `Score` is answered with; the value is the number of a level."""

    legend: dict[int, str] = field(default_factory=dict, repr=False)
    """The levels by their numbers."""

    @property
    def score(self) -> float:
        """The mean level."""
        return sum(level * p for level, p in self.probabilities.items())

    @property
    def confidence(self) -> float:
        """How near the levels are to the best, against levels that are all alike: from 0 to 1."""
        n = len(self.probabilities)
        even = sum(abs(level - (n - 1) / 2) for level in range(n)) / n
        return max(0.0, 1 - sum(p * abs(level - self.value) for level, p in self.probabilities.items()) / even)


def answer(
    question: Question,
    probabilities: Floats,
    mass: float | None,
    calibration: Calibration,
    stats: QuestionStats,
    thought: str | None = None,
) -> Answered[Any]:
    """Return what a question is answered with.

    Parameters
    ----------
    probabilities : ndarray of float64
        Of its values; and of none of these, where that is offered.
    """
    n = len(question.values)
    shares = probabilities[:n] / math.fsum(probabilities[:n])
    value: Any = question.values[int(shares.argmax())]
    common: dict[str, Any] = {
        "value": value,
        "probabilities": dict(zip(question.values, shares.tolist(), strict=True)),
        "mass": mass,
        "calibration": calibration,
        "stats": stats,
        "thought": thought,
    }
    if isinstance(question, Choice):
        return ChoiceAnswer(other=float(probabilities[n]) if question.other else None, **common)
    if isinstance(question, Predicate):
        return PredicateAnswer(**common)
    return ScoreAnswer(legend=dict(enumerate(option.name for option in question.wording)), **common)
