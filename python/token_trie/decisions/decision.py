"""What comes back from `choose`."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.decisions.bound import BoundChoices
from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_counts
from token_trie.sets.trie import TokenTrie

T = TypeVar("T")

LOW_MASS = 0.01
"""Of a set that is said not to fit."""


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """An answer that was considered."""

    value: T = field(compare=False)
    text: str
    index: int
    """Its position among the choices; of a `TokenTrie`, the leaf's."""
    logprob: float
    """Natural logarithm of its probability."""


@dataclass(frozen=True)
class Stats:
    """What one decision took."""

    n_prompt: int
    """Tokens of the prompt."""
    n_branches: int
    """Branch points passed: where two or more tokens were allowed."""
    n_forced: int
    """Tokens that the set left no choice about."""
    n_passes: int
    """Forward passes of the model after the prompt's."""
    prompt_ms: float
    """Time to evaluate what the context did not hold of the prompt."""
    decide_ms: float
    """Time from there to the last token."""
    n_evaluated: int = 0
    """Nodes of the trie that the model was asked about, in the modes that score whole answers."""


@dataclass(frozen=True)
class Decision(Generic[T]):
    """One answer.

    Attributes
    ----------
    value : object
        The choice as it was given: the text, what a mapping gives for it, the Enum's member, the number; of a
        `TokenTrie`, the leaf's name.
    text : str
        What the model chose to write.
    index : int
        Its position among the choices; of a `TokenTrie`, the leaf's.
    tokens : tuple of int
        Its tokens.
    logprob : float or None
        Exact, aligned and beam: natural logarithm of the model's own probability for the whole answer. None of greedy
        and sampled ones, which do not ask for it.
    branch_logprob : float or None
        Greedy and sampled: natural logarithm of the product, over the branch points passed, of the model's probability
        for what was taken, renormalized over what was allowed; temperature and top_p are left out of it; 0 for a single
        choice.
    stats : Stats
        What it took.
    candidates : tuple of Candidate
        Exact and beam: the n_best best answers, by whole probability.
    gap : float
        Exact and beam: nats that an answer left out may be above the last candidate at most. 0: proved that none is.
    proved : bool
        Exact and beam: whether that is 0.
    lead : float or None
        Exact and beam: nats by which it is above every other answer, at least; negative as far as that is not proved,
        inf if there is no other. Of calibrated scores where these decided.
    probabilities : ndarray of float64, shape (n_choices,), or None
        Where they were asked for, and in aligned mode: of each choice, in the order given, that it is the answer, given
        that one of them is. Equal choices have the same one; those of different answers sum up to 1.
    calibration : str
        "raw": probabilities are the model's own, renormalized over the set; else the kind of calibration they are of.
    mass : float or None
        With probabilities: the model's own probability for the set. Near 0, none of the answers fits.
    thought : str or None
        With `think`: what the model wrote before the marker.
    trie : TokenTrie
        The set.
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
        """Whether the candidates are proved to be the most probable answers; of drawn and greedy ones False."""
        return bool(self.candidates) and self.gap == 0

    @property
    def entropy(self) -> float:
        """Of the probabilities, in nats: 0 if the model is certain, ln(n) if all n answers are alike to it."""
        p = self._known()[self._choices.firsts()]
        return float(-np.sum(p[p > 0] * np.log(p[p > 0]))) + 0.0

    @property
    def margin(self) -> float:
        """Difference of the two largest probabilities."""
        two = np.sort(self._known()[self._choices.firsts()])[-2:]
        return float(two[-1] - (two[0] if len(two) > 1 else 0.0))

    @property
    def fits(self) -> bool | None:
        """Whether the model gives the set 1 % or more of what it could write here; None where that is not known.

        Where it does not, the answer is the least bad of what may all be wrong. Examples in the prompt, each followed
        by its answer, help.
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
            It is no choice, or there are no probabilities.
        """
        return float(self._known()[self._choices.find(choice)])

    def top(self, k: int) -> list[tuple[T, float]]:
        """Return the k most probable answers with their probabilities, best first; of equal ones by their tokens."""
        check_counts(0, k=k)
        p = self._known()
        return [(self._choices.value(i), float(p[i])) for i in self._ranked()[:k]]

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON: what is not finite or not known is None, values that JSON has not are their texts."""
        choices = self._choices

        def entry(index: int, value: Any, text: str, **figures: float) -> dict[str, Any]:
            return {"value": _for_json(value, text), "text": text, "index": index, **figures}

        whole: dict[str, Any] = {
            **entry(self.index, self.value, self.text),
            "tokens": list(self.tokens),
            "logprob": None if self.logprob is None else _finite(self.logprob),
            "branch_logprob": self.branch_logprob,
            "stats": dataclasses.asdict(self.stats),
            "candidates": [entry(c.index, c.value, c.text, logprob=_finite(c.logprob)) for c in self.candidates],
            "gap": _finite(self.gap),
            "proved": self.proved,
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
        order: list[int] = firsts[np.lexsort((self.trie.core.leaf_nodes(), -self._known()[firsts]))].tolist()
        return order


def _for_json(value: Any, text: str) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return text
    return value


def _finite(value: float) -> Any:
    return value if math.isfinite(value) else None
