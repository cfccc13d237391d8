"""Calibration without labels: what a model answers anyway is taken out, as the rows themselves show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from token_trie.decisions.calibrator import Base, Floats
from token_trie.errors import ArgumentError, CalibrationError
from token_trie.trust.fit import Fit
from token_trie.trust.options import FitKind
from token_trie.trust.own_parts import own_parts
from token_trie.trust.readings import Readings
from token_trie.trust.shares import log_softmax

LEAST_ROWS = 8
"""That tell something."""
_N_SHUFFLED = 20
"""As Fei et al. (2023) take."""


def fit_without_labels(
    readings: Readings, kind: FitKind, prior: Floats | None, shuffled: Readings | None, n_different: int
) -> Fit:
    """Fit to rows whose right classes are not known, so many of them different; as of `fit_readings`."""
    if kind in ("temperature", "bias", "head"):
        raise ArgumentError(f"kind: {kind!r} needs gold labels")
    if kind == "auto":
        kind = "mean"
    base: Base = "raw" if readings.contextual is None or kind == "domain" else "contextual"
    scores = readings.raw if base == "raw" else readings.contextual
    assert scores is not None
    if kind == "contextual":
        if base == "raw":
            raise ArgumentError("kind: 'contextual' is of questions; of choices, give choose a Contextual")
        bias = np.zeros(len(readings.texts))
    elif kind == "domain":
        if shuffled is None or not len(shuffled):
            raise ArgumentError("kind: 'domain' takes what a model says behind words of the rows")
        bias = mean_taken_out(shuffled.raw, "batch")
    elif n_different < LEAST_ROWS:
        raise CalibrationError(f"rows: {n_different} different, where {LEAST_ROWS} are the fewest that tell something")
    else:
        bias = mean_taken_out(scores, kind)
    return Fit(kind=kind, bias=bias if prior is None else bias + prior, base=base)


def mean_taken_out(scores: Floats, kind: str) -> Floats:
    """Return what takes out what rows give classes in the mean: of probabilities, or of log-weights."""
    mean: Floats
    if kind == "batch":
        mean = np.logaddexp.reduce(log_softmax(scores), axis=0) - np.log(len(scores))
    else:
        mean = scores.mean(axis=0)
    bias: Floats = mean.mean() - mean
    return bias


def in_domain(rows: Sequence[Any], seed: int) -> list[str]:
    """Make rows of words of the rows, drawn at random, as long as they are; what all begin and end with stays."""
    if len(rows) < LEAST_ROWS:
        raise CalibrationError(f"rows: {len(rows)}, where {LEAST_ROWS} are the fewest that tell something")
    for i, row in enumerate(rows):
        if not isinstance(row, str):
            raise ArgumentError(f"rows[{i}]: {type(row).__name__}, where 'domain' takes texts")
    before, parts, behind = own_parts(rows)
    own = [part.split() for part in parts]
    words = [word for some in own for word in some]
    if not words:
        raise CalibrationError("rows: they are all the same, and have no words of their own")
    n = max(1, round(len(words) / len(own)))
    rng = np.random.default_rng(seed)
    return [before + " ".join(rng.choice(words, n).tolist()) + behind for _ in range(_N_SHUFFLED)]
