"""Fits of calibrations to readings of rows, with or without labels, and their metrics on held-out rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats, Ints, States
from token_trie.decisions.calibration import MIN_ROWS, Base, Calibrator, Mean
from token_trie.decisions.gold import one_thread
from token_trie.errors import ArgumentError, CalibrationError, InternalError
from token_trie.trust.head import FittedHead, Head, Heads
from token_trie.trust.metrics import (
    Folds,
    figures_of,
    folds_of,
    log_loss,
    log_softmax,
    losses,
    numbered,
    read_groups,
    within,
)
from token_trie.trust.rows import FitKind, Readings

if TYPE_CHECKING:
    from typing_extensions import Self

    from token_trie.trust.stored import JsonObject


_SCALE = 10_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Fit(Calibrator):
    """The parameters of a calibration; see `Calibration`."""

    kind: str
    bias: Floats
    temperature: float = 1.0
    head: Head | None = None
    base: Base = "raw"
    """The scores that it takes: the model's own, or those with a question's contextual prior subtracted."""

    @property
    def prompts(self) -> tuple[None, ...]:
        """The state without content of the question that it was fitted on, if its prior is subtracted."""
        return (None,) if self.base == "contextual" else ()

    @property
    def weights(self) -> Floats | None:
        """The bias of each class, which determines the order of the classes; None for a head."""
        return None if self.head is not None else self.bias

    @property
    def needs_scores(self) -> bool:
        """Whether it uses scores."""
        return self.head is None or self.head.takes_scores

    @property
    def needs_state(self) -> bool:
        """Whether it uses the hidden state of the prompt's last token."""
        return self.head is not None

    def log_weights(self, scores: Floats | None, states: States | None) -> Floats:
        """Return log-weights, whose softmax are the probabilities; see `Calibrator.log_weights`."""
        if self.head is not None:
            return self.head.log_weights(scores, states) / self.temperature
        assert scores is not None
        return (scores + self.bias) / self.temperature


def rounded_down(confidence: Floats) -> Floats:
    """Round confidences down to the precision of a file."""
    rounded: Floats = np.floor(confidence * _SCALE) / _SCALE
    return rounded


@dataclass(frozen=True)
class Measured:
    """Metrics of probabilities."""

    accuracy: float
    log_loss: float
    brier: float
    ece: float
    """Expected calibration error over ten bins of equal width."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Results of cross-validation: each row of the fit, answered by a fit on other rows.

    Attributes
    ----------
    n_rows, n_folds : int
    calibrated, raw : Measured
        Metrics with the calibration, and of the raw scores.
    confidence : ndarray of float64, shape (n_rows,)
        The probability of each answer, in steps of 0.0001.
    is_right : ndarray of bool, shape (n_rows,)
    groups : ndarray of int64, shape (n_rows,)
        Equal rows have the same number.
    probabilities : ndarray of float64, shape (n_rows, n_classes), or None
        Probabilities of all classes; None after loading from a file, which does not keep them.
    """

    n_rows: int
    n_folds: int
    calibrated: Measured
    raw: Measured
    confidence: Floats
    is_right: npt.NDArray[np.bool_]
    groups: npt.NDArray[np.int64]
    probabilities: Floats | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes but the probabilities, for JSON."""
        return {
            "n_rows": self.n_rows,
            "n_folds": self.n_folds,
            "calibrated": vars(self.calibrated),
            "raw": vars(self.raw),
            "confidence": np.rint(self.confidence * _SCALE).astype(int).tolist(),
            "is_right": "".join("1" if right else "0" for right in self.is_right),
            "groups": self.groups.tolist(),
        }

    @classmethod
    def from_stored(cls, read: JsonObject) -> Self:
        """Read what `to_dict` returned; otherwise CalibrationError."""
        is_right = read.text("is_right")
        if set(is_right) - {"0", "1"}:
            raise CalibrationError("held_out.is_right: a text of 0 and 1 belongs here")
        own, raw = (
            Measured(*(inner.number(field.name) for field in fields(Measured)))
            for inner in map(read.inner, ("calibrated", "raw"))
        )
        confidence = read.floats("confidence", (len(is_right),)) / _SCALE
        if len(is_right) != read.integer("n_rows"):
            raise CalibrationError(f"held_out.is_right: {len(is_right)} rows, where n_rows is {read.integer('n_rows')}")
        if len(confidence) and not (confidence.min() >= 0 and confidence.max() <= 1):
            raise CalibrationError(f"held_out.confidence: a number outside 0 to {_SCALE}")
        right = np.array([one == "1" for one in is_right], np.bool_)
        groups = read.floats("groups", (len(is_right),))
        if not ((groups >= 0) & (groups < max(1, len(groups))) & (groups == np.floor(groups))).all():
            raise CalibrationError(f"held_out.groups: a number that is none of 0 to {len(groups) - 1}")
        return cls(
            read.integer("n_rows"), read.integer("n_folds"), own, raw, confidence, right, groups.astype(np.int64)
        )


_N_SHUFFLED = 20
"""Random texts for "domain", as in Fei et al. (2023)."""


MIN_LABELLED = 20
"""Different rows for a fit with labels."""
_TEMPERATURES = (0.05, 20.0)
_RIDGE = 1.0
"""Ridge penalty of a bias: half this many nats for a bias of one, over all rows."""
_MIN_GAIN = 0.01
"""In nats: the gain in log loss from which a head uses scores."""


@one_thread()
def fit_readings(
    readings: Readings,
    gold: Ints | None,
    *,
    kind: FitKind = "auto",
    prior: Floats | None = None,
    n_folds: int = 10,
    groups: npt.ArrayLike | None = None,
    shuffled: Readings | None = None,
) -> tuple[Fit, HeldOut | None]:
    """Fit a calibration to readings and, with labels, measure it on held-out rows.

    The measure is nested cross-validation (Varma and Simon, 2006): for each fold, the kind and all hyperparameters are
    chosen on the other folds alone, by folds of these.

    Parameters
    ----------
    readings : Readings
    gold : ndarray of int64, shape (n_rows,), or None
        Positions of the right classes.
    kind
        As for `FitOptions`.
    prior : ndarray of float64, shape (n_classes,), optional
        For kinds without labels: the logarithms of the class frequencies.
    n_folds : int
    groups : array, shape (n_rows,), optional
        Rows of one group, such as duplicates, are in one fold and count as one observation. By default, rows with
        equal readings are one group.
    shuffled : Readings, optional
        For "domain": the readings of texts made of random words of the rows.

    Raises
    ------
    CalibrationError
        There are too few rows, rows of one class only, or scores that are not finite.
    ArgumentError
        The kind needs labels, or takes none.
    """
    _require_finite(readings)
    own = _equal_rows(readings) if groups is None else read_groups(groups, len(readings))
    if gold is None:
        return fit_without_labels(readings, kind, prior, shuffled, len(np.unique(own))), None
    if prior is not None:
        raise ArgumentError("frequencies: go without labels, which tell them")
    if len(np.unique(own)) < MIN_LABELLED:
        n = len(np.unique(own))
        raise CalibrationError(f"gold: {n} different rows, where {MIN_LABELLED} are the fewest that tell something")
    folds = folds_of(gold, own, n_folds)
    if not folds:
        most = int(np.bincount(gold).argmax())
        rows = "all rows" if (gold == most).all() else "all rows but those of one text"
        raise CalibrationError(f"gold: {rows} are {readings.texts[most]!r}, which tells nothing of the others")
    fitters = _fitters(readings, gold, kind)
    fitted = _best(fitters, np.arange(len(gold)), folds, gold, own).fit()
    log_p = np.empty(readings.raw.shape)
    for i, (train, test) in enumerate(folds):
        log_p[test] = _best(fitters, train, within(folds, i, gold, own), gold, own).log_p[test]
    raw = log_softmax(readings.raw)
    held_out = HeldOut(
        len(gold),
        len(folds),
        measured(readings.texts, log_p, gold),
        measured(readings.texts, raw, gold),
        rounded_down(np.exp(log_p.max(axis=1))),
        log_p.argmax(axis=1) == gold,
        own,
        np.exp(log_p),
    )
    return fitted, held_out


def _require_finite(readings: Readings) -> None:
    for what in (readings.raw, readings.contextual, readings.states):
        if what is not None and not np.isfinite(what).all():
            row = int(np.flatnonzero(~np.isfinite(what).all(axis=1))[0])
            raise CalibrationError(f"rows[{row}]: the model's scores of it are not finite")


def _equal_rows(readings: Readings) -> Ints:
    parts = [part for part in (readings.raw, readings.contextual, readings.states) if part is not None]
    return numbered([b"".join(part[i].tobytes() for part in parts) for i in range(len(readings))])


def own_parts(texts: Sequence[str]) -> tuple[str, list[str], str]:
    """Split texts into their common first words, the rest of each text, and their common last words."""
    start = _n_common(texts)
    start = max((i + 1 for i in range(start) if texts[0][i].isspace()), default=0)
    inner = [text[start:] for text in texts]
    end = _n_common([text[::-1] for text in inner])
    end = max((i + 1 for i in range(end) if inner[0][-1 - i].isspace()), default=0)
    return texts[0][:start], [text[: len(text) - end] for text in inner], texts[0][len(texts[0]) - end :]


def _n_common(texts: Sequence[str]) -> int:
    """Return the length of the common prefix of texts, in characters."""
    first, last = min(texts), max(texts)
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def fit_without_labels(
    readings: Readings, kind: FitKind, prior: Floats | None, shuffled: Readings | None, n_different: int
) -> Fit:
    """Fit without labels; n_different is the number of different rows. See `fit_readings`."""
    if kind in ("temperature", "bias", "head"):
        raise ArgumentError(f"kind: {kind!r} needs gold labels")
    if kind == "auto":
        kind = "mean"
    base: Base = "raw" if readings.contextual is None or kind == "domain" else "contextual"
    scores = scores_of(readings, base)
    if kind == "contextual":
        if base == "raw":
            raise ArgumentError("kind: 'contextual' is of questions; of choices, give choose a Contextual")
        bias = np.zeros(len(readings.texts))
    elif kind == "domain":
        if shuffled is None or not len(shuffled):
            raise ArgumentError("kind: 'domain' takes what a model says behind words of the rows")
        bias = mean_bias(shuffled.raw, "batch")
    elif n_different < MIN_ROWS:
        raise CalibrationError(f"rows: {n_different} different, where {MIN_ROWS} are the fewest that tell something")
    else:
        bias = mean_bias(scores, kind)
    return Fit(kind=kind, bias=bias if prior is None else bias + prior, base=base)


def mean_bias(scores: Floats, kind: str) -> Floats:
    """Return the bias that subtracts each class's mean over the rows: of probabilities ("batch") or of log-scores."""
    is_batch = kind == "batch"
    mean = Mean(np.logaddexp if is_batch else np.add).with_rows(log_softmax(scores) if is_batch else scores).of_few
    bias: Floats = mean.mean() - mean
    return bias


def in_domain(rows: Sequence[Any], seed: int) -> list[str]:
    """Make texts of random words of the rows, of their mean length; the rows' common beginning and end stay."""
    if len(rows) < MIN_ROWS:
        raise CalibrationError(f"rows: {len(rows)}, where {MIN_ROWS} are the fewest that tell something")
    for i, row in enumerate(rows):
        if not isinstance(row, str):
            raise ArgumentError(f"rows[{i}]: {type(row).__name__}, where 'domain' takes texts")
    before, parts, after = own_parts(rows)
    own = [part.split() for part in parts]
    words = [word for some in own for word in some]
    if not words:
        raise CalibrationError("rows: they are all the same, and have no words of their own")
    n = max(1, round(len(words) / len(own)))
    rng = np.random.default_rng(seed)
    return [before + " ".join(rng.choice(words, n).tolist()) + after for _ in range(_N_SHUFFLED)]


class _Candidate(NamedTuple):
    """A candidate for the fit to some rows.

    Attributes
    ----------
    fit : callable
        Returns the fit to these rows.
    log_p : ndarray of float64, shape (n_rows, n_classes)
        For these rows by cross-validation, for all other rows by the fit to these.
    takes_scores : bool
        Whether it is a head that uses scores.
    """

    fit: Callable[[], Fit]
    log_p: Floats
    takes_scores: bool = False


class _Fitter(ABC):
    """Fits one kind; each set of rows once."""

    def __init__(self, readings: Readings, gold: Ints) -> None:
        self._readings, self._gold = readings, gold

    @abstractmethod
    def fitted(self, rows: Ints, folds: Folds) -> Iterator[_Candidate]:
        """Yield fits to rows; CalibrationError if the rows do not allow one."""


class _ScaleFitter(_Fitter):
    """Fits a temperature, and optionally a bias for each class."""

    def __init__(self, readings: Readings, gold: Ints, base: Base, *, has_bias: bool) -> None:
        super().__init__(readings, gold)
        self._scores, self._base, self._has_bias = scores_of(readings, base), base, has_bias
        self._made: dict[bytes, Fit] = {}

    def fitted(self, rows: Ints, folds: Folds) -> Iterator[_Candidate]:
        log_p = np.empty(self._scores.shape)
        for train, test in [*folds, (rows, np.setdiff1d(np.arange(len(self._gold)), rows))]:
            log_p[test] = log_softmax(self._fit_to(train).log_weights(self._scores[test], None))
        yield _Candidate(partial(self._fit_to, rows), log_p)

    def _fit_to(self, rows: Ints) -> Fit:
        key = rows.tobytes()
        if key not in self._made:
            self._made[key] = self._fit(self._scores[rows], self._gold[rows])
        return self._made[key]

    def _fit(self, scores: Floats, gold: Ints) -> Fit:
        """Minimize the log loss; a ridge penalty keeps the bias near the one that subtracts the rows' mean."""
        from scipy.optimize import minimize, minimize_scalar

        centred = mean_bias(scores, "mean") if self._has_bias else np.zeros(scores.shape[1])
        low, high = np.log(_TEMPERATURES)

        def at(log_t: float) -> float:
            return log_loss(log_softmax((scores + centred) / np.exp(log_t)), gold)

        log_t = float(minimize_scalar(at, bounds=(low, high), method="bounded").x)
        if not self._has_bias:
            return Fit(kind="temperature", bias=centred, temperature=float(np.exp(log_t)), base=self._base)
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
        return Fit(kind="bias", bias=centred + x[1:] * temperature, temperature=temperature, base=self._base)


class _HeadFitter(_Fitter):
    """Fits heads on the hidden state, without and with scores."""

    def __init__(self, readings: Readings, gold: Ints) -> None:
        super().__init__(readings, gold)
        assert readings.states is not None  # else `_fitters` makes none
        self._heads = Heads(readings.states.astype(np.float64), readings.raw, gold)

    def fitted(self, rows: Ints, folds: Folds) -> Iterator[_Candidate]:
        texts = self._readings.texts
        for name, n in zip(texts, np.bincount(self._gold, minlength=len(texts)), strict=True):
            if n == 0:
                raise CalibrationError(f"gold: no row of {name!r}, where a head needs some of each class")
        for one in self._heads.fitted(rows, folds):
            yield _Candidate(partial(self._fit, one), one.log_p, one.takes_scores)

    def _fit(self, one: FittedHead) -> Fit:
        return Fit(kind="head", bias=np.zeros(len(self._readings.texts)), head=one.head())


def _fitters(readings: Readings, gold: Ints, kind: FitKind) -> list[_Fitter]:
    bases: list[Base] = ["raw"] if readings.contextual is None else ["raw", "contextual"]
    known: Mapping[str, Callable[[], list[_Fitter]]] = {
        "temperature": lambda: [_ScaleFitter(readings, gold, base, has_bias=False) for base in bases],
        "bias": lambda: [_ScaleFitter(readings, gold, base, has_bias=True) for base in bases],
        "head": lambda: [] if readings.states is None else [_HeadFitter(readings, gold)],
    }
    if kind == "auto":
        return [fitter for fitters in known.values() for fitter in fitters()]
    if kind not in known:
        raise ArgumentError(f"kind: {kind!r} takes no labels; leave gold out")
    fitters = known[kind]()
    if not fitters:
        raise CalibrationError("kind: 'head' needs hidden states, which were not read")
    return fitters


def _best(fitters: list[_Fitter], rows: Ints, folds: Folds, gold: Ints, groups: Ints) -> _Candidate:
    """Return the fit with the lowest log loss; one that needs scores, which cost time, only if significantly better."""
    if not folds:
        raise CalibrationError("gold: too few rows of some classes to choose by some and measure on others")
    found: list[_Candidate] = []
    for fitter in fitters:
        try:
            found += fitter.fitted(rows, folds)
        except CalibrationError:
            if len(fitters) == 1 or (fitter is fitters[-1] and not found):
                raise
    judged = np.concatenate([test for _, test in folds])
    labels, own = gold[judged], groups[judged]
    plain = [one for one in found if not one.takes_scores]
    best, least = (min(some, key=lambda one: log_loss(one.log_p[judged], labels)) for some in (plain, found))
    gain = losses(best.log_p[judged], labels) - losses(least.log_p[judged], labels)
    # The cluster-robust standard error of the mean (Liang and Zeger, 1986): equal rows are one observation.
    error = np.sqrt((np.bincount(own, weights=gain - gain.mean()) ** 2).sum()) / len(gain)
    return least if gain.mean() > max(error, _MIN_GAIN) else best


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
    """Return the raw or the contextual scores."""
    scores = readings.raw if base == "raw" else readings.contextual
    assert scores is not None
    return scores


def log_probabilities(calibration: Fit, readings: Readings) -> Floats:
    """Return calibrated log-probabilities, shape (n_rows, n_classes)."""
    return log_softmax(calibration.log_weights(scores_of(readings, calibration.base), readings.states))


def measured(texts: tuple[str, ...], log_p: Floats, gold: Ints) -> Measured:
    """Compute the metrics of log-probabilities."""
    found = figures_of(texts, gold, log_p.argmax(axis=1), np.exp(log_p), None)
    log_loss, brier, ece = found.log_loss, found.brier, found.ece
    if log_loss is None or brier is None or ece is None:
        raise InternalError("probabilities without figures")
    return Measured(found.accuracy, log_loss, brier, ece)
