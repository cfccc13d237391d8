"""Fits of calibrations to readings of rows, with or without labels, and their metrics on held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats, Ints
from token_trie.decisions.calibration import MIN_ROWS, Base, BatchPrior, Mean
from token_trie.decisions.gold import one_thread
from token_trie.errors import ArgumentError, CalibrationError, InternalError
from token_trie.native.checks import check_counts, lookup
from token_trie.trust.head import Head, Heads
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
from token_trie.trust.rows import Readings, RowOptions

if TYPE_CHECKING:
    from typing_extensions import Self

    from token_trie.trust.rows import RowKeywords
    from token_trie.trust.stored import JsonObject

FitKind: TypeAlias = Literal["auto", "contextual", "batch", "domain", "mean", "temperature", "bias", "head"]
"""Kinds of `Calibration`, whose docstring describes them."""


@dataclass(frozen=True, kw_only=True)
class FitOptions(RowOptions):
    """Options of `Calibration.fit`.

    Parameters
    ----------
    kind : {"auto", "contextual", "batch", "domain", "mean", "temperature", "bias", "head"}
        The kind of calibration; see `Calibration`. "auto": with labels, the kind with the lowest log loss on held-out
        rows; without labels, "mean".
    frequencies : mapping of values to float, optional
        For kinds without labels: how frequent each answer is, if they are not equally frequent.
    n_folds : int
        Number of parts of the rows. Each part is answered by a calibration that was fitted on the other parts.
    """

    kind: FitKind = "auto"
    frequencies: Mapping[Any, float] | None = None
    n_folds: int = 10

    def __post_init__(self) -> None:
        lookup(self.kind, dict.fromkeys(("auto", *KINDS), 0), "kind")
        BatchPrior(self.frequencies)
        check_counts(2, n_folds=self.n_folds)
        super().__post_init__()


Parameters: TypeAlias = dict[str, Any]
"""Fields of a `Calibration`: kind, bias, and those of temperature, head and base that are not the default."""


_SCALE = 10_000


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


_SEED = 0
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
    more: Readings | None = None,
) -> tuple[Parameters, HeldOut | None]:
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
    more : Readings, optional
        The readings of the texts of `more_rows`, for kinds that take some.

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
        return _fit_without_labels(readings, kind, prior, more, len(np.unique(own))), None
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


def _fit_without_labels(
    readings: Readings, kind: FitKind, prior: Floats | None, more: Readings | None, n_different: int
) -> Parameters:
    """Fit without labels; n_different is the number of different rows. See `fit_readings`."""
    kind = "mean" if kind == "auto" else kind
    if KINDS[kind].takes_labels:
        raise ArgumentError(f"kind: {kind!r} needs gold labels")
    found: Parameters = KINDS[kind].fit(readings, more, n_different)
    return {"kind": kind, **found, "bias": found["bias"] if prior is None else found["bias"] + prior}


def _contextual(readings: Readings, more: Readings | None, n_different: int) -> Parameters:
    if readings.contextual is None:
        raise ArgumentError("kind: 'contextual' is of questions; of choices, give choose a Contextual")
    return {"base": "contextual", "bias": np.zeros(len(readings.texts))}


def _domain(readings: Readings, more: Readings | None, n_different: int) -> Parameters:
    if more is None or not len(more):
        raise ArgumentError("kind: 'domain' takes what a model says behind words of the rows")
    return {"bias": mean_bias(more.raw, np.logaddexp)}


def _mean(readings: Readings, more: Readings | None, n_different: int, *, add: np.ufunc) -> Parameters:
    if n_different < MIN_ROWS:
        raise CalibrationError(f"rows: {n_different} different, where {MIN_ROWS} are the fewest that tell something")
    base: Base = "raw" if readings.contextual is None else "contextual"
    return {"base": base, "bias": mean_bias(readings.scores(base), add)}


def mean_bias(scores: Floats, add: np.ufunc = np.add) -> Floats:
    """Return the bias that subtracts each class's mean over the rows; `add` is that of `Mean`."""
    mean = Mean(add).with_rows(scores if add is np.add else log_softmax(scores)).value
    bias: Floats = mean.mean() - mean
    return bias


def in_domain(rows: Sequence[Any], seed: int = _SEED) -> list[str]:
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


class FitCandidate(NamedTuple):
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

    fit: Callable[[], Parameters]
    log_p: Floats
    takes_scores: bool = False


Fitter: TypeAlias = Callable[[Ints, Folds], Iterator[FitCandidate]]
"""Yields fits to rows, each set of rows fitted once; CalibrationError if the rows do not allow one."""


def _scale_fitters(readings: Readings, gold: Ints, *, has_bias: bool) -> list[Fitter]:
    """Return fitters of a temperature, and optionally a bias for each class."""
    bases: list[Base] = ["raw"] if readings.contextual is None else ["raw", "contextual"]
    return [_scale_fitter(readings.scores(base), gold, base, has_bias) for base in bases]


def _scale_fitter(scores: Floats, gold: Ints, base: Base, has_bias: bool) -> Fitter:
    made: dict[bytes, tuple[Floats, float]] = {}

    def fit(rows: Ints) -> tuple[Floats, float]:
        key = rows.tobytes()
        if key not in made:
            made[key] = _scale(scores[rows], gold[rows], has_bias)
        return made[key]

    def parameters(rows: Ints) -> Parameters:
        bias, temperature = fit(rows)
        return {"kind": "bias" if has_bias else "temperature", "base": base, "bias": bias, "temperature": temperature}

    def fitted(rows: Ints, folds: Folds) -> Iterator[FitCandidate]:
        log_p = np.empty(scores.shape)
        for train, test in [*folds, (rows, np.setdiff1d(np.arange(len(gold)), rows))]:
            bias, temperature = fit(train)
            log_p[test] = log_softmax((scores[test] + bias) / temperature)
        yield FitCandidate(partial(parameters, rows), log_p)

    return fitted


def _scale(scores: Floats, gold: Ints, has_bias: bool) -> tuple[Floats, float]:
    """Minimize the log loss; a ridge penalty keeps the bias near the one that subtracts the rows' mean."""
    from scipy.optimize import minimize, minimize_scalar

    centred = mean_bias(scores) if has_bias else np.zeros(scores.shape[1])
    low, high = np.log(_TEMPERATURES)

    def at(log_t: float) -> float:
        return log_loss(log_softmax((scores + centred) / np.exp(log_t)), gold)

    log_t = float(minimize_scalar(at, bounds=(low, high), method="bounded").x)
    if not has_bias:
        return centred, float(np.exp(log_t))
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
    return centred + x[1:] * temperature, temperature


def _head_fitters(readings: Readings, gold: Ints) -> list[Fitter]:
    """Return a fitter of heads on the hidden state, without and with scores; none if the states were not read."""
    if readings.states is None:
        return []
    heads, texts = Heads(readings.states.astype(np.float64), readings.raw, gold), readings.texts

    def parameters(fit: Callable[[], Head]) -> Parameters:
        return {"kind": "head", "bias": np.zeros(len(texts)), "head": fit()}

    def fitted(rows: Ints, folds: Folds) -> Iterator[FitCandidate]:
        for name, n in zip(texts, np.bincount(gold, minlength=len(texts)), strict=True):
            if n == 0:
                raise CalibrationError(f"gold: no row of {name!r}, where a head needs some of each class")
        for fit, log_p, takes_scores in heads.fitted(rows, folds):
            yield FitCandidate(partial(parameters, fit), log_p, takes_scores)

    return [fitted]


class Kind(NamedTuple):
    """A kind of calibration that is fitted on rows.

    Attributes
    ----------
    says : str
        A description, for reports.
    fit : callable
        With labels: takes readings and gold classes, and returns fitters. Without labels: takes readings, those of
        `more_rows`, and the number of different rows, and returns the parameters.
    takes_labels : bool
    takes_states : bool
        Whether it needs hidden states.
    more_rows : callable, optional
        Makes further texts, which the model has to read, from the rows.
    """

    says: str
    fit: Callable[..., Any]
    takes_labels: bool = False
    takes_states: bool = False
    more_rows: Callable[[Sequence[Any]], list[str]] | None = None


KINDS: Mapping[FitKind, Kind] = {
    "contextual": Kind("less what the question gives without a state", _contextual),
    "mean": Kind("less the mean of the rows' log scores; no labels", partial(_mean, add=np.add)),
    "batch": Kind("batch calibration; no labels", partial(_mean, add=np.logaddexp)),
    "domain": Kind("less what random words of the rows give; no labels", _domain, more_rows=in_domain),
    "temperature": Kind("one temperature, by labels", partial(_scale_fitters, has_bias=False), takes_labels=True),
    "bias": Kind("a bias a class, by labels", partial(_scale_fitters, has_bias=True), takes_labels=True),
    "head": Kind("logistic regression on the hidden state, by labels", _head_fitters, True, True),
}
"""All kinds but "auto"."""


def more_rows(kind: FitKind, rows: Sequence[Any]) -> list[str]:
    """Return the texts that a kind has read besides the rows."""
    make = None if kind == "auto" else KINDS[kind].more_rows
    return [] if make is None else make(rows)


def takes_states(kind: FitKind) -> bool:
    """Whether a kind may use hidden states."""
    return kind == "auto" or KINDS[kind].takes_states


def _fitters(readings: Readings, gold: Ints, kind: FitKind) -> list[Fitter]:
    if kind == "auto":
        return [fitter for one in KINDS.values() if one.takes_labels for fitter in one.fit(readings, gold)]
    if not KINDS[kind].takes_labels:
        raise ArgumentError(f"kind: {kind!r} takes no labels; leave gold out")
    fitters: list[Fitter] = KINDS[kind].fit(readings, gold)
    if not fitters:
        raise CalibrationError(f"kind: {kind!r} needs hidden states, which were not read")
    return fitters


def _best(fitters: list[Fitter], rows: Ints, folds: Folds, gold: Ints, groups: Ints) -> FitCandidate:
    """Return the fit with the lowest log loss; one that needs scores, which cost time, only if significantly better."""
    if not folds:
        raise CalibrationError("gold: too few rows of some classes to choose by some and measure on others")
    found: list[FitCandidate] = []
    for fitter in fitters:
        try:
            found += fitter(rows, folds)
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


def measured(texts: tuple[str, ...], log_p: Floats, gold: Ints) -> Measured:
    """Compute the metrics of log-probabilities."""
    found = figures_of(texts, gold, log_p.argmax(axis=1), np.exp(log_p), None)
    log_loss, brier, ece = found.log_loss, found.brier, found.ece
    if log_loss is None or brier is None or ece is None:
        raise InternalError("probabilities without figures")
    return Measured(found.accuracy, log_loss, brier, ece)


if TYPE_CHECKING:  # by scripts/keywords

    class FitKeywords(RowKeywords, total=False):
        """Keywords of `FitOptions`."""

        kind: FitKind
        frequencies: Mapping[Any, float] | None
        n_folds: int
