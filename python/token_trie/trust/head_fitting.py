"""Fits heads: two of scikit-learn's linear classifiers, mixed as rows that they have not seen tell."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from token_trie.decisions.calibrator import Floats
from token_trie.decisions.learn import import_sklearn
from token_trie.errors import CalibrationError
from token_trie.trust.folds import Folds
from token_trie.trust.head import Head
from token_trie.trust.shares import Ints, log_softmax

_CS = (0.01, 0.1, 1.0)
"""Of logistic regression."""
_LOG_SHARES = (-9.0, 3.0)
_AT_FIRST = (-0.5, -3.0, -3.0)


class _Mixture(NamedTuple):
    """What is added up: logistic regression with one C, discriminant analysis, and the options' own log-shares."""

    c: int
    shares: Floats
    loss: float

    def of(self, margins: Floats) -> Floats:
        """Return log-weights of margins of shape (n_parts, n_rows, n_classes), of all Cs."""
        return np.tensordot(self.shares, _parts(margins, self.c), 1)


def fit_heads(states: Floats, scores: Floats, gold: Ints, folds: Folds) -> Iterator[tuple[Head, Floats]]:
    """Fit a head to hidden states, and one that takes scores beside them.

    It adds up logistic regression and linear discriminant analysis with the covariance shrunk (Ledoit and Wolf, 2004),
    both on standardized states, and the log-shares that scores are. C and how much of each, which makes probabilities
    of them too, are those that lose least on rows that were not fitted on.

    Parameters
    ----------
    states : ndarray of float64, shape (n_rows, n_features)
    scores : ndarray of float64, shape (n_rows, n_classes)
    gold : ndarray of int64, shape (n_rows,)
    folds : Folds

    Yields
    ------
    tuple of Head and ndarray of float64, shape (n_rows, n_classes)
        The log-probabilities of rows that were not fitted on.

    Raises
    ------
    CalibrationError
        Rows outside some fold have not each class, or no two of any.
    """
    n_classes = int(gold.max()) + 1
    margins = np.empty((len(_CS) + 1, len(gold), n_classes))
    for train, test in folds:
        there = np.unique(gold[train])
        if len(train) <= len(there):
            raise CalibrationError("gold: too few rows of some classes for a head")
        for i, one in enumerate(_linears(states[train], gold[train], _CS)):
            known = one.log_weights_of(states[test])
            margins[i, test] = known.min(
                axis=1, keepdims=True
            )  # of classes that were not seen, as of the least of them
            margins[i, test[:, None], there] = known
    made: dict[float, list[Head]] = {}  # by C
    for parts in (margins, np.concatenate([margins, log_softmax(scores)[None]])):
        log_p = np.empty(margins.shape[1:])
        for train, test in folds:
            log_p[test] = log_softmax(_mixture(parts[:, train], gold[train]).of(parts[:, test]))
        best = _mixture(parts, gold)
        c = _CS[best.c]
        if c not in made:
            made[c] = list(_linears(states, gold, (c,)))
        yield _mixed(best, *made[c]), log_p


def _mixed(mixture: _Mixture, first: Head, second: Head) -> Head:
    """Return the sum as one head."""
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
    """Fit logistic regressions, each from where the one before ended, and discriminant analysis."""
    linear: Any = import_sklearn("linear_model")
    discriminant: Any = import_sklearn("discriminant_analysis")
    scaler: Any = import_sklearn("preprocessing").StandardScaler().fit(x)
    standard = scaler.transform(x)
    logistic = linear.LogisticRegression(max_iter=1000, warm_start=True)
    for c in (*cs, None):
        model = discriminant.LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
        if c is not None:
            model = logistic.set_params(C=c)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a fit that stops short, or a class with one row: folds judge both
            model.fit(standard, gold)
        weights, intercept = model.coef_, model.intercept_
        if len(weights) == 1:  # of two classes, the second's against the first
            weights, intercept = (np.concatenate([-part / 2, part / 2]) for part in (weights, intercept))
        yield Head(scaler.mean_, scaler.scale_, weights.copy(), intercept.copy(), takes_scores=False)


def _parts(margins: Floats, c: int) -> Floats:
    """Return the margins of one C, and those that have none."""
    parts: Floats = margins[[c, *range(len(_CS), len(margins))]]
    return parts


def _mixture(margins: Floats, gold: Ints) -> _Mixture:
    """Return the one that loses least; a tenth of a row is held to be wrong, so that none is surely right."""
    from scipy.optimize import minimize

    n, k = margins.shape[1:]
    wrong = 0.1 / n
    target = np.full((n, k), wrong / k)
    target[np.arange(n), gold] += 1 - wrong
    found = []
    for c in range(len(_CS)):
        parts = _parts(margins, c)

        def loss(log_shares: Floats, parts: Floats = parts) -> tuple[float, Floats]:
            shares = np.exp(log_shares)
            log_p = log_softmax(np.tensordot(shares, parts, 1))
            slopes = ((np.exp(log_p) - target) * parts).sum(axis=(1, 2)) * shares
            return -float((target * log_p).sum()) / n, slopes / n

        first = np.array(_AT_FIRST[: len(parts)])
        at = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=[_LOG_SHARES] * len(parts))
        found.append(_Mixture(c, np.exp(at.x), float(at.fun)))
    return min(found, key=lambda one: one.loss)
