"""What words alone tell: TF-IDF with logistic regression, from the same labels, for honesty."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.learn import import_sklearn, one_thread
from token_trie.trust.own_parts import own_parts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CS = (1.0, 10.0, 100.0)


@one_thread()
def by_words(texts: Sequence[str], gold: Ints, n_classes: int, folds: list[tuple[Ints, Ints]]) -> Floats | None:
    """Return the probabilities of rows by their words, each fitted on other rows; None where rows have no words.

    Of some strengths of regularization the one with the least log loss is taken, as a calibration's kind is.
    """
    _, own, _ = own_parts(texts)  # beside a long beginning that all have, their own words would weigh nothing
    extraction: Any = import_sklearn("feature_extraction.text")
    linear: Any = import_sklearn("linear_model")
    metrics: Any = import_sklearn("metrics")
    found = {c: np.zeros((len(gold), n_classes)) for c in _CS}
    for train, test in folds:
        counted = extraction.TfidfVectorizer(sublinear_tf=True)
        try:
            words = counted.fit_transform([own[i] for i in train])
        except ValueError as error:
            if "empty vocabulary" in str(error):
                return None
            raise
        others = counted.transform([own[i] for i in test])
        for c, probabilities in found.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there are few rows a class
                made = linear.LogisticRegression(C=c, max_iter=1000).fit(words, gold[train])
            probabilities[np.ix_(test, made.classes_)] = made.predict_proba(others)
    return min(found.values(), key=lambda p: float(metrics.log_loss(gold, p, labels=np.arange(n_classes))))
