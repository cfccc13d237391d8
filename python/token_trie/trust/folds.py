"""Folds: what is fitted is judged on rows that it has not seen."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.trust.learn import import_sklearn

Ints = npt.NDArray[np.int64]
Folds: TypeAlias = list[tuple[Ints, Ints]]
"""Positions of the rows to fit on, and of those to judge by."""


def numbered(digests: Sequence[bytes]) -> Ints:
    """Return the numbers of groups: rows of one digest are one group."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(digest, len(numbers)) for digest in digests], np.int64)


def folds_of(gold: Ints, groups: Ints, n_folds: int, seed: int) -> Folds:
    """Cut rows into folds, each about as the classes are; none, where that leaves no two classes to fit on.

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
    selection: Any = import_sklearn("model_selection")
    n_folds = min(n_folds, int(groups.max()) + 1)
    if n_folds < 2 or len(np.unique(gold)) < 2:
        return []
    n_largest = int(np.bincount(gold).max())
    if n_largest < n_folds:  # no class has a row for each fold
        cut = selection.GroupKFold(n_folds, shuffle=True, random_state=seed)
    else:
        cut = selection.StratifiedGroupKFold(n_folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some class has fewer rows than there are folds
        folds = [(train, test) for train, test in cut.split(gold, gold, groups) if len(test)]
    return folds if all(len(np.unique(gold[train])) > 1 for train, _ in folds) else []
