"""Metrics of answers against gold labels, folds, and log-weights as probabilities."""

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
"""Positions of the rows to fit on, and of those to judge by."""

SEED = 0
_N_DRAWS = 20
"""Of folds, where some leave one class alone, as those do that have all rows of the second."""


def numbered(keys: Sequence[Hashable]) -> Ints:
    """Return the numbers of groups: rows of one key are one group."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def read_groups(groups: npt.ArrayLike | None, n: int) -> Ints:
    """Return the numbers of groups from 0 on; each row is a group of its own where there are none."""
    if groups is None:
        return np.arange(n)
    given = np.asarray(groups)
    if given.shape != (n,):
        raise ArgumentError(f"groups: shape {given.shape}, where one number a row, ({n},), belongs")
    return np.unique(given, return_inverse=True)[1].astype(np.int64)


def within(folds: Folds, i: int, gold: Ints, groups: Ints) -> Folds:
    """Cut the rows to fit on of one fold into folds by which to choose; the rows to judge by take no part.

    They are the other folds, so that a fit without two folds serves both of them. Folds that leave one class are out.
    """
    train, _ = folds[i]
    if len(folds) == 2:
        inner = [(train[a], train[b]) for a, b in folds_of(gold[train], numbered(groups[train].tolist()), 2)]
    else:
        inner = [(np.intersect1d(train, other), test) for j, (other, test) in enumerate(folds) if j != i]
    return [(some, test) for some, test in inner if len(np.unique(gold[some])) > 1]


def folds_of(gold: Ints, groups: Ints, n_folds: int) -> Folds:
    """Cut rows into folds at random; none, where that leaves no two classes to fit on.

    The labels have no part in it: in folds with equal frequencies of the classes, a fit would know these frequencies in
    the rows that it is judged by, and would seem better than chance on labels that are noise.

    Parameters
    ----------
    gold : ndarray of int64, shape (n_rows,)
    groups : ndarray of int64, shape (n_rows,)
        Rows of one group, such as duplicates, come into one fold.
    n_folds : int
        At most.

    Returns
    -------
    list of pairs of ndarray of int64
    """
    n_groups = int(groups.max()) + 1
    n_folds = min(n_folds, n_groups)
    if n_folds < 2 or len(np.unique(gold)) < 2:
        return []
    for drawn in range(SEED, SEED + _N_DRAWS):
        fold_of = np.random.default_rng(drawn).permutation(n_groups) % n_folds
        own = fold_of[groups]
        folds = [(np.flatnonzero(own != i), np.flatnonzero(own == i)) for i in range(n_folds)]
        if all(len(np.unique(gold[train])) > 1 for train, _ in folds):
            return folds
    return []


def log_softmax(weights: Floats) -> Floats:
    """Return logarithms of the probabilities that log-weights stand for, row by row."""
    shares: Floats = weights - weights.max(axis=1, keepdims=True)
    shares -= np.log(np.exp(shares).sum(axis=1, keepdims=True))  # several times as fast as logaddexp.reduce
    return shares


def losses(log_p: Floats, gold: Ints) -> Floats:
    """Return what the right class of each row lacks, in nats."""
    lacking: Floats = -log_p[np.arange(len(gold)), gold]
    return lacking


def log_loss(log_p: Floats, gold: Ints) -> float:
    """Return the mean of what the right classes lack, in nats."""
    return float(losses(log_p, gold).mean())


N_BINS = 10


@dataclass(frozen=True)
class Bin:
    """Rows of about one confidence."""

    n: int
    confidence: float
    """Their mean."""
    accuracy: float


@dataclass(frozen=True)
class Point:
    """What is decided where all rows of at least a confidence are."""

    confidence: float
    n: int
    accuracy: float


@dataclass(frozen=True)
class ClassFigures:
    """How one class fares."""

    text: str
    n: int
    """Rows that are of it."""
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Figures:
    """What the answers of one way are worth. Of a way without probabilities, what needs them is None.

    Attributes
    ----------
    accuracy : float
    interval : tuple of float
        In which the accuracy on all such rows lies with 95 % assurance (Wilson). Equal rows count as one observation.
    balanced_accuracy : float
        The mean recall of the classes that there are rows of.
    macro_f1 : float
        The mean over the classes that occur.
    log_loss : float or None
        In nats.
    brier : float or None
        The sum over the classes; of two classes half of that, as scikit-learn has it.
    ece : float or None
        Expected calibration error of the answers: over ten bins of equal width,
    ece_of_equal_bins : float or None
        and of equally many rows.
    risk_area : float or None
        The area under the curve of risk against coverage: the mean share of wrong answers, over all numbers of rows
        that are decided, surest first.
    unfit : float or None
        The share of rows in which the model gives all classes together less than 1 %.
    per_class : tuple of ClassFigures
    confusion : tuple of tuples of int
        Rows by what they are, and in each by what they were answered with.
    reliability : tuple of Bin
        Those of equal width that have rows.
    coverage : tuple of Point
        By falling confidence.
    """

    accuracy: float
    interval: tuple[float, float]
    balanced_accuracy: float
    macro_f1: float
    log_loss: float | None
    brier: float | None
    ece: float | None
    ece_of_equal_bins: float | None
    risk_area: float | None
    unfit: float | None
    per_class: tuple[ClassFigures, ...]
    confusion: tuple[tuple[int, ...], ...]
    reliability: tuple[Bin, ...]
    coverage: tuple[Point, ...]


def figures_of(
    texts: tuple[str, ...],
    gold: Ints,
    answers: Ints,
    probabilities: Floats | None,
    mass: Floats | None,
    groups: Ints | None = None,
) -> Figures:
    """Measure answers.

    Parameters
    ----------
    texts : tuple of str
        The classes.
    gold, answers : ndarray of int64, shape (n_rows,)
        Positions of classes, n_rows at least 1.
    probabilities : ndarray of float64, shape (n_rows, n_classes), or None
        Those of an answer are its confidence.
    mass : ndarray of float64, shape (n_rows,), or None
    groups : ndarray of int64, shape (n_rows,), optional
        Equal rows have the same number; by default no two rows are equal.
    """
    metrics: Any = import_sklearn("metrics")
    labels = np.arange(len(texts))
    is_right = gold == answers
    precision, recall, f1, n = metrics.precision_recall_fscore_support(gold, answers, labels=labels, zero_division=0.0)
    per_class = zip(texts, n.tolist(), precision.tolist(), recall.tolist(), f1.tolist(), strict=True)
    of_probabilities: dict[str, Any] = dict.fromkeys(("log_loss", "brier", "ece", "ece_of_equal_bins", "risk_area"))
    of_probabilities |= {"reliability": (), "coverage": ()}
    if probabilities is not None:
        confidence = probabilities[np.arange(len(gold)), answers]
        points = coverage_of(confidence, is_right)
        of_probabilities = {
            "log_loss": float(metrics.log_loss(gold, probabilities, labels=labels)),
            "brier": float(metrics.brier_score_loss(gold, probabilities, labels=labels)),
            "ece": _ece(bins_of(confidence, is_right, _equal_width())),
            "ece_of_equal_bins": _ece(bins_of(confidence, is_right, _equal_mass(confidence))),
            "risk_area": _risk_area(points),
            "reliability": tuple(bins_of(confidence, is_right, _equal_width())),
            "coverage": tuple(points),
        }
    return Figures(
        accuracy=float(is_right.mean()),
        interval=interval_of(*effective(*shares_of(is_right, read_groups(groups, len(gold))))),
        balanced_accuracy=float(recall[n > 0].mean()),
        macro_f1=float(metrics.f1_score(gold, answers, average="macro", zero_division=0.0)),
        unfit=None if mass is None else float((mass < LOW_MASS).mean()),
        per_class=tuple(ClassFigures(*one) for one in per_class),
        confusion=tuple(map(tuple, metrics.confusion_matrix(gold, answers, labels=labels).tolist())),
        **of_probabilities,
    )


def shares_of(is_right: npt.NDArray[np.bool_], groups: Ints) -> tuple[Floats, Floats]:
    """Return the share of right rows in each group, and the sizes of the groups."""
    sizes = np.bincount(groups)
    n_right = np.bincount(groups, weights=is_right)
    there = sizes > 0
    return n_right[there] / sizes[there], sizes[there].astype(np.float64)


def effective(shares: Floats, weights: Floats) -> tuple[float, float]:
    """Return the weighted mean of the groups' shares, and how many independent rows would tell as much.

    The effective sample size is Kish's (1965), as if all rows of a group were right or wrong together, or what the
    linearized variance of the mean gives (Korn and Graubard, 1998), if that is smaller, as where large groups are more
    often wrong. It is the number of groups where all have the same weight.

    Parameters
    ----------
    shares : ndarray of float64, shape (n_groups,)
        In [0, 1].
    weights : ndarray of float64, shape (n_groups,)
        Above 0: the sizes, for a mean over rows.
    """
    parts = weights / weights.sum()
    mean = float(np.average(shares, weights=weights))
    n = float(1 / (parts**2).sum())
    variance = float((parts**2 * (shares - mean) ** 2).sum())
    return mean, min(n, mean * (1 - mean) / variance) if variance > 0 else n


def interval_of(share: float, n: float) -> tuple[float, float]:
    """Return Wilson's (1927) interval of a share of n independent rows, with 95 % assurance."""
    z = 1.959963984540054
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)))
    return max(0.0, middle - half), min(1.0, middle + half)


def bins_of(confidence: Floats, is_right: npt.NDArray[np.bool_], edges: Floats) -> list[Bin]:
    """Return the bins that have rows; a row on an edge is of the bin below, as in ``calibration_curve``."""
    of = np.searchsorted(edges[1:-1], confidence)
    n, sums, right = (
        np.bincount(of, weights=weights, minlength=len(edges) - 1) for weights in (None, confidence, is_right)
    )
    return [Bin(int(n[i]), float(sums[i] / n[i]), float(right[i] / n[i])) for i in np.flatnonzero(n)]


def coverage_of(confidence: Floats, is_right: npt.NDArray[np.bool_]) -> list[Point]:
    """Return a point for each confidence that there is; rows of the same are decided together."""
    order = np.argsort(-confidence, kind="stable")
    ranked, right = confidence[order], np.cumsum(is_right[order])
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    return [Point(float(ranked[i]), int(i + 1), float(right[i] / (i + 1))) for i in ends]


def _equal_width() -> Floats:
    return np.linspace(0.0, 1.0, N_BINS + 1)


def _equal_mass(confidence: Floats) -> Floats:
    return np.asarray(np.percentile(confidence, np.linspace(0, 100, N_BINS + 1)), np.float64)


def _ece(bins: list[Bin]) -> float:
    return sum(one.n * abs(one.accuracy - one.confidence) for one in bins) / sum(one.n for one in bins)


def _risk_area(points: list[Point]) -> float:
    before, area = 0, 0.0
    for point in points:
        area += (point.n - before) * (1 - point.accuracy)
        before = point.n
    return area / before
