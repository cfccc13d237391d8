from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError, TokenTrie, Weights, choose, choose_many, score

CITIES = ["Lisbon", "Oslo", "Bergen", "Paris", "Porto", "Par", "Osaka"]
PROMPT = "The capital of France is"


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("view", ["whole", "filtered"])
def test_the_best_ranks_are_those_of_brute_force(precise: Any, compact: bool, view: str) -> None:
    trie = TokenTrie.of_core(TokenTrie.from_choices(precise, CITIES).core.laid_out(compact))
    keep = np.array([i != 3 for i in range(len(CITIES))])
    if view == "filtered":
        trie = trie.filtered(keep)
    plain = score(precise, PROMPT, trie)
    there = np.array([trie.core.has_leaf(i) for i in range(len(plain))])
    rng = np.random.default_rng(4)
    for scale in (0.0, 1.0, 30.0):
        values = rng.normal(size=len(plain))
        ranks = np.where(there, plain + scale * values, -np.inf)
        order = np.argsort(-ranks)[: there.sum()]
        found = choose(precise, PROMPT, trie, mode="exact", n_best=3, calibration=Weights(values, scale))
        assert [one.index for one in found.candidates] == order[:3].tolist()
        assert found.logprob == pytest.approx(plain[order[0]], abs=1e-2)
        assert found.calibration == "weighted"
        weighted = score(precise, PROMPT, trie, calibration=Weights(values, scale))
        assert np.argmax(np.where(there, weighted, -np.inf)) == order[0]


def test_weights_of_texts_are_in_their_order(precise: Any) -> None:
    values = [0.0] * len(CITIES)
    values[2] = 50.0
    assert choose(precise, PROMPT, CITIES, calibration=Weights(values)).value == "Bergen"
    assert choose(precise, PROMPT, CITIES, calibration=Weights(values, -1)).value != "Bergen"


@pytest.mark.parametrize("options", [{}, {"probabilities": True}, {"mode": "beam"}], ids=str)
def test_equal_choices_have_equal_weights_or_are_refused(precise: Any, options: Any) -> None:
    twice = ["Oslo", "Bergen", "Oslo", "Paris", "Bergen"]
    for values, message in (
        ([0, 0, 9, 0, 0], r"values\[2\] adds 9 to 'Oslo' and values\[0\] 0 to 'Oslo', which are the same answer"),
        ([1, 2, 1, 0, 3], r"values\[4\] adds 3 to 'Bergen' and values\[1\] 2 to 'Bergen'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            choose(precise, PROMPT, twice, calibration=Weights(values), **options)
        with pytest.raises(ArgumentError, match=r"prompts\[0\]: .*" + message):
            list(choose_many(precise, [PROMPT], twice, calibration=Weights(values), **options))
        with pytest.raises(ArgumentError, match=message):
            score(precise, PROMPT, twice, calibration=Weights(values))
    for value in (-30.0, 0.0, 30.0):
        once = choose(precise, PROMPT, twice[:2] + twice[3:4], calibration=Weights([0, value, 0]), **options)
        found = choose(precise, PROMPT, twice, calibration=Weights([0, value, 0, 0, value]), **options)
        assert (found.value, found.logprob) == (once.value, pytest.approx(once.logprob, abs=1e-3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: choose(llm, PROMPT, CITIES, calibration=Weights([1.0])), "1 weights for 7 choices"),
        (lambda _: Weights([[1.0]]), "values must have one dimension"),
        (lambda _: Weights([1.0, float("nan")]), r"values\[1\]: nan"),
        (lambda _: Weights([1e300], 1e300), r"values\[0\]: "),
        (lambda _: Weights([1.0], float("inf")), "scale: inf is not finite"),
        (lambda _: Weights(["a"]), "values: "),
        (lambda _: Weights([1.0], "a"), "scale must be a number"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_weight_is_refused(precise: Any, call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(precise)
