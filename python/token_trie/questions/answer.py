"""Answers to questions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from token_trie.arrays import Floats
from token_trie.decisions.calibration import CalibrationName
from token_trie.decisions.decision import Candidate
from token_trie.questions.question import Choice, Predicate, Question

T = TypeVar("T")

Calibration: TypeAlias = Literal["raw", CalibrationName, "running", "trained", "fitted"]
"""How probabilities were made from scores.

raw
    The model's own probabilities, renormalized over the options.
contextual
    Divided by the probabilities without a state, and tempered; see `Form`.
batch
    Divided by the mean probabilities over many states, and tempered.
running
    Like batch, over all states that a server has answered.
trained
    The model was trained for decisions; the temperature comes from its file.
fitted
    By a `Calibration` that was fitted on rows.
"""


@dataclass(frozen=True)
class QuestionStats:
    """The cost of an answer."""

    n_prompt: int
    """Tokens of the state and the question."""
    n_evaluated: int
    """Answer tokens that the model evaluated."""


@dataclass(frozen=True)
class Answered(Generic[T]):
    """An answer.

    Attributes
    ----------
    value : object
        The most probable value of the question, as it was given; if several are equal, the first one.
    probabilities : dict
        The probability of each value, in the order given. They sum to 1.
    mass : float or None
        The model's own probability that it would write one of the options' texts, before any calibration. If it is near
        0, the model would write something else; but it is always small for long descriptions. None if a head on the
        hidden state has answered.
    calibration : {"raw", "contextual", "batch", "running", "trained", "fitted"}
        How the probabilities were made.
    stats : QuestionStats
        What the answer cost.
    instead : str or None
        With ``instead=True``: what the model would write without a constraint, at most one line, such as a refusal or
        another answer. A line break stands for a blank line; the text is empty if the model would end.
    thought : str or None
        The model's thought, if it thought first.
    profile : str or None
        The name of the model's `Profile` by which it was asked; None if a form was given, or it was trained to decide.
    """

    value: T
    probabilities: dict[T, float]
    mass: float | None
    calibration: Calibration
    stats: QuestionStats = field(compare=False, repr=False)
    instead: str | None = field(default=None, kw_only=True)
    thought: str | None = field(default=None, kw_only=True)
    profile: str | None = field(default=None, kw_only=True, compare=False)

    @property
    def confidence(self) -> float:
        """How far the best probability is above an equal share, from 0 to 1; 1 if there is only one option."""
        n = len(self.probabilities)
        return 1.0 if n == 1 else max(0.0, (self.probabilities[self.value] - 1 / n) / (1 - 1 / n))


@dataclass(frozen=True)
class ChoiceAnswer(Answered[T]):
    """The answer to a `Choice`.

    Attributes
    ----------
    other : float or None
        With `Choice.other`: the probability of "none of these", against all options together.
    candidates : tuple of Candidate
        With `Choice.top`: the members that were returned, best first, with their indices in the set, the model's own
        `logprob` and the `share` that `probabilities` sum up by value; these are relative to one another. `mass` is
        then that of all members that were found.
    gap : float
        With `Choice.top`: by how many nats a member that was not returned could at most be above the last one that was;
        0 if all members were scored, and inf if a prior is subtracted from the scores of those that were found.
    rest : float
        With `Choice.top`: the model's own probability of all members that were not found is at most this.
    """

    other: float | None = None
    candidates: tuple[Candidate[T], ...] = field(default=(), compare=False, repr=False)
    gap: float = 0.0
    rest: float = 0.0

    @property
    def proved(self) -> bool:
        """Whether no other option can be better than those that were returned."""
        return self.gap == 0


@dataclass(frozen=True)
class PredicateAnswer(Answered[bool]):
    """The answer to a `Predicate`."""

    @property
    def probability(self) -> float:
        """The probability of True."""
        return self.probabilities[True]


@dataclass(frozen=True)
class ScoreAnswer(Answered[int]):
    """The answer to a `Score`; the value is the number of a level."""

    legend: dict[int, str] = field(default_factory=dict, repr=False)
    """The levels by their numbers."""

    @property
    def score(self) -> float:
        """The mean level."""
        return sum(level * p for level, p in self.probabilities.items())

    @property
    def confidence(self) -> float:
        """How close the levels are to the best one, from 0 to 1; 1 if the best level has all the probability."""
        n = len(self.probabilities)
        even = sum(abs(level - (n - 1) / 2) for level in range(n)) / n
        return max(0.0, 1 - sum(p * abs(level - self.value) for level, p in self.probabilities.items()) / even)


def make_answer(
    question: Question,
    probabilities: Floats,
    mass: float | None,
    calibration: Calibration,
    stats: QuestionStats,
    thought: str | None = None,
) -> Answered[Any]:
    """Return the answer to a question.

    Parameters
    ----------
    probabilities : ndarray of float64
        Probabilities of the values, and of "none of these" if offered.
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
