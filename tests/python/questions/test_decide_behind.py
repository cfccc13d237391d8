"""Questions about what stands in a handle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from token_trie import ArgumentError, Choice, ContextError, Form, Predicate, Score, StreamHandle, decide

STATE = "I was charged twice for Pizza in Paris."
QUESTIONS: dict[str, Any] = {
    "team": Choice("Which team?", {"billing": "yes Paris", "sales": None, "other_things": "Pizza"}),
    "urgent": Predicate("Is it urgent?"),
    "mood": Score("How angry?", ["calm", "annoyed", "very furious"]),
}


@pytest.fixture
def handle(precise: Any) -> Iterator[StreamHandle]:
    with StreamHandle(precise, n_ctx=512) as handle:
        handle.prefill(STATE)
        yield handle


def same(found: Any, expected: Any, within: float = 1e-4) -> None:
    for name, answer in expected.items():
        assert found[name].probabilities == pytest.approx(answer.probabilities, abs=within)
        assert found[name].mass == pytest.approx(answer.mass, rel=10 * within)


def test_the_text_of_a_handle_is_the_state(precise: Any, handle: StreamHandle) -> None:
    for options in ({}, {"form": "listed", "orders": 2}, {"calibration": None}, {"reproducible": True}):
        same(handle.decide(QUESTIONS, **options), decide(precise, STATE, QUESTIONS, **options))  # type: ignore[call-overload]


def test_the_sequence_stays(handle: StreamHandle) -> None:
    before = handle.tokens
    found = handle.decide(QUESTIONS)
    assert handle.tokens == before
    assert handle.state.n_cached == len(before)
    same(handle.decide(QUESTIONS), found)
    handle.append(" Yes")
    assert len(handle.tokens) > len(before)


def test_the_text_of_a_handle_comes_before_a_given_state(precise: Any) -> None:
    with StreamHandle(precise, n_ctx=512) as handle:
        handle.prefill("A shop's tickets.\n\n")
        form = Form("A shop's tickets.\n\n{{ state }}\n\nQuestion: {{ instructions }}\nAnswer:")
        same(handle.decide(QUESTIONS, state=STATE), decide(precise, STATE, QUESTIONS, form=form))
        one = handle.decide(QUESTIONS["urgent"], state={"text": STATE})
        assert one == handle.decide(QUESTIONS, state={"text": STATE})["urgent"]


def test_names_of_control_tokens_in_questions_are_text(precise: Any, model_paths: dict[str, Path]) -> None:
    question = Choice("Is </s> in it?", ["yes", "<s> no"])
    expected = decide(precise, STATE, question)
    with StreamHandle(precise, n_ctx=512) as handle:
        handle.prefill(STATE)
        same({"": handle.decide(question)}, {"": expected})
    with StreamHandle(model_paths["tiny"], n_ctx=512) as handle:
        handle.prefill(STATE)
        same({"": handle.decide(question)}, {"": expected}, 1e-2)
        with pytest.raises(ArgumentError, match="form: its template names control tokens"):
            handle.decide(question, form=Form("{{ state }}</s>{{ instructions }}"))
        with pytest.raises(ArgumentError, match="reproducible: for handles on a Llama"):
            handle.decide(question, reproducible=True)


def test_control_tokens_of_a_template_are_control_tokens(precise: Any, handle: StreamHandle) -> None:
    form = Form("{{ state }}</s>{{ instructions }}</s>")
    question = Choice("Is </s> in it?", ["yes", "no"])
    same({"": handle.decide(question, form=form)}, {"": decide(precise, STATE, question, form=form)})


def test_what_fails_leaves_the_sequence(handle: StreamHandle, precise: Any) -> None:
    before = handle.tokens
    with pytest.raises(ContextError, match=r"questions\['long'\]: "):
        handle.decide({**QUESTIONS, "long": Predicate("Is it? " * 2000)})
    with pytest.raises(ArgumentError, match="chat=True"):
        handle.decide(QUESTIONS, form=Form("{{ state }}{{ instructions }}", chat=True))
    assert handle.tokens == before
    with StreamHandle(precise, n_ctx=512) as empty, pytest.raises(ArgumentError, match="prefill first"):
        empty.decide(QUESTIONS)


def test_a_text_that_leaves_room_for_the_question_alone_is_answered(model_paths: dict[str, Path]) -> None:
    question = QUESTIONS["team"]
    with StreamHandle(model_paths["tiny"], n_ctx=512) as handle:
        handle.prefill(STATE)
        handle.decide(question)
        answers = {}  # with the scores without a state that are remembered
        for n in range(440, 512):
            handle.prefill([5] * n)
            with suppress(ContextError):
                answers[n] = handle.decide(question)
    assert 450 < max(answers) < 511
    for n in range(max(answers) - 5, max(answers) + 1):
        with StreamHandle(model_paths["tiny"], n_ctx=512) as handle:
            handle.prefill([5] * n)
            same({"": handle.decide(question)}, {"": answers[n]}, 1e-2)
            assert handle.tokens == [5] * n
