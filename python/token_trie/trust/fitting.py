"""Fits calibrations to what a model says of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.calibrator import Base, Floats
from token_trie.errors import ArgumentError, CalibrationError, InternalError
from token_trie.trust.fit import Fit
from token_trie.trust.folds import folds_of
from token_trie.trust.head import Head, features_of
from token_trie.trust.held_out import HeldOut, Measured
from token_trie.trust.learn import import_sklearn
from token_trie.trust.metrics import figures_of
from token_trie.trust.options import FitKind
from token_trie.trust.readings import Readings

Ints = npt.NDArray[np.int64]

_SEED = 0
LEAST_ROWS = 8
"""Of rows without labels."""
LEAST_LABELLED = 20
"""Of rows with them."""
_TEMPERATURES = (0.05, 20.0)
_RIDGE = 1.0
"""Of a bias: half of so many nats for a bias of one, over all rows."""
_HEAD_CS = (1e-4, 1e-3, 1e-2, 1e-1)
_N_HEAD_ROWS = 2
"""Rows of each class that a head needs."""


def fit_readings(
    readings: Readings,
    gold: Ints | None,
    *,
    kind: FitKind = "auto",
    prior: Floats | None = None,
    n_folds: int = 5,
    groups: Ints | None = None,
) -> tuple[Fit, HeldOut | None]:
    """Fit a calibration to readings; tell, of rows with labels, what it is worth on rows that it has not seen.

    Parameters
    ----------
    readings : Readings
    gold : ndarray of int64, shape (n_rows,), or None
        Positions of the right classes.
    kind
        As of `FitOptions`.
    prior : ndarray of float64, shape (n_classes,), optional
        Of what takes no labels: logarithms of how frequent the classes are.
    n_folds : int
    groups : ndarray of int64, shape (n_rows,), optional
        Rows of one group, such as duplicates, come into one fold.

    Raises
    ------
    CalibrationError
        There are too few rows, none of some class that is needed, or scores that are not finite.
    ArgumentError
        The kind needs labels, or is to have none.
    """
    _require_finite(readings)
    base: Base = "raw" if readings.contextual is None else "contextual"
    if gold is None:
        return _without_labels(readings, kind, base, prior), None
    if prior is not None:
        raise ArgumentError("frequencies: go without labels, which tell them")
    if len(gold) < LEAST_LABELLED:
        raise CalibrationError(f"gold: {len(gold)} rows, where {LEAST_LABELLED} are the fewest that tell something")
    groups = np.arange(len(gold)) if groups is None else groups
    folds = folds_of(gold, groups, n_folds, _SEED)
    if not folds:
        raise CalibrationError(
            f"gold: all rows are {readings.texts[int(gold[0])]!r}, which tells nothing of the others"
        )
    fitters = _fitters(readings, kind)
    tried = [(_out_of_fold(fitter, readings, gold, folds), fitter) for fitter in fitters]
    found = [(log_p, fitter) for log_p, fitter in tried if log_p is not None]
    if not found:
        raise CalibrationError(f"gold: too few rows of some classes for {kind!r}")
    log_p, fitter = min(found, key=lambda one: log_loss(one[0], gold))
    fitted = fitter.fit(readings, gold)
    assert fitted is not None  # as its folds were
    raw = log_softmax(readings.raw)
    held_out = HeldOut(
        len(gold),
        len(folds),
        measured(readings.texts, log_p, gold),
        measured(readings.texts, raw, gold),
        np.exp(log_p.max(axis=1)),
        log_p.argmax(axis=1) == gold,
        np.exp(log_p),
    )
    return fitted, held_out


def _require_finite(readings: Readings) -> None:
    for what in (readings.raw, readings.contextual, readings.states):
        if what is not None and not np.isfinite(what).all():
            row = int(np.flatnonzero(~np.isfinite(what).all(axis=1))[0])
            raise CalibrationError(f"rows[{row}]: the model's scores of it are not finite")


def _without_labels(readings: Readings, kind: FitKind, base: Base, prior: Floats | None) -> Fit:
    if kind in ("temperature", "bias", "head"):
        raise ArgumentError(f"kind: {kind!r} needs gold labels")
    if kind == "auto":
        kind = "batch" if readings.contextual is None else "mean"
    if kind == "contextual":
        if readings.contextual is None:
            raise ArgumentError("kind: 'contextual' is of questions; of choices, give choose a Contextual")
    elif len(readings) < LEAST_ROWS:
        raise CalibrationError(f"rows: {len(readings)}, where {LEAST_ROWS} are the fewest that tell something")
    scores = readings.raw if base == "raw" or readings.contextual is None else readings.contextual
    bias = np.zeros(len(readings.texts)) if kind == "contextual" else _centred(scores, kind)
    return Fit(kind=kind, bias=bias if prior is None else bias + prior, base=base)


def _centred(scores: Floats, kind: str) -> Floats:
    """Return what takes out what rows give classes in the mean: of probabilities, or of log-weights."""
    mean: Floats
    if kind == "batch":
        mean = np.logaddexp.reduce(log_softmax(scores), axis=0) - np.log(len(scores))
    else:
        mean = scores.mean(axis=0)
    bias: Floats = mean.mean() - mean
    return bias


class _Fitter(ABC):
    """Fits one kind."""

    @abstractmethod
    def fit(self, readings: Readings, gold: Ints) -> Fit | None:
        """Return what is fitted; None where rows do not allow it."""


@dataclass(frozen=True)
class _Scaled(_Fitter):
    """A temperature, and with it a bias a class, or none."""

    base: Base
    has_bias: bool

    def fit(self, readings: Readings, gold: Ints) -> Fit:
        """Minimize the log loss; a bias is held near the one that takes out the mean of the rows."""
        from scipy.optimize import minimize, minimize_scalar

        scores = scores_of(readings, self.base)
        centred = _centred(scores, "mean") if self.has_bias else np.zeros(scores.shape[1])
        low, high = np.log(_TEMPERATURES)

        def at(log_t: float) -> float:
            return log_loss(log_softmax((scores + centred) / np.exp(log_t)), gold)

        log_t = float(minimize_scalar(at, bounds=(low, high), method="bounded").x)
        if not self.has_bias:
            return Fit(kind="temperature", bias=centred, temperature=float(np.exp(log_t)), base=self.base)
        n, hits = len(gold), np.eye(scores.shape[1])[gold]

        def loss(x: Floats) -> tuple[float, Floats]:
            scaled = (scores + centred) * np.exp(-x[0]) + x[1:]
            log_p = log_softmax(scaled)
            rest = np.exp(log_p) - hits
            slope = -float((rest * (scaled - x[1:])).sum())
            value = n * log_loss(log_p, gold) + _RIDGE / 2 * float(x[1:] @ x[1:])
            return value, np.concatenate([[slope], rest.sum(axis=0) + _RIDGE * x[1:]])

        start = np.concatenate([[log_t], np.zeros(scores.shape[1])])
        bounds = [(low, high), *[(None, None)] * scores.shape[1]]
        x = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
        temperature = float(np.exp(x[0]))
        return Fit(kind="bias", bias=centred + x[1:] * temperature, temperature=temperature, base=self.base)


@dataclass(frozen=True)
class _OfState(_Fitter):
    """A head on the hidden state."""

    takes_scores: bool

    def fit(self, readings: Readings, gold: Ints) -> Fit | None:
        """Fit it by scikit-learn's logistic regression, standardized, with C and a temperature by cross-validation."""
        counts = np.bincount(gold, minlength=len(readings.texts))
        if counts.min() < _N_HEAD_ROWS:
            return None
        folds = folds_of(gold, np.arange(len(gold)), 5, _SEED)
        if not folds:
            return None
        x = features_of(readings.raw if self.takes_scores else None, readings.states)
        log_ps = []
        for c in _HEAD_CS:
            log_p = np.empty((len(gold), len(readings.texts)))
            for train, test in folds:
                if len(np.unique(gold[train])) < len(readings.texts):
                    return None
                log_p[test] = _regression(x[train], gold[train], c, self.takes_scores).log_weights_of(x[test])
            log_ps.append(log_softmax(log_p))
        scaled = [_temperature_of(log_p, gold) for log_p in log_ps]
        losses = [log_loss(log_softmax(log_p / t), gold) for log_p, t in zip(log_ps, scaled, strict=True)]
        best = int(np.argmin(losses))
        head = _regression(x, gold, _HEAD_CS[best], self.takes_scores)
        return Fit(kind="head", bias=np.zeros(len(readings.texts)), temperature=scaled[best], head=head)


def _temperature_of(log_p: Floats, gold: Ints) -> float:
    from scipy.optimize import minimize_scalar

    low, high = np.log(_TEMPERATURES)
    at = minimize_scalar(
        lambda log_t: log_loss(log_softmax(log_p / np.exp(log_t)), gold), bounds=(low, high), method="bounded"
    )
    return float(np.exp(at.x))


def _regression(x: Floats, gold: Ints, c: float, takes_scores: bool) -> Head:
    linear: Any = import_sklearn("linear_model")
    scaler: Any = import_sklearn("preprocessing").StandardScaler().fit(x)
    model = linear.LogisticRegression(C=c, max_iter=1000).fit(scaler.transform(x), gold)
    weights, intercept = model.coef_, model.intercept_
    if len(weights) == 1:  # of two classes, the second's against the first
        weights, intercept = (
            np.concatenate([-weights / 2, weights / 2]),
            np.concatenate([-intercept / 2, intercept / 2]),
        )
    return Head(scaler.mean_, scaler.scale_, weights, intercept, takes_scores)


def _fitters(readings: Readings, kind: FitKind) -> list[_Fitter]:
    bases: list[Base] = ["raw"] if readings.contextual is None else ["raw", "contextual"]
    known: Mapping[str, list[_Fitter]] = {
        "temperature": [_Scaled(base, has_bias=False) for base in bases],
        "bias": [_Scaled(base, has_bias=True) for base in bases],
        "head": [] if readings.states is None else [_OfState(False), _OfState(True)],
    }
    if kind == "auto":
        return [fitter for fitters in known.values() for fitter in fitters]
    if kind not in known:
        raise ArgumentError(f"kind: {kind!r} takes no labels; leave gold out")
    if not known[kind]:
        raise CalibrationError("kind: 'head' needs hidden states, which were not read")
    return known[kind]


def _out_of_fold(fitter: _Fitter, readings: Readings, gold: Ints, folds: list[tuple[Ints, Ints]]) -> Floats | None:
    """Return log-probabilities of all rows, each by what was fitted on other folds."""
    log_p = np.empty(readings.raw.shape)
    for train, test in folds:
        fitted = fitter.fit(part_of(readings, train), gold[train])
        if fitted is None:
            return None
        log_p[test] = log_probabilities(fitted, part_of(readings, test))
    return log_p


def part_of(readings: Readings, rows: Ints) -> Readings:
    """Return the readings of some rows."""
    return replace(
        readings,
        raw=readings.raw[rows],
        contextual=None if readings.contextual is None else readings.contextual[rows],
        mass=readings.mass[rows],
        states=None if readings.states is None else readings.states[rows],
    )


def scores_of(readings: Readings, base: Base) -> Floats:
    """Return the scores of a base."""
    scores = readings.raw if base == "raw" else readings.contextual
    assert scores is not None
    return scores


def log_probabilities(calibration: Fit, readings: Readings) -> Floats:
    """Return what a calibration makes of readings, shape (n_rows, n_classes)."""
    return log_softmax(calibration.log_weights(scores_of(readings, calibration.base), readings.states))


def log_softmax(weights: Floats) -> Floats:
    """Return logarithms of the probabilities that log-weights stand for, row by row."""
    shares: Floats = weights - np.logaddexp.reduce(weights, axis=1, keepdims=True)
    return shares


def log_loss(log_p: Floats, gold: Ints) -> float:
    """Return the mean of what the right classes lack, in nats."""
    return -float(log_p[np.arange(len(gold)), gold].mean())


def measured(texts: tuple[str, ...], log_p: Floats, gold: Ints) -> Measured:
    """Measure log-probabilities."""
    found = figures_of(texts, gold, log_p.argmax(axis=1), np.exp(log_p), None)
    log_loss, brier, ece = found.log_loss, found.brier, found.ece
    if log_loss is None or brier is None or ece is None:
        raise InternalError("probabilities without figures")
    return Measured(found.accuracy, log_loss, brier, ece)
