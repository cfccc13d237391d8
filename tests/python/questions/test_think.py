"""Decisions that are close think first, as far as their share goes."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_trie import (
    ArgumentError,
    Calibration,
    Choice,
    Predicate,
    Score,
    StreamHandle,
    Think,
    choose,
    choose_many,
    decide,
    decide_many,
)
from token_trie.native.core import vocab_of
from token_trie.questions.decide import lead_of, to_think_about
from token_trie.questions.question import PredicateAnswer, QuestionStats
from token_trie.sets.spelling import inner_tokens

STATE = "I was charged twice for Pizza in Paris."
QUESTIONS: dict[str, Any] = {
    "team": Choice("Which team?", {"billing": "yes Paris", "sales": None, "other_things": "Pizza"}),
    "urgent": Predicate("Is it urgent?"),
    "mood": Score("How angry?", ["calm", "annoyed", "very furious"]),
}
ALWAYS = Think("\nAnswer:", max_tokens=12, margin=1, share=1)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30), st.floats(0, 1))
def test_no_more_than_the_share_of_all_think(calls: list[tuple[int, int]], share: float) -> None:
    n = n_thought = 0
    known: dict[object, Any] = {}
    close, sure = (PredicateAnswer(True, {True: p, False: 1 - p}, None, "raw", QuestionStats(0, 0)) for p in (0.5, 1.0))
    for n_decisions, n_close in calls:
        n += n_decisions
        room = math.ceil(share * n - 1e-9) - n_thought
        answers = {i: close if i < n_close else sure for i in range(n_decisions)}
        thinking = to_think_about(known, Think(share=share), answers)
        assert thinking == list(range(max(0, min(n_close, n_decisions, room))))
        n_thought += len(thinking)


def test_the_answer_is_read_after_the_thought(precise: Any) -> None:
    found = decide(precise, STATE, QUESTIONS, think=ALWAYS, calibration=None)
    marker = inner_tokens(ALWAYS.marker, "marker", vocab_of(precise)).tolist()
    texts = {
        "team": ["yes Paris", "sales", "Pizza"],
        "urgent": ["Yes", "No"],
        "mood": ["calm", "annoyed", "very furious"],
    }
    for name, answer in found.items():
        with StreamHandle(precise, n_ctx=512) as handle:
            handle.prefill(f"{STATE}\n\nQuestion: {QUESTIONS[name].instructions}\nAnswer:")
            assert handle.text(12).text == answer.thought
            handle.append(marker)
            p = np.exp(handle.score(texts[name], leaf_end="any"))
        assert list(answer.probabilities.values()) == pytest.approx(p / p.sum(), abs=1e-4)
    assert decide(precise, STATE, QUESTIONS)["team"].thought is None


def test_what_was_fitted_without_thoughts_goes_without(precise: Any) -> None:
    question = Choice("Which?", ["Pizza", "Paris"])
    states = [f"State {i}" for i in range(24)]
    fitted = Calibration.fit(precise, states, ["Pizza", "Paris"] * 12, question, kind="bias", n_folds=3)
    assert decide(precise, STATE, question, calibration=fitted).calibration == "fitted"
    with pytest.raises(ArgumentError, match="calibration: was fitted on answers without a thought"):
        decide(precise, STATE, question, calibration=fitted, think=ALWAYS)


def test_the_closest_of_a_state_think(model_paths: dict[str, Path]) -> None:
    llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=512, verbose=False)
    plain = decide(llm, STATE, QUESTIONS)
    closest = min(plain, key=lambda name: lead_of(plain[name]))
    found = decide(llm, STATE, QUESTIONS, think=Think(max_tokens=4, margin=1, share=0.3))
    assert [name for name, answer in found.items() if answer.thought is not None] == [closest]
    for name in plain:
        assert name == closest or found[name] == plain[name]
    # Of 3, 6, 9, 12, 15 and 18 decisions, 1, 2, 3, 4, 5 and 6 may.
    n = [
        sum(
            a.thought is not None
            for a in decide(llm, STATE, QUESTIONS, think=Think(max_tokens=4, margin=1, share=0.3)).values()
        )
        for _ in range(3)
    ]
    assert n == [1, 1, 1]
    llm.close()


def test_only_close_ones_think(precise: Any) -> None:
    plain = decide(precise, STATE, QUESTIONS)
    leads = {name: lead_of(answer) for name, answer in plain.items()}
    margin = sum(sorted(leads.values())[:2]) / 2
    found = decide(precise, STATE, QUESTIONS, think=Think(max_tokens=4, margin=margin, share=1))
    assert {name for name in found if found[name].thought is not None} == {n for n in leads if leads[n] < margin}
    never = decide(precise, STATE, QUESTIONS, think=Think(max_tokens=4, margin=1, share=0))
    assert all(answer.thought is None for answer in never.values())


@pytest.mark.parametrize(("share", "seconds"), [(0.35, None), (0.35, 60), (0.05, None), (0, None)])
def test_many_states_think_as_one_after_the_other(
    model_paths: dict[str, Path], share: float, seconds: float | None
) -> None:
    states = [f"{STATE} {i}" for i in range(9)]
    think = Think(max_tokens=4, margin=1, share=share, seconds=seconds)
    one, other = (llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=512, verbose=False) for _ in range(2))
    alone = [decide(one, state, QUESTIONS, think=think) for state in states]
    together = list(decide_many(other, iter(states), QUESTIONS, think=think))
    for a, b in zip(alone, together, strict=True):
        assert [a[name].thought is None for name in a] == [b[name].thought is None for name in b]
        for name in a:
            assert a[name].probabilities == pytest.approx(b[name].probabilities, abs=1e-2)
    assert sum(x.thought is not None for found in together for x in found.values()) == math.ceil(share * 27)
    one.close()
    other.close()


def test_seconds_end_a_thought(smollm2: Any) -> None:
    question = Predicate("Is it urgent?")
    started = time.perf_counter()
    found = decide(smollm2, STATE, question, think=Think("\n@@", max_tokens=1500, margin=1, share=1, seconds=0.05))
    assert time.perf_counter() - started < 20
    assert 0 < len(smollm2.tokenize(found.thought.encode(), add_bos=False)) < 1500
    endless = decide(smollm2, STATE, question, think=Think("\n@@", max_tokens=20, margin=1, share=1, seconds=60))
    plain = decide(smollm2, STATE, question, think=Think("\n@@", max_tokens=20, margin=1, share=1))
    assert endless.thought == plain.thought


def test_a_marker_is_found_across_two_looks_at_the_clock(smollm2: Any) -> None:
    prompt = "Once upon a time"
    whole = smollm2(prompt, max_tokens=30, temperature=0)["choices"][0]["text"]
    for begin in range(3, 60, 11):
        marker = whole[begin : begin + 6]
        timed = choose(smollm2, prompt, ["yes", "no"], think=Think(marker, 30, seconds=60), leading_space=True)
        plain = choose(smollm2, prompt, ["yes", "no"], think=Think(marker, 30), leading_space=True)
        assert (timed.thought, timed.value) == (plain.thought, plain.value)
        (beside,) = choose_many(
            smollm2, [prompt], ["yes", "no"], think=Think(marker, 30, seconds=60), leading_space=True
        )
        assert (beside.thought, beside.value) == (plain.thought, plain.value)


def test_a_marker_of_tokens_is_found_across_two_looks_at_the_clock(smollm2: Any) -> None:
    prompt = smollm2.tokenize(b"Once upon a time")
    with StreamHandle(smollm2, n_ctx=128) as handle:
        handle.prefill(prompt)
        thought = [step.token for step in handle.generate(24)]
        for begin in range(5, 20, 2):
            handle.prefill(prompt)
            decision = handle.choose(["yes", "no"], think=Think(thought[begin : begin + 3], 24, seconds=60))
            n = next(i for i in range(len(thought)) if thought[i : i + 3] == thought[begin : begin + 3])
            assert handle.tokens[: len(prompt) + n + 3] == prompt + thought[: n + 3]
            assert len(handle.tokens) == len(prompt) + n + 3 + len(decision.tokens)


def test_time_that_is_up_forces_the_marker(smollm2: Any) -> None:
    decision = choose(smollm2, "Once upon a time", ["yes", "no"], think=Think("\n@@", 30, seconds=0))
    assert decision.thought == ""


def test_a_handle_thinks_as_well(precise: Any) -> None:
    with StreamHandle(precise, n_ctx=512) as handle:
        handle.prefill(STATE)
        before = handle.tokens
        found = handle.decide(QUESTIONS, think=ALWAYS)
        assert handle.tokens == before
    for name, answer in decide(precise, STATE, QUESTIONS, think=ALWAYS).items():
        assert found[name].thought == answer.thought
        assert found[name].probabilities == pytest.approx(answer.probabilities, abs=1e-3)


@pytest.mark.parametrize("wrong", [{"margin": 2}, {"share": -0.1}, {"seconds": -1}, {"margin": "x"}])
def test_a_think_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        Think(**wrong)


def test_what_thinking_does_not_go_with_is_refused(precise: Any) -> None:
    with pytest.raises(ArgumentError, match="reproducible: goes without think"):
        decide(precise, STATE, QUESTIONS, think=ALWAYS, reproducible=True)
    with pytest.raises(ArgumentError, match="think: str where a Think"):
        decide(precise, STATE, QUESTIONS, think="x")  # type: ignore[call-overload]
