from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from token_trie import (
    ArgumentError,
    ContextError,
    Contextual,
    StreamHandle,
    TokenTrie,
    choose,
    choose_many,
    score,
    score_many,
)

ACTIONS = ["READ", "READ_FILE", "SEND_EMAIL", "SET_ALARM", "NONE", "READ"]
PROMPT, EMPTY = "Request: wake me at seven.\nAction:", "Request:\nAction:"


def test_calibrated_scores_are_less_those_after_the_empty_prompt(precise: Any) -> None:
    plain, empty = (score(precise, prompt, ACTIONS, leaf_end="longest") for prompt in (PROMPT, EMPTY))
    calibrated = score(precise, PROMPT, ACTIONS, leaf_end="longest", calibration=Contextual(EMPTY))
    assert calibrated == pytest.approx(plain - empty, abs=1e-4)


def test_a_calibrated_decision_is_the_best_of_the_calibrated_scores(llm: Any) -> None:
    scores = score(llm, PROMPT, ACTIONS, leaf_end="longest", calibration=Contextual(EMPTY))
    decision = choose(llm, PROMPT, ACTIONS, calibration=Contextual(EMPTY), n_best=5, probabilities=True)
    assert decision.index == int(scores.argmax())
    weights = np.exp(scores) / np.exp(scores[:5]).sum()
    assert decision.probabilities == pytest.approx(weights, abs=1e-3)
    assert decision.logprob == pytest.approx(score(llm, PROMPT, ACTIONS, leaf_end="longest")[decision.index], abs=1e-3)
    assert [c.value for c in decision.candidates] == [value for value, _ in decision.top(5)]


def test_an_empty_prompt_of_another_seam_calibrates_the_same_choices(precise: Any) -> None:
    # Behind a line break no space stands before the answer.
    plain, empty = (score(precise, prompt, ACTIONS, leaf_end="longest") for prompt in (PROMPT, "Action:\n"))
    calibrated = score(precise, PROMPT, ACTIONS, leaf_end="longest", calibration=Contextual("Action:\n"))
    assert calibrated == pytest.approx(plain - empty, abs=1e-4)


def test_what_the_empty_prompt_gives_is_remembered(smollm2: Any) -> None:
    options: Any = {"calibration": Contextual("Request: Forget me.\nAction:"), "probabilities": True}
    for _ in range(2):
        choose(smollm2, PROMPT, ACTIONS, **options)
    again = choose(smollm2, PROMPT, ACTIONS, **options)
    once = choose(smollm2, PROMPT, ACTIONS, probabilities=True)
    assert again.stats.n_passes == once.stats.n_passes
    assert again.stats.n_prompt == once.stats.n_prompt


def test_a_trie_is_calibrated_too(precise: Any) -> None:
    trie = TokenTrie.from_choices(precise, ["yes", "no"], prompt="Answer:")
    scores = score(precise, "Sure? Answer:", trie, calibration=Contextual("Answer:"))
    assert scores == pytest.approx(score(precise, "Sure? Answer:", trie) - score(precise, "Answer:", trie), abs=1e-4)


@pytest.mark.parametrize("options", [{"timeout": 1.0}, {"max_nodes": 4}])
def test_probabilities_go_with_whole_scores_alone(precise: Any, options: Any) -> None:
    with pytest.raises(ArgumentError, match="probabilities: score the whole set"):
        choose(precise, PROMPT, ACTIONS, probabilities=True, **options)


def test_many_are_calibrated_as_one_is(precise: Any) -> None:
    prompts = [f"Request: {text}.\nAction:" for text in ("wake me at seven", "read it", "send it")]
    contextual = Contextual(EMPTY)
    for sets in ({"choices": ACTIONS}, {"sets": [ACTIONS] * 3}):
        many = choose_many(precise, prompts, calibration=contextual, probabilities=True, **sets)
        for prompt, decision in zip(prompts, many, strict=True):
            alone = choose(precise, prompt, ACTIONS, calibration=contextual, probabilities=True)
            assert decision.value == alone.value
            assert decision.probabilities == pytest.approx(alone.probabilities, abs=1e-4)
            assert decision.calibration == alone.calibration == "contextual"
    scores = score_many(precise, prompts, ACTIONS, calibration=contextual)
    assert scores == pytest.approx(
        np.stack([score(precise, p, ACTIONS, calibration=contextual) for p in prompts]), abs=1e-4
    )


def test_a_handle_keeps_its_sequence_while_it_is_calibrated(precise: Any) -> None:
    calibration = Contextual(EMPTY)
    expected = score(precise, PROMPT, ACTIONS, calibration=calibration)
    with StreamHandle(precise, n_ctx=128) as stream:
        stream.prefill("Paris")
        before = stream.tokens
        assert stream.score(ACTIONS, prompt=PROMPT, calibration=calibration) == pytest.approx(expected, abs=1e-4)
        assert stream.tokens == before
        stream.prefill(PROMPT)
        decision = stream.choose(ACTIONS, calibration=calibration)
    assert decision.value == choose(precise, PROMPT, ACTIONS, calibration=calibration).value


def test_an_empty_prompt_without_room_is_refused(precise: Any) -> None:
    with pytest.raises(ContextError, match="make the Llama with a larger n_ctx"):
        choose(precise, PROMPT, ACTIONS, calibration=Contextual("word " * 2000))


def test_a_set_with_repeats_and_its_own_trie_are_calibrated_alike(precise: Any) -> None:
    choices = ["yes", "yes", "no"]
    for first in ("texts", "trie"):
        empty = f"Empty {first}.\nAnswer:"
        texts = choose(precise, PROMPT, choices, probabilities=True)
        asked = [choices, texts.trie] if first == "texts" else [texts.trie, choices]
        a, b = (
            choose(precise, PROMPT, each, calibration=Contextual(empty), probabilities=True).probability("no")
            for each in asked
        )
        assert a == pytest.approx(b, abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"n_best": 4}, {"mode": "beam", "beam_width": 64}, {"max_nodes": None}])
def test_the_best_by_known_weights_is_searched_for(precise: Any, options: Any) -> None:
    prompts = [f"Request: {text}.\nAction:" for text in ("wake me at seven", "read it", "send it", "nothing")]
    contextual = Contextual(EMPTY)
    for prompt, many in zip(
        prompts, choose_many(precise, prompts, ACTIONS, calibration=contextual, **options), strict=True
    ):
        ranks = score(precise, prompt, ACTIONS, leaf_end="longest", calibration=contextual)
        raw = score(precise, prompt, ACTIONS, leaf_end="longest")
        order = sorted(set(map(float, ranks)), reverse=True)
        for found in (choose(precise, prompt, ACTIONS, calibration=contextual, **options), many):
            assert found.index == int(ranks.argmax())
            assert found.calibration == "contextual"
            assert found.logprob == pytest.approx(raw[found.index], abs=1e-3)
            if found.proved:
                assert found.lead == pytest.approx(order[0] - order[1], abs=1e-3) or found.lead < order[0] - order[1]
            for rank, candidate in zip(order, found.candidates, strict=False):
                assert ranks[candidate.index] == pytest.approx(rank, abs=1e-3)
