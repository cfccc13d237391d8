"""Fits calibrations to what a model says of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from token_trie.decisions.calibrator import Base, Floats
from token_trie.decisions.learn import one_thread
from token_trie.errors import ArgumentError, CalibrationError, InternalError
from token_trie.trust.fit import Fit
from token_trie.trust.folds import Folds, folds_of
from token_trie.trust.head_fitting import fit_heads
from token_trie.trust.held_out import HeldOut, Measured, in_steps
from token_trie.trust.label_free import fit_without_labels, mean_taken_out
from token_trie.trust.metrics import figures_of
from token_trie.trust.options import FitKind
from token_trie.trust.readings import Readings
from token_trie.trust.shares import Ints, log_loss, log_softmax, losses

_SEED = 0
LEAST_LABELLED = 20
"""Rows with labels."""
_TEMPERATURES = (0.05, 20.0)
_RIDGE = 1.0
"""Of a bias: half of so many nats for a bias of one, over all rows."""
_LEAST_GAIN = 0.01
"""In nats: what scores are to add to a head."""


@one_thread()
def fit_readings(
    readings: Readings,
    gold: Ints | None,
    *,
    kind: FitKind = "auto",
    prior: Floats | None = None,
    n_folds: int = 10,
    groups: Ints | None = None,
    shuffled: Readings | None = None,
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
    shuffled : Readings, optional
        Of "domain": what the model says behind words of the rows.

    Raises
    ------
    CalibrationError
        There are too few rows, none of some class that is needed, or scores that are not finite.
    ArgumentError
        The kind needs labels, or is to have none.
    """
    _require_finite(readings)
    if gold is None:
        return fit_without_labels(readings, kind, prior, shuffled), None
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
    fitted, log_p = _best(_fitters(readings, kind), readings, gold, folds)
    raw = log_softmax(readings.raw)
    held_out = HeldOut(
        len(gold),
        len(folds),
        measured(readings.texts, log_p, gold),
        measured(readings.texts, raw, gold),
        in_steps(np.exp(log_p.max(axis=1))),
        log_p.argmax(axis=1) == gold,
        np.exp(log_p),
    )
    return fitted, held_out


def _require_finite(readings: Readings) -> None:
    for what in (readings.raw, readings.contextual, readings.states):
        if what is not None and not np.isfinite(what).all():
            row = int(np.flatnonzero(~np.isfinite(what).all(axis=1))[0])
            raise CalibrationError(f"rows[{row}]: the model's scores of it are not finite")


class Fitted(NamedTuple):
    """A fit, and log-probabilities of all rows, shape (n_rows, n_classes), each by what was fitted on other folds."""

    fit: Fit
    log_p: Floats


class _Fitter(ABC):
    """Fits one kind."""

    @abstractmethod
    def fits(self, readings: Readings, gold: Ints, folds: Folds) -> Iterator[Fitted]:
        """Yield what is fitted; CalibrationError where rows do not allow it."""


@dataclass(frozen=True)
class _Scaled(_Fitter):
    """A temperature, and with it a bias a class, or none."""

    base: Base
    has_bias: bool

    def fits(self, readings: Readings, gold: Ints, folds: Folds) -> Iterator[Fitted]:
        scores = scores_of(readings, self.base)
        log_p = np.empty(scores.shape)
        for train, test in folds:
            log_p[test] = log_softmax(self._fit(scores[train], gold[train]).log_weights(scores[test], None))
        yield Fitted(self._fit(scores, gold), log_p)

    def _fit(self, scores: Floats, gold: Ints) -> Fit:
        """Minimize the log loss; a bias is held near the one that takes out the mean of the rows."""
        from scipy.optimize import minimize, minimize_scalar

        centred = mean_taken_out(scores, "mean") if self.has_bias else np.zeros(scores.shape[1])
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


class _OfState(_Fitter):
    """A head on the hidden state, and one that takes scores beside it."""

    def fits(self, readings: Readings, gold: Ints, folds: Folds) -> Iterator[Fitted]:
        for name, n in zip(readings.texts, np.bincount(gold, minlength=len(readings.texts)), strict=True):
            if n == 0:
                raise CalibrationError(f"gold: no row of {name!r}, where a head needs some of each class")
        assert readings.states is not None  # as there are no others of this kind
        for head, log_p in fit_heads(readings.states.astype(np.float64), readings.raw, gold, folds):
            yield Fitted(Fit(kind="head", bias=np.zeros(len(readings.texts)), head=head), log_p)


def _fitters(readings: Readings, kind: FitKind) -> list[_Fitter]:
    bases: list[Base] = ["raw"] if readings.contextual is None else ["raw", "contextual"]
    known: Mapping[str, list[_Fitter]] = {
        "temperature": [_Scaled(base, has_bias=False) for base in bases],
        "bias": [_Scaled(base, has_bias=True) for base in bases],
        "head": [] if readings.states is None else [_OfState()],
    }
    if kind == "auto":
        return [fitter for fitters in known.values() for fitter in fitters]
    if kind not in known:
        raise ArgumentError(f"kind: {kind!r} takes no labels; leave gold out")
    if not known[kind]:
        raise CalibrationError("kind: 'head' needs hidden states, which were not read")
    return known[kind]


def _best(fitters: list[_Fitter], readings: Readings, gold: Ints, folds: Folds) -> Fitted:
    """Return what loses least; a head that takes scores costs their rows, and is to be better by more than chance."""
    found: list[Fitted] = []
    for fitter in fitters:
        try:
            found += fitter.fits(readings, gold, folds)
        except CalibrationError:
            if len(fitters) == 1 or (fitter is fitters[-1] and not found):
                raise
    plain = [one for one in found if not (one.fit.head and one.fit.head.takes_scores)]
    best, least = (min(some, key=lambda one: log_loss(one.log_p, gold)) for some in (plain, found))
    gain = losses(best.log_p, gold) - losses(least.log_p, gold)
    return least if gain.mean() > max(gain.std() / np.sqrt(len(gain)), _LEAST_GAIN) else best


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


def measured(texts: tuple[str, ...], log_p: Floats, gold: Ints) -> Measured:
    """Measure log-probabilities."""
    found = figures_of(texts, gold, log_p.argmax(axis=1), np.exp(log_p), None)
    log_loss, brier, ece = found.log_loss, found.brier, found.ece
    if log_loss is None or brier is None or ece is None:
        raise InternalError("probabilities without figures")
    return Measured(found.accuracy, log_loss, brier, ece)
