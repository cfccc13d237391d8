"""Decisions about what a filter has left, against a set that is built of it alone."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from token_trie import (
    ArgumentError,
    Calibration,
    Contextual,
    Decision,
    TokenTrie,
    choose,
    choose_list,
    choose_many,
    score,
    score_many,
)
from token_trie.errors import CalibrationError
from token_trie.trust.fit import Head

NAMES = ["READ", "READ_FILE", "SEND_EMAIL", "SET_ALARM", "NONE", "SEND", "Pizza", "Paris"]
MASKS = [[2, 3, 5], [0, 1, 6, 7], [4]]
PROMPT, EMPTY = "Request: wake me at seven.\nAction:", "Request:\nAction:"
PROMPTS = [f"Pizza {i} in {'Paris' if i % 2 else 'Rome'} is" for i in range(40)]
NEAR = 1e-3


def both(llm: Any, mask: list[int]) -> tuple[TokenTrie, TokenTrie]:
    """Return the whole set filtered, and a set of what is left."""
    whole = TokenTrie.from_choices(llm, NAMES)
    alone = TokenTrie.from_choices(llm, [NAMES[i] for i in mask])
    return whole.filtered(mask), alone


def of_all(mask: list[int], figures: Any, out: float = 0.0) -> Any:
    made = np.full(len(NAMES), out)
    made[mask] = figures
    return made


def require_alike(mask: list[int], left: Decision[str], alone: Decision[str]) -> None:
    assert (left.value, left.index, left.calibration) == (alone.value, mask[alone.index], alone.calibration)
    assert left.lead == pytest.approx(alone.lead, abs=NEAR)
    assert left.logprob == pytest.approx(alone.logprob, abs=NEAR)
    assert [(one.value, one.index) for one in left.candidates] == [
        (one.value, mask[one.index]) for one in alone.candidates
    ]
    if alone.probabilities is None:
        assert left.probabilities is None
        return
    assert left.probabilities == pytest.approx(of_all(mask, alone.probabilities), abs=NEAR)
    assert [value for value, _ in left.top(99)] == [value for value, _ in alone.top(99)]
    ranked, expected = ([one["index"] for one in decision.to_dict()["ranked"]] for decision in (left, alone))
    assert ranked == [mask[i] for i in expected]
    assert (left.entropy, left.margin) == pytest.approx((alone.entropy, alone.margin), abs=NEAR)
    out = next(i for i in range(len(NAMES)) if i not in mask)
    assert left.probability(NAMES[out]) == 0.0


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"n_best": 8, "probabilities": True},
        {"n_best": 8},
        {"mode": "beam", "n_best": 2},
        {"mode": "aligned", "seed": 3},
        {"calibration": Contextual(EMPTY)},
        {"calibration": Contextual(EMPTY), "probabilities": True, "n_best": 8},
    ],
    ids=str,
)
def test_what_is_filtered_out_is_no_answer(precise: Any, mask: list[int], options: Any) -> None:
    left, alone = both(precise, mask)
    require_alike(mask, choose(precise, PROMPT, left, **options), choose(precise, PROMPT, alone, **options))
    of_left = choose_many(precise, PROMPTS[:3], left, **options)
    for one, other in zip(of_left, choose_many(precise, PROMPTS[:3], alone, **options), strict=True):
        require_alike(mask, one, other)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"normalize": "tokens"}, {"normalize": "prior"}, {"calibration": Contextual(EMPTY)}],
    ids=str,
)
def test_scores_of_what_is_filtered_out_are_minus_infinity(precise: Any, mask: list[int], options: Any) -> None:
    left, alone = both(precise, mask)
    expected = of_all(mask, score(precise, PROMPT, alone, **options), -np.inf)
    assert score(precise, PROMPT, left, **options) == pytest.approx(expected, abs=NEAR)


def test_rows_of_scores_have_one_a_leaf_where_there_are_none_too(precise: Any) -> None:
    left, _ = both(precise, MASKS[0])
    assert score_many(precise, PROMPTS[:2], left).shape == (2, len(NAMES))
    assert score_many(precise, [], left).shape == (0, len(NAMES))


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_batch_takes_out_what_it_says_to_what_is_left(precise: Any, mask: list[int]) -> None:
    left, alone = both(precise, mask)
    of_left = choose_many(precise, PROMPTS, left, calibration="batch")
    for one, other in zip(of_left, choose_many(precise, PROMPTS, alone, calibration="batch"), strict=True):
        require_alike(mask, one, other)


def test_a_list_is_of_what_is_left(precise: Any) -> None:
    left, alone = both(precise, MASKS[1])
    for prompt in PROMPTS[:4]:
        one, other = (choose_list(precise, prompt, some, max_items=3, min_items=2) for some in (left, alone))
        assert one.values == other.values
        assert [item.index for item in one.items] == [MASKS[1][item.index] for item in other.items]
    with pytest.raises(ArgumentError, match="no member of the set"):
        choose_list(precise, PROMPT, left, exclude=["NONE"])


@pytest.mark.parametrize("kind", ["temperature", "bias"])
def test_a_calibration_of_all_members_goes_on_for_those_that_are_left(precise: Any, kind: Any) -> None:
    names, mask = NAMES[2:5] + NAMES[6:], [0, 2, 3]  # none of which goes on from another
    whole = TokenTrie.from_choices(precise, names)
    gold = [names[i % 5] for i in range(len(PROMPTS))]
    fitted = Calibration.fit(precise, PROMPTS, gold, whole, kind=kind, n_folds=3)
    options: Any = {"calibration": fitted, "probabilities": True}
    decisions = choose_many(precise, PROMPTS[:6], whole.filtered(mask), **options)
    for prompt, many in zip(PROMPTS, decisions, strict=False):
        all_of_them = choose(precise, prompt, whole, **options)
        assert all_of_them.probabilities is not None
        p = np.where(np.isin(range(5), mask), all_of_them.probabilities, 0.0)
        for decision in (choose(precise, prompt, whole.filtered(mask), **options), many):
            assert decision.probabilities == pytest.approx(p / p.sum(), abs=NEAR)
            assert decision.index == p.argmax()
            assert {value for value, _ in decision.top(9)} == {names[i] for i in mask}
        scores = score(precise, prompt, whole.filtered(mask), leaf_end="longest", calibration=fitted)
        assert np.flatnonzero(np.isfinite(scores)).tolist() == mask


def test_a_head_takes_the_scores_that_it_was_fitted_on(precise: Any) -> None:
    left = TokenTrie.from_choices(precise, NAMES[:5]).filtered([2, 3, 4])
    whole = TokenTrie.from_choices(precise, NAMES[2:5])
    gold = [NAMES[2 + i % 3] for i in range(len(PROMPTS))]
    made = Calibration.fit(precise, PROMPTS, gold, left, kind="head", n_folds=3)
    assert made.fitted.head is not None
    n = len(made.fitted.head.mean)
    weights = np.zeros((3, n))
    weights[:, -3:] = np.eye(3) * 2  # so that it is the scores, twice
    head = Head(np.zeros(n), np.ones(n), weights, np.zeros(3))
    of_scores = replace(made, fitted=replace(made.fitted, head=head))
    found = choose(precise, PROMPT, left, calibration=of_scores, probabilities=True)
    own = score(precise, PROMPT, left, leaf_end="longest")
    assert found.probabilities == pytest.approx(np.exp(2 * own) / np.exp(2 * own).sum(), abs=NEAR)
    with pytest.raises(CalibrationError, match="scores of all answers beside the hidden state"):
        choose(precise, PROMPT, whole.filtered([0, 2]), calibration=of_scores)


@pytest.mark.parametrize("kind", ["batch", "temperature", "bias", "head"])
def test_a_calibration_may_be_fitted_on_what_is_left(precise: Any, kind: Any) -> None:
    left, alone = both(precise, MASKS[0])
    gold = None if kind == "batch" else [NAMES[MASKS[0][i % 3]] for i in range(len(PROMPTS))]
    fitted, expected = (Calibration.fit(precise, PROMPTS, gold, some, kind=kind, n_folds=3) for some in (left, alone))
    assert fitted.classes == expected.classes == tuple(left.names)
    assert fitted.fitted.bias == pytest.approx(expected.fitted.bias, abs=1e-2)
    for prompt in PROMPTS[:4]:
        one, other = (
            choose(precise, prompt, some, calibration=own, probabilities=True)
            for some, own in ((left, fitted), (alone, fitted))
        )
        require_alike(MASKS[0], one, other)
    with pytest.raises(CalibrationError, match="other answers: 3 of them, where there are 8"):
        choose(precise, PROMPT, TokenTrie.from_choices(precise, NAMES), calibration=fitted)
    with pytest.raises(CalibrationError, match="other answers"):
        choose(precise, PROMPT, TokenTrie.from_choices(precise, NAMES).filtered([0, 1, 2]), calibration=fitted)


def test_a_pickled_decision_has_the_same_probabilities(precise: Any) -> None:
    left, _ = both(precise, MASKS[0])
    decision = choose(precise, PROMPT, left, probabilities=True)
    again: Decision[str] = pickle.loads(pickle.dumps(decision))
    for i, name in enumerate(NAMES):
        assert again.probability(name) == decision.probability(name)
        assert (decision.probability(name) > 0) == (i in MASKS[0])
    assert again.top(9) == decision.top(9)
    assert again.to_dict() == decision.to_dict()
