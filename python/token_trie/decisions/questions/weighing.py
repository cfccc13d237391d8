"""From scores of texts to probabilities of options."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Weighing:
    """Options, by the texts that stand for them.

    Options of the same texts are one answer, and share its probability evenly. Of a text that several answers have,
    each has an even share.

    Parameters
    ----------
    options : sequence of sequences of str
        The texts of each.
    """

    def __init__(self, options: Sequence[Sequence[str]]) -> None:
        answers = {texts: i for i, texts in enumerate(dict.fromkeys(map(frozenset, options)))}
        places = {text: i for i, text in enumerate(sorted({text for texts in options for text in texts}))}
        self.texts = tuple(places)
        """Each once, sorted."""
        self._answer_of = np.array([answers[frozenset(texts)] for texts in options])
        # Answer by answer.
        self._places = np.array([places[text] for texts in answers for text in sorted(texts)])
        self._n_texts = np.array([len(texts) for texts in answers])
        self._begins = np.cumsum(self._n_texts) - self._n_texts
        self._n_sharing = np.bincount(self._places)

    def log_masses(self, logprobs: Floats) -> Floats:
        """Add up the probabilities of each answer's texts; all are natural logarithms."""
        shared = (logprobs - np.log(self._n_sharing))[self._places]
        return _reduced(np.logaddexp, shared, self._begins)

    def lengths(self, lengths: Floats) -> Floats:
        """Return the mean number of tokens of each answer's texts."""
        means: Floats = _reduced(np.add, lengths[self._places], self._begins) / self._n_texts
        return means

    def of_options(self, weights: Floats) -> Floats:
        """Return the log-weight of each option, by those of the answers."""
        shares: Floats = (weights - np.log(np.bincount(self._answer_of)))[self._answer_of]
        return shares

    def probabilities(self, weights: Floats) -> Floats:
        """Return the probability of each option, by the log-weights of the answers."""
        shares: Floats = (shared(weights) / np.bincount(self._answer_of))[self._answer_of]
        return shares


def shared(weights: Floats) -> Floats:
    """Return the probabilities that log-weights stand for."""
    if not np.isfinite(weights.max()):
        weights = np.zeros_like(weights)  # the model gives none of them anything
    p: Floats = np.exp(weights - weights.max())
    p /= math.fsum(p)  # whatever their order
    return p


def _reduced(ufunc: np.ufunc, values: Floats, begins: npt.NDArray[np.int64]) -> Floats:
    """Reduce runs of values, which begin there."""
    return np.asarray(ufunc.reduceat(values, begins), np.float64)


def contextual(raw: Floats, prior: Floats, lengths: Floats, temperature: float) -> Floats:
    """Return how much more a state gives each answer than no state does, for every text to be compared with others.

    A difference is a sum over tokens, and spreads as the root of their number: by that it is divided, of each answer
    for itself, so that the odds of two do not depend on a third whose texts are no part of theirs.
    """
    # What has none without a state has none with one, or is a rounding.
    known = np.where(np.isneginf(prior), raw, prior)
    differences = np.subtract(raw, known, out=np.full_like(raw, -np.inf), where=np.isfinite(raw))
    weights: Floats = differences / (temperature * np.sqrt(lengths))
    return weights
