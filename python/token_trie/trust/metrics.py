"""What answers are worth, against gold labels: figures of scikit-learn's, by its own code where it has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.decision import LOW_MASS
from token_trie.decisions.learn import import_sklearn
from token_trie.trust.folds import read_groups

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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
