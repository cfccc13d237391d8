"""Linear classifiers on a model's hidden state, and their fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from token_trie.arrays import Floats, Ints, States
from token_trie.decisions.gold import import_sklearn
from token_trie.errors import CalibrationError
from token_trie.trust.metrics import Folds, log_softmax

if TYPE_CHECKING:
    from typing_extensions import Self

    from token_trie.trust.stored import JsonObject


@dataclass(frozen=True, eq=False)
class Head:
    """A linear classifier on standardized features: the hidden state and, if they help, the log-shares of the classes.

    Attributes
    ----------
    mean, scale : ndarray of float64, shape (n_features,)
    weights : ndarray of float64, shape (n_classes, n_features)
    intercept : ndarray of float64, shape (n_classes,)
    takes_scores : bool
    """

    mean: Floats
    scale: Floats
    weights: Floats
    intercept: Floats
    takes_scores: bool

    def log_weights(self, scores: Floats | None, states: States | None) -> Floats:
        """Return log-weights, shape (n_rows, n_classes)."""
        return self.log_weights_of(features_of(scores if self.takes_scores else None, states))

    def log_weights_of(self, features: Floats) -> Floats:
        """Return log-weights of features, shape (n_rows, n_features)."""
        if features.shape[1] != len(self.mean):
            raise CalibrationError(f"head: was fitted on {len(self.mean)} features, and these are {features.shape[1]}")
        found: Floats = ((features - self.mean) / self.scale) @ self.weights.T + self.intercept
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, for JSON; numbers have seven digits."""
        return {
            "takes_scores": self.takes_scores,
            **{name: _rounded(getattr(self, name)) for name in ("mean", "scale", "weights", "intercept")},
        }

    @classmethod
    def from_stored(cls, read: JsonObject, n_classes: int) -> Self:
        """Read what `to_dict` returned; otherwise CalibrationError."""
        mean = read.floats("mean", (None,))
        n = len(mean)
        scale = read.floats("scale", (n,))
        if not (scale > 0).all():
            raise CalibrationError("head.scale: a number that is not above 0")
        return cls(
            mean,
            scale,
            read.floats("weights", (n_classes, n)),
            read.floats("intercept", (n_classes,)),
            read.boolean("takes_scores"),
        )


def features_of(scores: Floats | None, states: States | None) -> Floats:
    """Return the features of rows: hidden states, and the log-shares of scores if given."""
    assert states is not None
    features = states.astype(np.float64)
    if scores is None:
        return features
    shares = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return np.concatenate([features, shares], axis=1)


def _rounded(values: Floats) -> Any:
    return [float(f"{one:.7g}") for one in values] if values.ndim == 1 else [_rounded(row) for row in values]


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


class Heads:
    """Fits heads to hidden states, with and without scores beside them.

    A head is a weighted sum of logistic regression, linear discriminant analysis with shrunk covariance (Ledoit and
    Wolf, 2004), both on standardized states, and optionally the log-shares of the scores. C and the weights, which also
    set the temperature, minimize the log loss on held-out rows (stacking; Wolpert, 1992).

    Parameters
    ----------
    states : ndarray of float64, shape (n_rows, n_features)
    scores : ndarray of float64, shape (n_rows, n_classes)
    gold : ndarray of int64, shape (n_rows,)
    """

    def __init__(self, states: Floats, scores: Floats, gold: Ints) -> None:
        self._states, self._gold = states, gold
        self._shares = log_softmax(scores)
        self._all = np.arange(len(gold))
        self._shape = (len(_CS) + 1, len(gold), int(gold.max()) + 1)
        self._known: dict[bytes, Floats] = {}

    def fitted(self, rows: Ints, folds: Folds) -> Iterator[tuple[Callable[[], Head], Floats, bool]]:
        """Fit to rows: yield the head without scores, then with scores.

        Yields
        ------
        tuple of callable, ndarray and bool
            What fits and returns the head; log-probabilities of all rows, of these by fits to other folds of them, of
            the others by this head; whether it takes scores.

        Raises
        ------
        CalibrationError
            Classes have too few rows.
        """
        others = np.setdiff1d(self._all, rows)
        margins = np.empty(self._shape)
        for train, test in [*folds, (rows, others)]:
            margins[:, test] = self._margins(train, test)
        judged = np.concatenate([test for _, test in folds])
        for parts in (margins, np.concatenate([margins, self._shares[None]])):
            log_p = np.empty(self._shape[1:])
            best = _mixture(parts[:, judged], self._gold[judged])
            for _, test in folds:
                train = np.setdiff1d(judged, test)
                log_p[test] = log_softmax(_mixture(parts[:, train], self._gold[train], best).of(parts[:, test]))
            log_p[others] = log_softmax(best.of(parts[:, others]))
            yield partial(self._head, best, rows), log_p, parts is not margins

    def _head(self, mixture: _Mixture, rows: Ints) -> Head:
        return _mixed(mixture, *_linears(self._states[rows], self._gold[rows], (_CS[mixture.c],)))

    def _margins(self, train: Ints, test: Ints) -> Floats:
        """Return the margins of test rows by fits to train rows, shape (n_parts, n_test, n_classes)."""
        if not len(test):
            return np.empty((self._shape[0], 0, self._shape[2]))
        others, key = np.setdiff1d(self._all, train), train.tobytes()
        if key not in self._known:
            there = np.unique(self._gold[train])
            if len(train) <= len(there):
                raise CalibrationError("gold: too few rows of some classes for a head")
            found = np.empty((self._shape[0], len(others), self._shape[2]))
            for i, one in enumerate(_linears(self._states[train], self._gold[train], _CS)):
                known = one.log_weights_of(self._states[others])
                found[i] = known.min(axis=1, keepdims=True)  # an unseen class gets the lowest margin
                found[i][:, there] = known
            self._known[key] = found
        return self._known[key][:, np.searchsorted(others, test)]


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
