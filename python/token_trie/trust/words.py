"""What words alone tell: TF-IDF with logistic regression, from the same labels, for honesty."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.trust.learn import import_sklearn

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def by_words(texts: Sequence[str], gold: Ints, n_classes: int, folds: list[tuple[Ints, Ints]]) -> Floats | None:
    """Return the probabilities of rows by their words, each fitted on other rows; None where rows have no words."""
    extraction: Any = import_sklearn("feature_extraction.text")
    linear: Any = import_sklearn("linear_model")
    pipeline: Any = import_sklearn("pipeline")
    probabilities = np.zeros((len(gold), n_classes))
    for train, test in folds:
        made = pipeline.make_pipeline(
            extraction.TfidfVectorizer(sublinear_tf=True), linear.LogisticRegression(C=10.0, max_iter=1000)
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there are few rows a class
                made.fit([texts[i] for i in train], gold[train])
        except ValueError as error:
            if "empty vocabulary" in str(error):
                return None
            raise
        probabilities[np.ix_(test, made.classes_)] = made.predict_proba([texts[i] for i in test])
    return probabilities
