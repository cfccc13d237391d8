from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_trie.questions.form import Weighing, contextual, offsets, softmax

TEXTS = st.sampled_from("abcdef")


@given(st.lists(st.sets(TEXTS, min_size=1), min_size=1, max_size=6), st.data())
def test_probabilities_are_those_of_plain_arithmetic(options: list[set[str]], data: st.DataObject) -> None:
    p = {text: data.draw(st.floats(0.01, 0.1)) for text in sorted(set.union(*options))}
    answers = {frozenset(texts) for texts in options}
    masses = {answer: sum(p[text] / sum(text in other for other in answers) for text in answer) for answer in answers}
    total = sum(masses.values())
    sharing = [sum(texts == other for other in options) for texts in options]
    expected = [masses[frozenset(texts)] / total / n for texts, n in zip(options, sharing, strict=True)]
    weighing = Weighing([sorted(texts) for texts in options])
    found = softmax(weighing.of_options(weighing.log_masses(np.log([p[text] for text in weighing.texts]))))
    assert found == pytest.approx(expected)
    assert found.sum() == pytest.approx(1)


def test_a_clone_takes_half_and_leaves_the_others_as_they_were() -> None:
    scores = {"x": -3.0, "y": -1.0, "z": -2.5}

    def weigh(*options: str) -> list[float]:
        weighing = Weighing([(text,) for text in options])
        found: list[float] = softmax(
            weighing.of_options(weighing.log_masses(np.array([scores[t] for t in weighing.texts])))
        ).tolist()
        return found

    x, y, z = weigh("x", "y", "z")
    assert weigh("x", "y", "z", "x") == pytest.approx([x / 2, y, z, x / 2])
    assert weigh("z", "y") == pytest.approx([z / (y + z), y / (y + z)])


def test_probabilities_are_the_same_to_the_last_bit_in_any_order() -> None:
    rng = np.random.default_rng(1)
    texts = [f"text {i}" for i in range(40)]
    scores = dict(zip(texts, rng.normal(0, 3, 40), strict=True))
    known: dict[str, float] = {}
    for _ in range(20):
        order = rng.permutation(texts).tolist()
        weighing = Weighing([(text,) for text in order])
        found = softmax(weighing.of_options(weighing.log_masses(np.array([scores[t] for t in weighing.texts]))))
        for text, p in zip(order, found.tolist(), strict=True):
            assert known.setdefault(text, p) == p


def test_what_has_no_probability_has_none_beside_what_has() -> None:
    weighing = Weighing([("a",), ("b",)])
    assert softmax(weighing.of_options(np.array([-math.inf, -3.0]))).tolist() == [0, 1]
    assert softmax(weighing.of_options(np.array([-math.inf, -math.inf]))).tolist() == [0.5, 0.5]


def test_a_difference_to_the_prior_counts_by_the_root_of_its_tokens() -> None:
    found = contextual(np.array([-4.0, -9.0]), np.array([-5.0, -15.0]), np.array([1.0, 4.0]), 2.0)
    assert found.tolist() == [0.5, 1.5]
    found = contextual(np.array([-math.inf, -2.0]), np.array([-math.inf, -math.inf]), np.array([1.0, 1.0]), 1.0)
    assert found.tolist() == [-math.inf, 0]


def test_orders_are_spread() -> None:
    assert offsets(8, 4) == [0, 4, 2, 6]
    assert offsets(4, 9) == [0, 2, 1, 3]
    assert offsets(5, 1) == [0]
    for n in range(1, 40):
        assert sorted(offsets(n, n)) == list(range(n))
