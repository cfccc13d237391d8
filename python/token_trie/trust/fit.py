"""Fits of calibrations to readings of rows: the numbers, and what cross-validation tells of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats, Ints, States
from token_trie.decisions.calibration import MIN_ROWS, Base, Mean
from token_trie.decisions.gold import import_sklearn, one_thread
from token_trie.errors import ArgumentError, CalibrationError
from token_trie.native.options import check_counts, check_name
from token_trie.trust.metrics import figures_of, folds_of, log_softmax, numbered, read_groups
from token_trie.trust.rows import Readings

FitKind: TypeAlias = Literal["batch", "temperature", "bias", "head"]
"""Kinds of `Calibration`, whose docstring describes them."""

MIN_LABELLED = 20
"""Different rows for a fit with labels."""
_TEMPERATURES = (0.05, 20.0)
_RIDGE = 1.0
"""Ridge penalty of a bias: half this many nats for a bias of one, over all rows."""
_C = 0.2
"""Inverse strength of the regularization of a head."""


class Measured(NamedTuple):
    """Metrics of probabilities."""

    accuracy: float
    log_loss: float
    brier: float
    ece: float
    """Expected calibration error over ten bins of equal width."""

    @classmethod
    def of(cls, log_p: Floats, gold: Ints) -> Measured:
        """Measure the most probable answers."""
        p = np.exp(log_p)
        figures: Any = figures_of(p.shape[1], gold, p.argmax(axis=1), p, None)
        return cls(*(getattr(figures, name) for name in cls._fields))


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Results of cross-validation: each row of the fit, answered by a fit on other rows."""

    n_folds: int
    calibrated: Measured
    raw: Measured
    """Metrics with the calibration, and of the raw scores."""
    confidence: Floats
    """Shape (n_rows,): the probability of each answer, rounded down to steps of 0.0001."""
    is_right: npt.NDArray[np.bool_]
    groups: npt.NDArray[Any]
    """Equal rows have the same number."""
    probabilities: Floats | None = None
    """Shape (n_rows, n_classes); None after loading from a file, which does not keep them."""
    n_ways: int = 1
    """Number of ways from which it was chosen on these rows; they share the risk of a gate."""


@dataclass(frozen=True, eq=False)
class Head:
    """A linear classifier on scaled features: the direction of the hidden state, and the log-shares of the classes."""

    mean: Floats
    scale: Floats
    """Shape (n_features,)."""
    weights: Floats
    """Shape (n_classes, n_features)."""
    intercept: Floats
    """Shape (n_classes,)."""

    @staticmethod
    def features(scores: Floats, states: States) -> Floats:
        """Return the features of rows, shape (n_rows, n_features)."""
        own = states.astype(np.float64)
        lengths = np.linalg.norm(own, axis=1, keepdims=True)
        return np.concatenate([own / np.where(lengths > 0, lengths, 1.0), log_softmax(scores)], axis=1)

    def log_weights(self, scores: Floats, states: States) -> Floats:
        """Return log-weights, shape (n_rows, n_classes)."""
        features = self.features(scores, states)
        if features.shape[1] != len(self.mean):
            raise CalibrationError(f"head: was fitted on {len(self.mean)} features, and these are {features.shape[1]}")
        found: Floats = ((features - self.mean) / self.scale) @ self.weights.T + self.intercept
        return found


@dataclass(frozen=True, eq=False)
class Fitted:
    """The numbers of a fit: ``softmax((scores + bias) / temperature)``, or a head."""

    base: Base
    """The scores that it takes."""
    bias: Floats
    temperature: float = 1.0
    head: Head | None = None

    def log_weights(self, scores: Floats, states: States | None) -> Floats:
        """Return log-weights of rows, shape (n_rows, n_classes)."""
        if self.head is None:
            return (scores + self.bias) / self.temperature
        assert states is not None  # because it needs them
        return self.head.log_weights(scores, states)

    def log_probabilities(self, readings: Readings) -> Floats:
        """Return the log-probabilities of rows."""
        return log_softmax(self.log_weights(readings.scores(self.base), readings.states))


def check_kind(kind: object) -> None:
    """Raise ArgumentError unless it is the name of a kind."""
    check_name(kind, get_args(FitKind), "kind")


def fit_readings(
    readings: Readings, gold: Ints | None, kind: FitKind, n_folds: int | None = 10, groups: npt.ArrayLike | None = None
) -> tuple[Fitted, HeldOut | None]:
    """Fit a calibration to readings and, with labels, measure it by cross-validation; n_folds None: do not measure it.

    `gold` has the positions of the right classes. Rows of one group, by default those with equal readings, are one
    observation. CalibrationError for too few rows, rows of one class only, or scores that are not finite; ArgumentError
    if the kind needs labels, or takes none.
    """
    check_kind(kind)
    if (gold is None) != (kind == "batch"):
        what = "takes no labels; leave gold out" if kind == "batch" else "needs gold labels"
        raise ArgumentError(f"kind: {kind!r} {what}")
    parts = [part for part in (readings.raw, readings.contextual, readings.states) if part is not None]
    for part in parts:
        if not np.isfinite(part).all():
            row = int(np.flatnonzero(~np.isfinite(part).all(axis=1))[0])
            raise CalibrationError(f"rows[{row}]: the model's scores of it are not finite")
    if groups is None:
        groups = numbered([b"".join(part[i].tobytes() for part in parts) for i in range(len(readings))])
    own = read_groups(groups, len(readings))
    n_different = len(np.unique(own))
    if n_folds is not None:
        check_counts(2, n_folds=n_folds)
    if gold is None:
        if n_different < MIN_ROWS:
            raise CalibrationError(f"rows: {n_different} different, and at least {MIN_ROWS} are needed; give more rows")
        if readings.contextual is None:
            return Fitted("raw", mean_bias(log_softmax(readings.raw), np.logaddexp)), None
        return Fitted("contextual", mean_bias(readings.contextual)), None
    if n_folds is not None and n_different < MIN_LABELLED:
        raise CalibrationError(
            f"gold: {n_different} different rows, and at least {MIN_LABELLED} are needed; give more rows"
        )
    return _fit_and_measure(readings, gold, kind, n_folds, own)


@one_thread()
def _fit_and_measure(
    readings: Readings, gold: Ints, kind: FitKind, n_folds: int | None, groups: Ints
) -> tuple[Fitted, HeldOut | None]:
    if n_folds is None:
        return _labelled(readings, gold, kind), None
    folds = folds_of(gold, groups, n_folds)
    if not folds:
        most = int(np.bincount(gold).argmax())
        rows = "all rows" if (gold == most).all() else "all rows but those of one text"
        raise CalibrationError(
            f"gold: {rows} are {readings.texts[most]!r}, which tells nothing of the others; give rows of these, too"
        )
    fitted, log_p = _labelled(readings, gold, kind), np.empty(readings.raw.shape)
    for train, test in folds:
        found = _labelled(readings.rows(train), gold[train], kind, is_part=True)
        log_p[test] = found.log_probabilities(readings.rows(test))
    p = np.exp(log_p)
    return fitted, HeldOut(
        n_folds=len(folds),
        calibrated=Measured.of(log_p, gold),
        raw=Measured.of(log_softmax(readings.raw), gold),
        confidence=np.floor(p.max(axis=1) * 10_000) / 10_000,
        is_right=p.argmax(axis=1) == gold,
        groups=groups,
        probabilities=p,
    )


def mean_bias(scores: Floats, add: np.ufunc = np.add) -> Floats:
    """Return the bias that subtracts each class's mean over the rows; `add` is that of `Mean`."""
    mean = Mean(add).with_rows(scores).value
    bias: Floats = mean.mean() - mean
    return bias


def _labelled(readings: Readings, gold: Ints, kind: FitKind, is_part: bool = False) -> Fitted:
    """Fit a kind that takes labels; is_part: to a part of the rows, which may have none of some classes."""
    if kind == "head":
        return _head(readings, gold, is_part)
    base: Base = "raw" if readings.contextual is None else "contextual"
    return Fitted(base, *_scale(readings.scores(base), gold, has_bias=kind == "bias"))


def _scale(scores: Floats, gold: Ints, has_bias: bool) -> tuple[Floats, float]:
    """Minimize the log loss; a ridge penalty keeps the bias near the one that subtracts the rows' mean."""
    from scipy.optimize import minimize

    k = scores.shape[1]
    centred = mean_bias(scores) if has_bias else np.zeros(k)
    hits = np.eye(k, dtype=np.bool_)[gold]
    wrong = 1 / (len(np.unique(scores, axis=0)) + 2)

    def loss(x: Floats) -> tuple[float, Floats]:
        scaled = (scores + centred) * np.exp(-x[0]) + x[1:]
        value, rest = _doubted(scaled, hits, wrong)
        slope = -float((rest * (scaled - x[1:])).sum())
        return value + _RIDGE / 2 * float(x[1:] @ x[1:]), np.concatenate([[slope], rest.sum(axis=0) + _RIDGE * x[1:]])

    bias_bounds = (None, None) if has_bias else (0.0, 0.0)
    bounds = [(np.log(_TEMPERATURES[0]), np.log(_TEMPERATURES[1])), *[bias_bounds] * k]
    # Several starts, as far from the best temperature the loss is flat.
    starts = [np.concatenate([[np.log(t)], np.zeros(k)]) for t in (0.1, 1.0, 10.0)]
    best = min((minimize(loss, x, jac=True, method="L-BFGS-B", bounds=bounds) for x in starts), key=lambda one: one.fun)
    temperature = float(np.exp(best.x[0]))
    return centred + best.x[1:] * temperature, temperature


def _doubted(weights: Floats, hits: npt.NDArray[np.bool_], wrong: float) -> tuple[float, Floats]:
    """Return the summed log loss of log-weights whose rows' labels are wrong with a probability, and its gradient.

    With n rows, all of which are answered right, the fit then promises (n + 1) / (n + 2) and not 1: Laplace's rule of
    succession, as in Platt (1999). If a label is wrong, nothing is assumed of the right one.
    """
    log_p = log_softmax(weights)
    others = np.where(hits, -np.inf, log_p)
    value = (1 - wrong) * log_p[hits].sum() + wrong * np.logaddexp.reduce(others, axis=1).sum()
    return -float(value), np.exp(log_p) - (1 - wrong) * hits - wrong * np.exp(log_softmax(others))


def _head(readings: Readings, gold: Ints, is_part: bool) -> Fitted:
    """Fit scikit-learn's logistic regression to the directions of hidden states and standardized scores."""
    if readings.states is None:
        raise CalibrationError("kind: 'head' needs hidden states, which were not read")
    for name, n in zip(readings.texts, np.bincount(gold, minlength=len(readings.texts)), strict=True):
        if n == 0 and not is_part:
            raise CalibrationError(f"gold: no row of {name!r}, where a head needs some of each class")
    linear: Any = import_sklearn("linear_model")
    features = Head.features(readings.raw, readings.states)
    scaler: Any = import_sklearn("preprocessing").StandardScaler().fit(features)
    n_state = readings.states.shape[1]
    scaler.scale_[:n_state] = np.sqrt(scaler.var_[:n_state].mean()) or 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a fit did not converge: cross-validation judges it
        made = linear.LogisticRegression(C=_C, max_iter=1000).fit(scaler.transform(features), gold)
    own, intercept = made.coef_, made.intercept_
    if len(own) == 1:  # scikit-learn has one row for two classes
        own, intercept = (np.concatenate([-part / 2, part / 2]) for part in (own, intercept))
    n, k = readings.raw.shape
    weights, intercepts = np.zeros((k, features.shape[1])), np.full(k, -np.log(2 * n))  # for classes without rows
    weights[made.classes_], intercepts[made.classes_] = own, intercept
    return Fitted("raw", np.zeros(k), head=Head(scaler.mean_, scaler.scale_, weights, intercepts))
