from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import drawn, readings_of
from token_trie import ArgumentError, Calibration
from token_trie.errors import CalibrationError
from token_trie.trust.fit import in_domain
from token_trie.trust.metrics import log_softmax

WORDS = st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=6), min_size=1, max_size=8)


@given(st.lists(WORDS, min_size=8, max_size=12, unique_by=tuple))
def test_rows_of_the_domain_keep_what_all_begin_and_end_with(texts: list[list[str]]) -> None:
    rows = [f"Query: one\nQuery: {' '.join(words)}\nIntent:" for words in texts]
    known = {word for words in texts for word in words}
    mean = np.mean([len(words) for words in texts])
    made = in_domain(rows, 0)
    assert len(made) == 20
    assert made == in_domain(rows, 0)
    for row in made:
        assert row.startswith("Query: one\nQuery: ")
        assert row.endswith("\nIntent:")
        own = row.removeprefix("Query: one\nQuery: ").removesuffix("\nIntent:").split()
        assert set(own) <= known
        assert len(own) <= mean + 0.5


def test_rows_without_words_of_their_own_have_no_domain() -> None:
    with pytest.raises(CalibrationError, match="rows: they are all the same"):
        in_domain(["Query: a\nIntent: "] * 9, 0)
    with pytest.raises(CalibrationError, match="rows: 2, and at least 8"):
        in_domain(["a b", "c d"], 0)
    with pytest.raises(ArgumentError, match=r"rows\[3\]: list, where 'domain' takes texts"):
        in_domain([*"abc", [1], *"defgh"], 0)


def test_what_a_model_says_of_any_words_is_taken_out() -> None:
    rng = np.random.default_rng(0)
    log_p = log_softmax(2 * rng.normal(size=(400, 4)))
    gold, shift = drawn(log_p, rng), np.array([3.0, 0.0, -3.0, 1.0])
    readings = readings_of(log_p + shift)
    fit = Calibration.of(readings, None, kind="domain", more=readings_of(np.zeros((20, 4)) + shift))
    assert fit.log_weights(readings.raw, None).argmax(axis=1).tolist() == log_p.argmax(axis=1).tolist()
    assert (log_p.argmax(axis=1) == gold).mean() > (readings.raw.argmax(axis=1) == gold).mean()


def test_given_frequencies_keep_a_skewed_table_right() -> None:
    rng = np.random.default_rng(1)
    frequencies = np.array([0.9, 0.05, 0.05])
    gold = rng.choice(3, 600, p=frequencies)
    log_p = log_softmax(1.5 * np.eye(3)[gold] + rng.normal(size=(600, 3)) + np.log(frequencies))
    readings = readings_of(log_p)
    right = {
        told: (
            Calibration.of(readings, None, kind="batch", prior=prior).log_weights(log_p, None).argmax(1) == gold
        ).mean()
        for told, prior in ((False, None), (True, np.log(frequencies)))
    }
    raw = (log_p.argmax(axis=1) == gold).mean()
    assert right[True] > raw - 0.01
    assert right[False] < raw - 0.1


def test_without_labels_the_mean_is_taken_out_by_default() -> None:
    readings = readings_of(np.random.default_rng(2).normal(size=(9, 3)))
    fit = Calibration.of(readings, None)
    assert fit.kind == "mean"
    assert (readings.raw + fit.bias).mean(axis=0) == pytest.approx(np.full(3, readings.raw.mean()))
