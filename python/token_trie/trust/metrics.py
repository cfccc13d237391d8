"""Metrics of answers against gold labels; folds of cross-validation; softmax."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats, Ints
from token_trie.decisions.decision import LOW_MASS
from token_trie.decisions.gold import import_sklearn
from token_trie.errors import ArgumentError

Folds: TypeAlias = list[tuple[Ints, Ints]]
"""For each fold, the positions of the training rows and of the test rows."""

_N_DRAWS = 20
"""Attempts to draw folds whose training rows all have two classes."""


def numbered(keys: Sequence[Hashable]) -> Ints:
    """Return a number for each key, by first occurrence; equal keys have the same number."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def read_groups(groups: npt.ArrayLike | None, n: int) -> Ints:
    """Return group numbers from 0 on; without groups, each row is its own group."""
    if groups is None:
        return np.arange(n)
    given = np.asarray(groups)
    if given.shape != (n,):
        raise ArgumentError(f"groups must have one number a row, shape ({n},), not {given.shape}")
    return np.unique(given, return_inverse=True)[1].astype(np.int64)


def folds_of(gold: Ints, groups: Ints, n_folds: int) -> Folds:
    """Split rows into at most n_folds random folds; an empty list if training rows would have only one class.

    Rows of one group are in one fold. Folds are not stratified: with equal class frequencies in all folds, a fit would
    know those of the test rows, and would seem better than chance on random labels.
    """
    n_folds = min(n_folds, len(np.unique(groups)))
    if n_folds < 2 or len(np.unique(gold)) < 2:
        return []
    splitter: Any = import_sklearn("model_selection").GroupKFold
    for drawn in range(_N_DRAWS):
        folds = list(splitter(n_folds, shuffle=True, random_state=drawn).split(gold, groups=groups))
        if all(len(np.unique(gold[train])) > 1 for train, _ in folds):
            return folds
    return []


def log_softmax(weights: Floats) -> Floats:
    """Return the log-softmax of each row of log-weights."""
    shares: Floats = weights - weights.max(axis=1, keepdims=True)
    shares -= np.log(np.exp(shares).sum(axis=1, keepdims=True))  # several times as fast as logaddexp.reduce
    return shares


def softmax(weights: Floats) -> Floats:
    """Return the softmax of each row of log-weights; equal probabilities where no weight is finite."""
    is_finite = np.isfinite(weights.max(axis=1, keepdims=True))
    return np.exp(log_softmax(np.where(is_finite, weights, 0.0)))


N_BINS = 10


@dataclass(frozen=True)
class Point:
    """Number and accuracy of rows by their confidence: of those with at least this one, or with this one on average."""

    confidence: float
    n: int
    accuracy: float


@dataclass(frozen=True)
class Figures:
    """Metrics of one way to answer. Metrics that need probabilities are None, or empty, for a way without them."""

    accuracy: float
    interval: tuple[float, float]
    """Wilson's 95 % confidence interval of the accuracy. Equal rows count as one observation."""
    balanced_accuracy: float
    """The mean recall of the classes that have rows."""
    macro_f1: float
    """The mean over the classes that occur."""
    log_loss: float | None
    """In nats; as in scikit-learn, at most 36 for a row."""
    brier: float | None
    """The sum over the classes; for two classes half of that, as in scikit-learn."""
    ece: float | None
    """Expected calibration error of the answers, over ten bins of equal width."""
    risk_area: float | None
    """The area under the risk-coverage curve: the mean error rate over all numbers of accepted rows, the most
    confident first."""
    unfit: float | None
    """The share of rows in which all classes together have a probability below 1 %."""
    confusion: tuple[tuple[int, ...], ...]
    """Numbers of rows; a row for each gold class, a column for each answer."""
    reliability: tuple[Point, ...]
    """The bins of equal width that have rows, with the mean confidence of each."""
    coverage: tuple[Point, ...]
    """The rows with at least each confidence, in decreasing order."""


def figures_of(
    n_classes: int,
    gold: Ints,
    answers: Ints,
    probabilities: Floats | None,
    mass: Floats | None,
    groups: Ints | None = None,
) -> Figures:
    """Compute the metrics of answers to one or more rows, by the positions of the right classes and of the answers.

    The probability of an answer is its confidence. Rows of one group are equal; by default no two rows are.
    """
    metrics: Any = import_sklearn("metrics")
    labels, is_right = np.arange(n_classes), gold == answers
    log_loss = brier = ece = risk_area = None
    bins, curve = list[Point](), list[Point]()
    if probabilities is not None:
        confidence = probabilities[np.arange(len(gold)), answers]
        bins, curve = bins_of(confidence, is_right), coverage_of(confidence, is_right)
        log_loss = float(metrics.log_loss(gold, probabilities, labels=labels))
        brier = float(metrics.brier_score_loss(gold, probabilities, labels=labels))
        ece = sum(one.n * abs(one.accuracy - one.confidence) for one in bins) / len(gold)
        risk_area = float(np.average([1 - one.accuracy for one in curve], weights=np.diff([0, *(p.n for p in curve)])))
    return Figures(
        accuracy=float(is_right.mean()),
        interval=interval_of(*effective(*shares_of(is_right, read_groups(groups, len(gold))))),
        balanced_accuracy=float(metrics.recall_score(gold, answers, labels=np.unique(gold), average="macro")),
        macro_f1=float(metrics.f1_score(gold, answers, average="macro", zero_division=0.0)),
        log_loss=log_loss,
        brier=brier,
        ece=ece,
        risk_area=risk_area,
        unfit=None if mass is None else float((mass < LOW_MASS).mean()),
        confusion=tuple(map(tuple, metrics.confusion_matrix(gold, answers, labels=labels).tolist())),
        reliability=tuple(bins),
        coverage=tuple(curve),
    )


def shares_of(is_right: npt.NDArray[np.bool_], groups: Ints) -> tuple[Floats, Floats]:
    """Return the share of right rows in each group, and the sizes of the groups."""
    sizes = np.bincount(groups)
    n_right = np.bincount(groups, weights=is_right)
    there = sizes > 0
    return n_right[there] / sizes[there], sizes[there].astype(np.float64)


def effective(shares: Floats, weights: Floats) -> tuple[float, float]:
    """Return the weighted mean of the groups' shares, and its effective sample size.

    The effective sample size is the smaller of Kish's (1965), as if all rows of a group were right or wrong together,
    and that of the linearized variance of the mean (Korn and Graubard, 1998), which is smaller where large groups are
    more often wrong. With equal weights, it is the number of groups.
    """
    parts = weights / weights.sum()
    mean = float(np.average(shares, weights=weights))
    n = float(1 / (parts**2).sum())
    variance = float((parts**2 * (shares - mean) ** 2).sum())
    return mean, min(n, mean * (1 - mean) / variance) if variance > 0 else n


def interval_of(share: float, n: float) -> tuple[float, float]:
    """Return Wilson's (1927) 95 % confidence interval of a share of n independent rows."""
    z = 1.959963984540054
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)))
    return max(0.0, middle - half), min(1.0, middle + half)


def bins_of(confidence: Floats, is_right: npt.NDArray[np.bool_]) -> list[Point]:
    """Return the bins of equal width that have rows; a row on an edge is in the lower one, as in scikit-learn."""
    of = np.searchsorted(np.linspace(0.0, 1.0, N_BINS + 1)[1:-1], confidence)
    n, sums, right = (np.bincount(of, weights=weights, minlength=N_BINS) for weights in (None, confidence, is_right))
    return [Point(float(sums[i] / n[i]), int(n[i]), float(right[i] / n[i])) for i in np.flatnonzero(n)]


def coverage_of(confidence: Floats, is_right: npt.NDArray[np.bool_]) -> list[Point]:
    """Return a point for each distinct confidence; rows of equal confidence are accepted together."""
    order = np.argsort(-confidence, kind="stable")
    ranked, right = confidence[order], np.cumsum(is_right[order])
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    return [Point(float(ranked[i]), int(i + 1), float(right[i] / (i + 1))) for i in ends]
