"""Folds: what is fitted is judged on rows that it has not seen."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.decisions.learn import import_sklearn

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
    _, first = np.unique(groups, return_index=True)
    of_groups = gold[first]
    n_folds = min(n_folds, len(first))
    if n_folds < 2 or len(np.unique(gold)) < 2:
        return []
    # Not StratifiedGroupKFold, which puts several rows of a small class into one fold.
    no_class_fills = int(np.bincount(of_groups).max()) < n_folds
    cut = (selection.KFold if no_class_fills else selection.StratifiedKFold)(n_folds, shuffle=True, random_state=seed)
    fold_of = np.empty(int(groups.max()) + 1, np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some class has fewer rows than there are folds
        for i, (_, test) in enumerate(cut.split(of_groups, of_groups)):
            fold_of[groups[first[test]]] = i
    own = fold_of[groups]
    folds = [(np.flatnonzero(own != i), np.flatnonzero(own == i)) for i in range(n_folds)]
    return folds if all(len(np.unique(gold[train])) > 1 for train, _ in folds) else []
