"""Fits of calibrations to readings of rows, with or without labels, and their metrics on held-out rows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats, Ints
from token_trie.decisions.calibration import MIN_ROWS, Base, BatchPrior, Mean
from token_trie.decisions.gold import import_sklearn, one_thread
from token_trie.errors import ArgumentError, CalibrationError
from token_trie.native.options import check_counts, check_name
from token_trie.trust.fitted import Head, HeldOut, Measured
from token_trie.trust.metrics import (
    Folds,
    figures_of,
    fit_once,
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
    from token_trie.trust.rows import RowKeywords

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
        check_name(self.kind, ("auto", *KINDS), "kind")
        BatchPrior(self.frequencies)
        check_counts(2, n_folds=self.n_folds)
        super().__post_init__()


Parameters: TypeAlias = dict[str, Any]
"""Fields of a `Calibration`: kind, bias, and those of temperature, head and base that are not the default."""

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
    """Fit a calibration to readings and, with labels, measure it by nested cross-validation (Varma and Simon, 2006).

    For each fold, the kind and all hyperparameters are chosen on the other folds alone, by folds of these. `gold` has
    the positions of the right classes; `prior`, for kinds without labels, the logarithms of the class frequencies. Rows
    of one group, by default those with equal readings, are one observation. `more` are the readings of the texts of
    `Kind.more_rows`. CalibrationError for too few rows, rows of one class only, or scores that are not finite;
    ArgumentError if the kind needs labels, or takes none.
    """
    parts = [part for part in (readings.raw, readings.contextual, readings.states) if part is not None]
    for part in parts:
        if not np.isfinite(part).all():
            row = int(np.flatnonzero(~np.isfinite(part).all(axis=1))[0])
            raise CalibrationError(f"rows[{row}]: the model's scores of it are not finite")
    if groups is None:
        own = numbered([b"".join(part[i].tobytes() for part in parts) for i in range(len(readings))])
    else:
        own = read_groups(groups, len(readings))
    n_different = len(np.unique(own))
    if gold is None:
        return _fit_without_labels(readings, kind, prior, more, n_different), None
    if prior is not None:
        raise ArgumentError("frequencies: go without labels, which tell them")
    if n_different < MIN_LABELLED:
        raise CalibrationError(
            f"gold: {n_different} different rows, and at least {MIN_LABELLED} are needed; give more rows"
        )
    folds = folds_of(gold, own, n_folds)
    if not folds:
        most = int(np.bincount(gold).argmax())
        rows = "all rows" if (gold == most).all() else "all rows but those of one text"
        raise CalibrationError(
            f"gold: {rows} are {readings.texts[most]!r}, which tells nothing of the others; give rows of these, too"
        )
    if not kind_of(kind).takes_labels:
        raise ArgumentError(f"kind: {kind!r} takes no labels; leave gold out")
    fitters: list[Fitter] = kind_of(kind).fit(readings, gold)
    if not fitters:
        raise CalibrationError(f"kind: {kind!r} needs hidden states, which were not read")
    fitted = _best(fitters, np.arange(len(gold)), folds, gold, own).fit()
    log_p = np.empty(readings.raw.shape)
    for i, (train, test) in enumerate(folds):
        log_p[test] = _best(fitters, train, within(folds, i, gold, own), gold, own).log_p[test]
    of_fit, of_raw = (measured(readings.texts, some, gold) for some in (log_p, log_softmax(readings.raw)))
    return fitted, HeldOut.of(len(folds), of_fit, of_raw, np.exp(log_p), gold, own)


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
    return len(os.path.commonprefix(texts))  # noqa: RUF071 - characters are meant


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
        raise ArgumentError("kind: 'domain' takes the model's scores after words of the rows")
    return {"bias": mean_bias(more.raw, np.logaddexp)}


def _mean(readings: Readings, more: Readings | None, n_different: int, *, add: np.ufunc) -> Parameters:
    if n_different < MIN_ROWS:
        raise CalibrationError(f"rows: {n_different} different, and at least {MIN_ROWS} are needed; give more rows")
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
        raise CalibrationError(f"rows: {len(rows)}, and at least {MIN_ROWS} are needed; give more rows")
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
    """A candidate for the fit to some rows."""

    fit: Callable[[], Parameters]
    """Returns the fit to these rows."""
    log_p: Floats
    """Shape (n_rows, n_classes): of these rows by cross-validation, of all other rows by the fit to these."""
    takes_scores: bool = False
    """Whether it is a head that uses scores."""


Fitter: TypeAlias = Callable[[Ints, Folds], Iterator[FitCandidate]]
"""Yields fits to rows, each set of rows fitted once; CalibrationError if the rows do not allow one."""


def _scale_fitters(readings: Readings, gold: Ints, *, has_bias: bool) -> list[Fitter]:
    """Return fitters of a temperature, and optionally a bias for each class."""
    bases: list[Base] = ["raw"] if readings.contextual is None else ["raw", "contextual"]
    return [_scale_fitter(readings.scores(base), gold, base, has_bias) for base in bases]


def _scale_fitter(scores: Floats, gold: Ints, base: Base, has_bias: bool) -> Fitter:
    made: dict[bytes, Parameters] = {}

    def fit(rows: Ints) -> Parameters:
        key = rows.tobytes()
        if key not in made:
            bias, temperature = _scale(scores[rows], gold[rows], has_bias)
            kind = "bias" if has_bias else "temperature"
            made[key] = {"kind": kind, "base": base, "bias": bias, "temperature": temperature}
        return made[key]

    def fitted(rows: Ints, folds: Folds) -> Iterator[FitCandidate]:
        log_p = np.empty(scores.shape)
        for train, test in [*folds, (rows, np.setdiff1d(np.arange(len(gold)), rows))]:
            found = fit(train)
            log_p[test] = log_softmax((scores[test] + found["bias"]) / found["temperature"])
        yield FitCandidate(partial(fit, rows), log_p)

    return fitted


def _scale(scores: Floats, gold: Ints, has_bias: bool) -> tuple[Floats, float]:
    """Minimize the log loss; a ridge penalty keeps the bias near the one that subtracts the rows' mean."""
    from scipy.optimize import minimize, minimize_scalar

    centred = mean_bias(scores) if has_bias else np.zeros(scores.shape[1])
    low, high = np.log(_TEMPERATURES)
    hits = np.eye(scores.shape[1], dtype=np.bool_)[gold]
    wrong = 1 / (len(np.unique(scores, axis=0)) + 2)

    def at(log_t: float) -> float:
        return _doubted((scores + centred) / np.exp(log_t), hits, wrong)[0]

    log_t = float(minimize_scalar(at, bounds=(low, high), method="bounded").x)
    if not has_bias:
        return centred, float(np.exp(log_t))

    def loss(x: Floats) -> tuple[float, Floats]:
        scaled = (scores + centred) * np.exp(-x[0]) + x[1:]
        value, rest = _doubted(scaled, hits, wrong)
        slope = -float((rest * (scaled - x[1:])).sum())
        return value + _RIDGE / 2 * float(x[1:] @ x[1:]), np.concatenate([[slope], rest.sum(axis=0) + _RIDGE * x[1:]])

    start = np.concatenate([[log_t], np.zeros(scores.shape[1])])
    bounds = [(low, high), *[(None, None)] * scores.shape[1]]
    x = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    temperature = float(np.exp(x[0]))
    return centred + x[1:] * temperature, temperature


def _doubted(weights: Floats, hits: npt.NDArray[np.bool_], wrong: float) -> tuple[float, Floats]:
    """Return the summed log loss of log-weights whose rows' labels are wrong with a probability, and its gradient.

    With n rows, all of which are answered right, the fit then promises (n + 1) / (n + 2) and not 1: Laplace's rule of
    succession, as in Platt (1999). If a label is wrong, nothing is assumed of the right one.
    """
    log_p = log_softmax(weights)
    others = np.where(hits, -np.inf, log_p)
    value = (1 - wrong) * log_p[hits].sum() + wrong * np.logaddexp.reduce(others, axis=1).sum()
    return -float(value), np.exp(log_p) - (1 - wrong) * hits - wrong * np.exp(log_softmax(others))


_CS = (0.01, 0.1, 1.0)
"""Inverse strengths of the regularization of logistic regression."""
_LOG_SHARE_BOUNDS = (-9.0, 3.0)
_FIRST_LOG_SHARES = (-0.5, -3.0, -3.0)


class _Mixture(NamedTuple):
    """Weights of a sum: logistic regression with one C, discriminant analysis and, if used, the classes' log-shares."""

    c: int
    shares: Floats
    loss: float

    def of(self, margins: Floats) -> Floats:
        """Return log-weights for the margins of all Cs, shape (n_parts, n_rows, n_classes)."""
        return np.tensordot(self.shares, _parts(margins, self.c), 1)


def _head_fitter(states: Floats, readings: Readings, gold: Ints) -> Fitter:
    """Return a fitter of heads to hidden states, without and with scores beside them.

    A head is a weighted sum of logistic regression, linear discriminant analysis with shrunk covariance (Ledoit and
    Wolf, 2004), both on standardized states, and optionally the log-shares of the scores. C and the weights, which also
    set the temperature, minimize the log loss on held-out rows (stacking; Wolpert, 1992).
    """
    log_shares = log_softmax(readings.raw)
    shape = len(_CS) + 1, len(gold), int(gold.max()) + 1

    def margins_of_others(train: Ints, others: Ints) -> Floats:
        """Return the margins of other rows by fits to train rows, shape (n_parts, n_others, n_classes)."""
        there = np.unique(gold[train])
        if len(train) <= len(there):
            raise CalibrationError("gold: too few rows of some classes for a head")
        found = np.empty((shape[0], len(others), shape[2]))
        for margins, one in zip(found, _linears(states[train], gold[train], _CS), strict=True):
            known = one.log_weights_of(states[others])
            margins[:] = known.min(axis=1, keepdims=True)  # an unseen class gets the lowest margin
            margins[:, there] = known
        return found

    margins_of = fit_once(len(gold), margins_of_others)

    def fit(mixture: _Mixture, rows: Ints) -> Parameters:
        head = _mixed(mixture, *_linears(states[rows], gold[rows], (_CS[mixture.c],)))
        return {"kind": "head", "bias": np.zeros(len(readings.texts)), "head": head}

    def fitted(rows: Ints, folds: Folds) -> Iterator[FitCandidate]:
        for name, n in zip(readings.texts, np.bincount(gold, minlength=len(readings.texts)), strict=True):
            if n == 0:
                raise CalibrationError(f"gold: no row of {name!r}, where a head needs some of each class")
        others = np.setdiff1d(np.arange(len(gold)), rows)
        margins = np.empty(shape)
        for train, test in [*folds, (rows, others)]:
            if len(test):
                margins[:, test] = margins_of(train, test)
        judged = np.concatenate([test for _, test in folds])
        for parts in (margins, np.concatenate([margins, log_shares[None]])):
            log_p = np.empty(shape[1:])
            best = _mixture(parts[:, judged], gold[judged])
            for _, test in folds:
                train = np.setdiff1d(judged, test)
                log_p[test] = log_softmax(_mixture(parts[:, train], gold[train], best).of(parts[:, test]))
            log_p[others] = log_softmax(best.of(parts[:, others]))
            yield FitCandidate(partial(fit, best, rows), log_p, parts is not margins)

    return fitted


def _mixed(mixture: _Mixture, first: Head, second: Head) -> Head:
    """Return the weighted sum as one head."""
    shares = mixture.shares
    weights, intercept = (
        shares[0] * getattr(first, name) + shares[1] * getattr(second, name) for name in ("weights", "intercept")
    )
    if len(shares) == 2:
        return Head(first.mean, first.scale, weights, intercept, takes_scores=False)
    n = len(intercept)
    mean, scale = np.concatenate([first.mean, np.zeros(n)]), np.concatenate([first.scale, np.ones(n)])
    return Head(mean, scale, np.concatenate([weights, shares[2] * np.eye(n)], axis=1), intercept, takes_scores=True)


def _linears(x: Floats, gold: Ints, cs: Sequence[float]) -> Iterator[Head]:
    """Fit logistic regressions, each starting from the one before, then discriminant analysis."""
    linear: Any = import_sklearn("linear_model")
    scaler: Any = import_sklearn("preprocessing").StandardScaler().fit(x)
    standard = scaler.transform(x)
    logistic = linear.LogisticRegression(max_iter=1000, warm_start=True)
    for c in cs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a fit did not converge: cross-validation judges it
            logistic.set_params(C=c).fit(standard, gold)
        weights, intercept = logistic.coef_, logistic.intercept_
        if len(weights) == 1:  # scikit-learn has one row for two classes
            weights, intercept = (np.concatenate([-part / 2, part / 2]) for part in (weights, intercept))
        yield Head(scaler.mean_, scaler.scale_, weights.copy(), intercept.copy(), takes_scores=False)
    yield Head(scaler.mean_, scaler.scale_, *_discriminant(standard, gold), takes_scores=False)


def _discriminant(x: Floats, gold: Ints) -> tuple[Floats, Floats]:
    """Return weights and intercepts of linear discriminant analysis with each class's covariance shrunk.

    They equal those of scikit-learn's `LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")`. One matrix product
    for the covariance and a Cholesky factorization take a seventh of its time with 2,048 features.
    """
    from scipy.linalg import LinAlgError, LinAlgWarning, lstsq, solve

    covariance: Any = import_sklearn("covariance")
    scaler: Any = import_sklearn("preprocessing").StandardScaler()
    means, parts, diagonal = [], [], np.zeros(x.shape[1])
    classes, counts = np.unique(gold, return_counts=True)
    for one, n in zip(classes, counts, strict=True):
        standard = scaler.fit_transform(x[gold == one])
        shrinkage = covariance.ledoit_wolf_shrinkage(standard, assume_centered=True) if n > 1 else 0.0
        means.append(scaler.mean_)
        diagonal += n / len(x) * shrinkage * (standard**2).mean() * scaler.scale_**2
        parts.append(standard * scaler.scale_ * np.sqrt((1 - shrinkage) / len(x)))
    within = np.concatenate(parts)
    shared, centres = within.T @ within + np.diag(diagonal), np.array(means)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LinAlgWarning)
        try:
            weights = solve(shared, centres.T, assume_a="pos").T
        except (LinAlgError, LinAlgWarning):  # such as classes without variance
            weights = lstsq(shared, centres.T)[0].T
    return weights, np.log(counts / len(x)) - (weights * centres).sum(axis=1) / 2


def _parts(margins: Floats, c: int) -> Floats:
    """Return the margins of one C and those without a C."""
    parts: Floats = margins[[c, *range(len(_CS), len(margins))]]
    return parts


def _mixture(margins: Floats, gold: Ints, near: _Mixture | None = None) -> _Mixture:
    """Return the mixture with the lowest log loss, searched from another's shares if given.

    A tenth of a row counts as wrong, so that no probability becomes 1.
    """
    from scipy.optimize import minimize

    n, k = margins.shape[1:]
    wrong = 0.1 / n
    target = np.full((n, k), wrong / k)
    target[np.arange(n), gold] += 1 - wrong
    found = []
    first = np.array(_FIRST_LOG_SHARES[: len(margins) - len(_CS) + 1]) if near is None else np.log(near.shares)
    for c in range(len(_CS)):
        parts = _parts(margins, c)

        def loss(log_shares: Floats, parts: Floats = parts) -> tuple[float, Floats]:
            shares = np.exp(log_shares)
            log_p = log_softmax(np.tensordot(shares, parts, 1))
            slopes = ((np.exp(log_p) - target) * parts).sum(axis=(1, 2)) * shares
            return -float((target * log_p).sum()) / n, slopes / n

        at = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=[_LOG_SHARE_BOUNDS] * len(parts))
        first = at.x
        found.append(_Mixture(c, np.exp(at.x), float(at.fun)))
    return min(found, key=lambda one: one.loss)


def _head_fitters(readings: Readings, gold: Ints) -> list[Fitter]:
    """Return a fitter of heads; none if the states were not read."""
    return [] if readings.states is None else [_head_fitter(readings.states.astype(np.float64), readings, gold)]


class Kind(NamedTuple):
    """A kind of calibration that is fitted on rows."""

    says: str
    """A description, for reports."""
    fit: Callable[..., Any]
    """With labels: takes readings and gold classes, and returns fitters. Without labels: takes readings, those of
    `more_rows`, and the number of different rows, and returns the parameters."""
    takes_labels: bool = False
    takes_states: bool = False
    """Whether it needs hidden states."""
    more_rows: Callable[[Sequence[Any]], list[str]] = lambda rows: []
    """Makes further texts, which the model has to read, from the rows."""


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


_AUTO = Kind(
    "fitted by labels: what is best by cross-validated log loss",
    lambda *given: [fitter for kind in KINDS.values() if kind.takes_labels for fitter in kind.fit(*given)],
    takes_labels=True,
    takes_states=True,
)


def kind_of(name: FitKind) -> Kind:
    """Return a kind by its name; "auto" is all that take labels."""
    return _AUTO if name == "auto" else KINDS[name]


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
    found: Any = figures_of(texts, gold, log_p.argmax(axis=1), np.exp(log_p), None)
    return Measured(*(getattr(found, name) for name in Measured._fields))


if TYPE_CHECKING:  # by scripts/keywords

    class FitKeywords(RowKeywords, total=False):
        """Keywords of `FitOptions`."""

        kind: FitKind
        frequencies: Mapping[Any, float] | None
        n_folds: int
