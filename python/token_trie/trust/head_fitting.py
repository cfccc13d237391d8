"""Fits heads: two of scikit-learn's linear classifiers, mixed as rows that they have not seen tell."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
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
_AT_FIRST = (-0.5, -3.0)


class _Mixture(NamedTuple):
    """What is added up: logistic regression with one C, and discriminant analysis."""

    c: int
    shares: Floats
    loss: float

    def of(self, margins: Floats) -> Floats:
        """Return log-weights of margins of shape (n_linear, n_rows, n_classes)."""
        mixed: Floats = self.shares[0] * margins[self.c] + self.shares[1] * margins[-1]
        return mixed


def fit_head(x: Floats, gold: Ints, folds: Folds, *, takes_scores: bool) -> tuple[Head, Floats]:
    """Fit a head to features.

    It adds up logistic regression and linear discriminant analysis with the covariance shrunk (Ledoit and Wolf, 2004),
    both on standardized features. C and how much of each, which makes probabilities of them too, are those that lose
    least on rows that were not fitted on.

    Parameters
    ----------
    x : ndarray of float64, shape (n_rows, n_features)
    gold : ndarray of int64, shape (n_rows,)
    folds : Folds
    takes_scores : bool
        What the head keeps.

    Returns
    -------
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
        if len(np.unique(gold[train])) < n_classes or len(train) <= n_classes:
            raise CalibrationError("gold: too few rows of some classes for a head")
        for i, one in enumerate(_linears(x[train], gold[train])):
            margins[i, test] = one.log_weights_of(x[test])
    log_p = np.empty(margins.shape[1:])
    for train, test in folds:
        log_p[test] = log_softmax(_mixture(margins[:, train], gold[train]).of(margins[:, test]))
    best = _mixture(margins, gold)
    first, second = _linears(x, gold, _CS[best.c])
    weights, intercept = (
        best.shares[0] * getattr(first, name) + best.shares[1] * getattr(second, name)
        for name in ("weights", "intercept")
    )
    return Head(first.mean, first.scale, weights, intercept, takes_scores), log_p


def _linears(x: Floats, gold: Ints, *cs: float) -> Iterator[Head]:
    """Fit logistic regressions, and discriminant analysis."""
    linear: Any = import_sklearn("linear_model")
    discriminant: Any = import_sklearn("discriminant_analysis")
    scaler: Any = import_sklearn("preprocessing").StandardScaler().fit(x)
    standard = scaler.transform(x)
    models = [linear.LogisticRegression(C=c, max_iter=1000) for c in cs or _CS]
    models.append(discriminant.LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"))
    for model in models:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a fit that stops short, or a class with one row: folds judge both
            model.fit(standard, gold)
        weights, intercept = model.coef_, model.intercept_
        if len(weights) == 1:  # of two classes, the second's against the first
            weights, intercept = (np.concatenate([-part / 2, part / 2]) for part in (weights, intercept))
        yield Head(scaler.mean_, scaler.scale_, weights, intercept, False)


def _mixture(margins: Floats, gold: Ints) -> _Mixture:
    """Return the one that loses least; a tenth of a row is held to be wrong, so that none is surely right."""
    from scipy.optimize import minimize

    n, k = margins.shape[1:]
    wrong = 0.1 / n
    target = np.full((n, k), wrong / k)
    target[np.arange(n), gold] += 1 - wrong
    found = []
    for c in range(len(margins) - 1):
        two = margins[[c, -1]]

        def loss(log_shares: Floats, two: Floats = two) -> tuple[float, Floats]:
            shares = np.exp(log_shares)
            log_p = log_softmax(np.tensordot(shares, two, 1))
            slopes = ((np.exp(log_p) - target) * two).sum(axis=(1, 2)) * shares
            return -float((target * log_p).sum()) / n, slopes / n

        at = minimize(loss, np.array(_AT_FIRST), jac=True, method="L-BFGS-B", bounds=[_LOG_SHARES] * 2)
        found.append(_Mixture(c, np.exp(at.x), float(at.fun)))
    return min(found, key=lambda one: one.loss)
