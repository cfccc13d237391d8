"""Folds: what is fitted is judged on rows that it has not seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError

Ints = npt.NDArray[np.int64]
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
