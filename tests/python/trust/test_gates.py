from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from synthetic import readings_of
from token_trie import ArgumentError, Calibration
from token_trie.errors import CalibrationError
from token_trie.trust.gate import N_STARTS, find_gate


def hits(confidence: Any, rng: np.random.Generator, over: float) -> Any:
    """Draw which answers are right, of a model that is too sure by a factor."""
    return rng.random(len(confidence)) < confidence**over


@pytest.mark.parametrize("over", [1.0, 2.0])
@pytest.mark.parametrize("n", [150, 600])
def test_after_a_gate_unseen_rows_are_right_so_often_in_95_of_100_tables(n: int, over: float) -> None:
    rng = np.random.default_rng(n)
    unseen = rng.beta(4, 1, 200_000)
    right = hits(unseen, rng, over)
    failed, found = 0, 0
    for _ in range(200):
        confidence = rng.beta(4, 1, n)
        gate = find_gate(confidence, hits(confidence, rng, over), 0.9)
        if gate.threshold is not None:
            found += 1
            failed += right[unseen >= gate.threshold].mean() < 0.9
    assert failed <= 10
    assert found >= (90 if n == 600 else 1)


def test_it_says_what_it_decides() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 1, 500)
    right = hits(confidence, rng, 1.0)
    gate = find_gate(confidence, right, 0.9)
    assert gate.threshold is not None
    decided = confidence >= gate.threshold
    assert gate.n_decided == decided.sum()
    assert gate.coverage == decided.mean()
    assert gate.accuracy == pytest.approx(right[decided].mean())
    exact = binomtest(int(right[decided].sum()), int(decided.sum())).proportion_ci(1 - 2 * 0.05 / N_STARTS, "exact")
    assert gate.lower_bound == pytest.approx(exact.low)
    assert gate.decides(gate.threshold)
    assert not gate.decides(gate.threshold - 1e-6)


@pytest.mark.parametrize(
    ("confidence", "right"),
    [([], []), ([0.99] * 20, [True] * 20), ([0.9] * 300, [True, False] * 150), ([0.5] * 300, [False] * 300)],
)
def test_where_no_confidence_is_enough_there_is_no_gate(confidence: list[float], right: list[bool]) -> None:
    gate = find_gate(np.array(confidence), np.array(right, np.bool_), 0.9)
    assert (gate.threshold, gate.coverage, gate.decides(1.0)) == (None, 0.0, False)
    assert "no confidence" in str(gate)


def test_rows_of_one_confidence_are_decided_together() -> None:
    right = np.arange(400) % 50 > 0
    gate = find_gate(np.full(400, 0.7), right, 0.9)
    assert (gate.threshold, gate.n_decided) == (0.7, 400)


def test_rows_that_repeat_are_one_observation() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.beta(4, 1, 400)
    right = hits(confidence, rng, 1.0)
    alone = find_gate(confidence, right, 0.85)
    assert alone.threshold is not None
    for times in (2, 10):
        own = np.repeat(np.arange(400), times)
        gate = find_gate(confidence[own], right[own], 0.85, groups=own)
        assert (gate.threshold, gate.n, gate.n_different) == (alone.threshold, 400 * times, 400)
        assert gate.lower_bound == pytest.approx(alone.lower_bound)
        assert f"of {400 * times:,} rows (400 different)" in str(gate)
    own = np.repeat(np.arange(40), 10)
    for target in (0.9, 0.95):
        assert find_gate(np.full(400, 0.99), np.full(400, True), target, groups=own).threshold is None


def test_a_text_that_is_most_rows_opens_no_gate() -> None:
    # 200 right texts and one that is as many rows as they: where it is wrong, half of the rows are.
    own = np.concatenate([np.arange(200), np.full(200, 200)])
    assert find_gate(np.full(400, 0.9), own < 200, 0.9, groups=own).threshold is None
    assert find_gate(np.full(201, 0.9), np.arange(201) < 200, 0.9).threshold is not None


def test_a_way_chosen_from_several_has_its_part_of_the_risk() -> None:
    rng = np.random.default_rng(2)
    confidence = rng.beta(4, 1, 400)
    right = hits(confidence, rng, 1.0)
    alone, chosen = (find_gate(confidence, right, 0.8, n_ways=n) for n in (1, 6))
    assert alone.n_decided > chosen.n_decided > 0


TABLES = int(os.environ.get("TABLES", "2"))
"""Tables of each kind."""


def table_of(kind: str, n: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Draw scores, hidden states and labels of so many texts."""
    k, d = (2, 10) if kind == "noise" else (4, 8)
    if kind == "noise":
        return rng.normal(size=(n, k)), rng.normal(size=(n, d)), rng.integers(k, size=n)
    frequencies = [0.25] * 4 if kind == "realistic" else [0.85, 0.1, 0.04, 0.01]
    gold = rng.choice(k, n, p=frequencies)
    centres = 1.2 * np.random.default_rng(0).normal(size=(k, d))
    raw = 3 * (np.eye(k)[gold] + rng.normal(size=(n, k)))
    is_noise = rng.random(n) < 0.05
    return raw, centres[gold] + rng.normal(size=(n, d)), np.where(is_noise, rng.integers(k, size=n), gold)


@pytest.mark.parametrize("of_hard", [False, True])
@pytest.mark.parametrize("kind", ["noise", "realistic", "skewed"])
def test_after_a_gate_of_rows_that_repeat_new_rows_are_right_so_often(kind: str, of_hard: bool) -> None:
    """Texts repeat 1 to 10 times, at random, or more often where the model's own answer is wrong.

    The gate is that of a fitted calibration; new texts, and new rows, are judged by it. ``TABLES=300`` for all.
    """
    target, failed, found = (0.55 if kind == "noise" else 0.85), 0, 0
    for table in range(TABLES):
        rng = np.random.default_rng(table)
        n = int(rng.integers(100, 200))
        raw, states, gold = table_of(kind, n + 5000, rng)
        times = rng.integers(1, 11, size=len(gold))
        if of_hard:
            times = np.where(raw.argmax(axis=1) == gold, rng.integers(1, 4, size=len(gold)), times)
        own = np.repeat(np.arange(n), times[:n])
        try:
            made = Calibration.of(readings_of(raw[own], states[own]), gold[own], "head", groups=own, n_folds=3)
        except CalibrationError:  # as of a class without rows
            continue
        gate = made.gate(target)
        if gate.threshold is None:
            continue
        found += 1
        p = np.exp(made.log_probabilities(readings_of(raw[n:], states[n:])))
        decided = p.max(axis=1) >= gate.threshold
        if decided.any():
            right = (p.argmax(axis=1) == gold[n:])[decided]
            failed += min(right.mean(), np.average(right, weights=times[n:][decided])) < target
    print(f"{kind}, hard texts repeat more: {of_hard}: {found} gates, {failed} wrong of {TABLES}")
    assert failed <= max(1, 0.05 * TABLES)


def given(kind: str, n: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Draw confidences, and how probably each answer is right."""
    confidence = rng.beta(4, 1, n)
    if kind == "just below":
        return rng.random(n), np.full(n, 0.895)
    if kind == "some always wrong":
        return confidence, np.where(rng.random(n) < 0.05, 0, confidence**0.5)
    return confidence, confidence ** (1 if kind == "calibrated" else 2)


def repeated(right: Any, how: str, rng: np.random.Generator) -> Any:
    """Draw how often each text is there."""
    up_to_ten = rng.integers(1, 11, len(right))
    if how == "hard ones more":
        return np.where(right, rng.integers(1, 4, len(right)), up_to_ten)
    return np.full(len(right), 5) if how == "five each" else up_to_ten


@pytest.mark.parametrize("how", ["five each", "1 to 10", "hard ones more"])
@pytest.mark.parametrize("kind", ["calibrated", "too sure", "just below", "some always wrong"])
def test_after_a_gate_of_given_confidences_new_rows_are_right_so_often(kind: str, how: str) -> None:
    """Both different texts and rows, as often as they are there. ``TABLES=300`` for all."""
    rng, failed, found = np.random.default_rng(5), 0, 0
    for _ in range(TABLES):
        n = int(rng.integers(100, 400))
        confidence, p = given(kind, n, rng)
        right = rng.random(n) < p
        own = np.repeat(np.arange(n), repeated(right, how, rng))
        gate = find_gate(confidence[own], right[own], 0.9, groups=own)
        if gate.threshold is None:
            continue
        found += 1
        confidence, p = given(kind, 20_000, rng)
        right, decided = rng.random(20_000) < p, confidence >= gate.threshold
        of_rows = np.average(right[decided], weights=repeated(right, how, rng)[decided])
        failed += min(p[decided].mean(), of_rows) < 0.9
    print(f"{kind}, {how}: {found} gates, {failed} wrong of {TABLES}")
    assert failed <= max(1, 0.05 * TABLES)


@pytest.mark.parametrize("times", [1, 5])
def test_at_an_accuracy_just_below_the_target_there_is_hardly_a_gate(times: int) -> None:
    rng = np.random.default_rng(3)
    failed = 0
    for _ in range(300):
        own = np.repeat(np.arange(200), times)
        confidence, right = rng.random(200)[own], (rng.random(200) < 0.895)[own]
        failed += find_gate(confidence, right, 0.9, groups=own).threshold is not None
    assert failed <= 15


@pytest.mark.parametrize("name", ["target_accuracy", "assurance"])
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, float("nan"), float("inf"), "0.9", None])
def test_targets_that_are_none_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        find_gate(np.zeros(3), np.zeros(3, np.bool_), **{name: value})
