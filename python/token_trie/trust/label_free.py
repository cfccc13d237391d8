"""Calibration without labels: what a model answers anyway is taken out, as the rows themselves show it."""

from __future__ import annotations

import numpy as np

from token_trie.decisions.calibrator import Base, Floats
from token_trie.errors import ArgumentError, CalibrationError
from token_trie.trust.fit import Fit
from token_trie.trust.options import FitKind
from token_trie.trust.readings import Readings
from token_trie.trust.shares import log_softmax

LEAST_ROWS = 8
"""That tell something."""


def fit_without_labels(readings: Readings, kind: FitKind, prior: Floats | None) -> Fit:
    """Fit to rows whose right classes are not known; as of `fit_readings`."""
    if kind in ("temperature", "bias", "head"):
        raise ArgumentError(f"kind: {kind!r} needs gold labels")
    if kind == "auto":
        kind = "batch" if readings.contextual is None else "mean"
    if kind == "contextual":
        if readings.contextual is None:
            raise ArgumentError("kind: 'contextual' is of questions; of choices, give choose a Contextual")
    elif len(readings) < LEAST_ROWS:
        raise CalibrationError(f"rows: {len(readings)}, where {LEAST_ROWS} are the fewest that tell something")
    scores = readings.raw if readings.contextual is None else readings.contextual
    bias = np.zeros(len(readings.texts)) if kind == "contextual" else mean_taken_out(scores, kind)
    base: Base = "raw" if readings.contextual is None else "contextual"
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
