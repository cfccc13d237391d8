from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from synthetic import readings_of
from token_trie import Calibration
from token_trie.trust.metrics import log_softmax


@pytest.mark.parametrize("of_question", [False, True])
def test_without_labels_the_mean_is_taken_out(of_question: bool) -> None:
    raw: Any = np.random.default_rng(2).normal(size=(9, 3))
    readings = readings_of(raw, contextual=raw / 2 if of_question else None)
    made = Calibration.of(readings, None, "batch")
    if of_question:
        assert made.fitted.base == "contextual"
        assert (raw / 2 + made.fitted.bias).mean(axis=0) == pytest.approx(np.full(3, raw.mean() / 2))
    else:
        p = np.exp(log_softmax(raw))
        expected = p / p.mean(axis=0)
        expected /= expected.sum(axis=1, keepdims=True)
        assert np.exp(made.log_probabilities(readings)) == pytest.approx(expected)
