"""Results of `choose`."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.decisions.bound_choices import BoundChoices
from token_trie.errors import ArgumentError
from token_trie.native.options import check_counts
from token_trie.sets.trie import TokenTrie

T = TypeVar("T")

Source: TypeAlias = Literal["sum", "proof", "bound", "steps", "head"]
"""Where an answer comes from. sum: all answers were scored. proof: a search, which has proved that none is better.
bound: a search that ended before; `gap` says how much better another could be. steps: each token was decided alone.
head: a classifier on the hidden state."""

LOW_MASS = 0.01
"""Masses below this mean that the set does not fit."""


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """An answer that was considered."""

    value: T = field(compare=False)
    text: str
    index: int
    """Position among the choices; for a `TokenTrie`, the index of the leaf."""
    logprob: float
    """Natural logarithm of the answer's probability."""
    share: float | None = field(default=None, kw_only=True)
    """With `Contextual`, in a set that is too large to be scored whole: the calibrated probability, under the condition
    that one of the answers that the search found is right. In the answer to a question: under the condition that one of
    those that were returned is."""


@dataclass(frozen=True)
class Stats:
    """Cost of one decision."""

    n_prompt: int
    """Tokens of the prompt."""
    n_branches: int
    """Branch points passed: where two or more tokens were allowed."""
    n_forced: int
    """Forced tokens: those that were the only one allowed."""
    n_passes: int
    """Forward passes of the model after the prompt's."""
    prompt_ms: float
    """Time to evaluate the part of the prompt that was not in the context yet."""
    decide_ms: float
    """Time from the end of the prompt to the last token."""
    n_evaluated: int = 0
    """Nodes of the trie that were evaluated, in the modes that score whole answers."""


@dataclass(frozen=True)
class Decision(Generic[T]):
    """One answer.

    Attributes
    ----------
    value : object
        The choice as it was given: the text, the mapping's value, the Enum's member, or the number. For a `TokenTrie`,
        the name of the leaf.
    text : str
        The text of the choice.
    index : int
        Position among the choices; for a `TokenTrie`, the index of the leaf.
    tokens : tuple of int
        The tokens of the answer.
    logprob : float or None
        Exact, aligned and beam: natural logarithm of the model's own probability for the whole answer. None in greedy
        and sampled mode, which do not compute it.
    branch_logprob : float or None
        Greedy and sampled: natural logarithm of the product of the probabilities of the chosen tokens at all branch
        points, each renormalized over the allowed tokens. It does not include temperature and top_p. 0 if there is only
        one choice.
    stats : Stats
        What the decision cost.
    candidates : tuple of Candidate
        Exact and beam: the n_best best answers, by the probability of the whole answer.
    gap : float
        Exact and beam: by how many nats an answer that is no candidate could at most be above the last candidate. 0: it
        is proved that none is.
    lead : float or None
        Exact and beam: by how many nats, at least, the answer is above every other answer. Negative if that is not
        proved; inf if there is no other answer. With a calibration, the difference of the calibrated scores.
    probabilities : ndarray of float64, shape (n_choices,), or None
        On request, and in aligned mode: the probability of each choice, in the order given, under the condition that
        one of the choices is the answer. Equal choices have the same probability. The probabilities of different
        answers sum to 1.
    calibration : str
        "raw": the probabilities are the model's own, renormalized over the set. Otherwise the kind of calibration.
    mass : float or None
        With probabilities: the model's own probability for all choices together. If it is near 0, none of the choices
        fits.
    thought : str or None
        With `think`: the text before the marker.
    """

    value: T = field(compare=False)
    text: str
    index: int
    tokens: tuple[int, ...]
    logprob: float | None
    stats: Stats
    _choices: BoundChoices[T] = field(compare=False, repr=False)
    candidates: tuple[Candidate[T], ...] = ()
    gap: float = 0.0
    lead: float | None = None
    probabilities: npt.NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    mass: float | None = None
    branch_logprob: float | None = None
    calibration: str = "raw"
    thought: str | None = None
    _mass_max: float = field(default=1.0, compare=False, repr=False)

    @property
    def trie(self) -> TokenTrie:
        """The set."""
        return self._choices.trie

    @property
    def proved(self) -> bool:
        """Whether the candidates are proved to be the most probable answers; False in greedy and sampled mode."""
        return bool(self.candidates) and self.gap == 0

    @property
    def source(self) -> Source:
        """Where the answer comes from; `calibration` says what was made of its probabilities."""
        if self.probabilities is not None:
            return "sum"
        if not self.candidates:
            return "steps"
        return "proof" if self.proved else "bound"

    @property
    def entropy(self) -> float:
        """Entropy of the probabilities, in nats: 0 if the model is certain, ln(n) if n answers are equally probable."""
        p = self._known()[self._choices.firsts()]
        return float(-np.sum(p[p > 0] * np.log(p[p > 0]))) + 0.0

    @property
    def margin(self) -> float:
        """Difference of the two largest probabilities."""
        return margin_of(self._known()[self._choices.firsts()])

    @property
    def fits(self) -> bool | None:
        """Whether `mass` is 1 % or more; None if that is not known.

        If False, the model would rather write something else, and all choices may be wrong. It helps to put examples
        into the prompt, each followed by its answer.
        """
        if self.mass is not None:
            return self.mass >= LOW_MASS
        if self.candidates and math.exp(self.candidates[0].logprob) >= LOW_MASS:
            return True
        return False if self._mass_max < LOW_MASS else None

    def probability(self, choice: object) -> float:
        """Return the probability of a choice, given as its value or its text.

        Raises
        ------
        ArgumentError
            It is not one of the choices, or there are no probabilities.
        """
        return float(self._known()[self._choices.find(choice)])

    def top(self, k: int) -> list[tuple[T, float]]:
        """Return the k most probable answers with their probabilities, best first; equal ones by their tokens."""
        check_counts(0, k=k)
        p = self._known()
        return [(self._choices.value(i), float(p[i])) for i in self._ranked()[:k]]

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes for JSON; unknown and infinite figures are None, values that JSON lacks their texts."""
        choices = self._choices

        def entry(index: int, value: Any, text: str, **figures: float) -> dict[str, Any]:
            return {"value": _for_json(value, text), "text": text, "index": index, **figures}

        whole: dict[str, Any] = {
            **entry(self.index, self.value, self.text),
            "tokens": list(self.tokens),
            "logprob": None if self.logprob is None else _finite(self.logprob),
            "branch_logprob": self.branch_logprob,
            "stats": dataclasses.asdict(self.stats),
            "candidates": [
                entry(c.index, c.value, c.text, logprob=_finite(c.logprob))
                | ({} if c.share is None else {"share": c.share})
                for c in self.candidates
            ],
            "gap": _finite(self.gap),
            "proved": self.proved,
            "source": self.source,
            "lead": None if self.lead is None else _finite(self.lead),
            "fits": self.fits,
            "calibration": self.calibration,
            "thought": self.thought,
            **dict.fromkeys(("probabilities", "mass", "entropy", "margin", "ranked")),
        }
        if self.probabilities is not None:
            p = self.probabilities
            ranked = [entry(i, choices.value(i), choices.text(i), probability=float(p[i])) for i in self._ranked()]
            whole |= {"probabilities": p.tolist(), "mass": self.mass}
            whole |= {"entropy": self.entropy, "margin": self.margin, "ranked": ranked}
        return whole

    def __str__(self) -> str:
        return self.text

    def _known(self) -> npt.NDArray[np.float64]:
        if self.probabilities is None:
            raise ArgumentError("no probabilities: ask for them with choose(…, probabilities=True)")
        return self.probabilities

    def _ranked(self) -> list[int]:
        firsts = self._choices.firsts()
        order: list[int] = firsts[self._choices.ranked(self._known()[firsts])].tolist()
        return order


def margin_of(shares: npt.NDArray[np.float64]) -> float:
    """Return the difference of the two largest; a single one is its own."""
    two = np.sort(shares)[-2:]
    return float(two[-1] - (two[0] if len(two) > 1 else 0.0))


def _for_json(value: Any, text: str) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return text
    return value


def _finite(value: float) -> Any:
    return value if math.isfinite(value) else None
