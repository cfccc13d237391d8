from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from token_trie import ArgumentError
from token_trie.trust.gate import N_STARTS, find_gate


def hits(confidence: Any, rng: np.random.Generator, over: float) -> Any:
    """Draw which answers are right, of a model that is too sure by a factor."""
    return rng.random(len(confidence)) < confidence**over


@pytest.mark.parametrize("over", [1.0, 2.0])
@pytest.mark.parametrize("n", [150, 600])
def test_behind_a_gate_unseen_rows_are_right_so_often_in_95_of_100_tables(n: int, over: float) -> None:
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


@pytest.mark.parametrize("name", ["target_accuracy", "assurance"])
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, float("nan"), float("inf"), "0.9", None])
def test_targets_that_are_none_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        find_gate(np.zeros(3), np.zeros(3, np.bool_), **{name: value})
