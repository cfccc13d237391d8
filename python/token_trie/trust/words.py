"""What words alone tell: TF-IDF with logistic regression, from the same labels, for honesty."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.learn import import_sklearn, one_thread
from token_trie.trust.folds import Folds, Ints, within
from token_trie.trust.own_parts import own_parts

Floats = npt.NDArray[np.float64]

_CS = (1.0, 10.0, 100.0)


@one_thread()
def by_words(texts: Sequence[str], gold: Ints, groups: Ints, n_classes: int, folds: Folds) -> Floats | None:
    """Return the probabilities of rows by their words, each fitted on other rows; None where rows have no words.

    Of some strengths of regularization, the one with the least log loss is taken, for each fold by the other folds.
    """
    _, own, _ = own_parts(texts)  # beside a long beginning that all have, their own words would weigh nothing
    extraction: Any = import_sklearn("feature_extraction.text")
    linear: Any = import_sklearn("linear_model")
    metrics: Any = import_sklearn("metrics")
    rows, labels = np.arange(len(gold)), np.arange(n_classes)
    known: dict[bytes, Floats] = {}

    def of(train: Ints, test: Ints) -> Floats:
        """Return probabilities of test rows, shape (n_strengths, n_test, n_classes)."""
        others, key = np.setdiff1d(rows, train), train.tobytes()
        if key not in known:
            counted = extraction.TfidfVectorizer(sublinear_tf=True)
            words = counted.fit_transform([own[i] for i in train])
            unseen = counted.transform([own[i] for i in others])
            known[key] = np.zeros((len(_CS), len(others), n_classes))
            for found, c in zip(known[key], _CS, strict=True):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that there are few rows a class
                    made = linear.LogisticRegression(C=c, max_iter=1000).fit(words, gold[train])
                found[:, made.classes_] = made.predict_proba(unseen)
        return known[key][:, np.searchsorted(others, test)]

    probabilities = np.zeros((len(gold), n_classes))
    try:
        for i, (train, test) in enumerate(folds):
            inner = within(folds, i, gold, groups)
            if not inner:
                return None
            found = np.concatenate([of(some, judged) for some, judged in inner], axis=1)
            judged_gold = gold[np.concatenate([judged for _, judged in inner])]
            lost = [metrics.log_loss(judged_gold, p, labels=labels) for p in found]
            probabilities[test] = of(train, test)[np.argmin(lost)]
    except ValueError as error:
        if "empty vocabulary" in str(error):
            return None
        raise
    return probabilities
