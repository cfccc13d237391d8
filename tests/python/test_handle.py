from __future__ import annotations

import enum
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.drawing import seeded
from token_trie import ArgumentError, BusyError, ContextError, StreamHandle, TokenTrie, Weights, choose, explain
from token_trie.llama.drivers import StreamDriver

ACTIONS = ["READ", "READ_FILE", "SEND_EMAIL", "SET_ALARM", "NONE"]
PROMPT = "Request: wake me at seven.\nAction:"
MODES = ["exact", "greedy", "sampled", "aligned", "beam"]


class Action(enum.Enum):
    READ = "READ"
    ALARM = "SET_ALARM"


@pytest.fixture
def stream(precise: Any) -> Iterator[StreamHandle]:
    with StreamHandle(precise, n_ctx=512) as handle:
        yield handle


@pytest.mark.parametrize("mode", MODES)
def test_a_decision_is_that_of_choose_and_the_sequence_continues_after_it(
    precise: Any, stream: StreamHandle, mode: Any
) -> None:
    expected = choose(precise, PROMPT, ACTIONS, mode=mode, **seeded(mode, 3))
    stream.prefill(PROMPT)
    before = stream.tokens
    decision = stream.choose(ACTIONS, mode=mode, **seeded(mode, 3))
    assert (decision.value, decision.tokens) == (expected.value, expected.tokens)
    assert decision.logprob == pytest.approx(expected.logprob, abs=1e-4)
    assert decision.branch_logprob == pytest.approx(expected.branch_logprob, abs=1e-4)
    assert stream.tokens == [*before, *decision.tokens]
    assert stream.state.span == "none"


def test_a_turn_of_text_and_choices_is_one_sequence(smollm2: Any) -> None:
    with StreamHandle(smollm2, n_ctx=512) as stream:
        stream.prefill("Request: wake me at seven.\nThought:")
        thought = stream.text(12, stop="\n")
        stream.append("\nAction:")
        action = stream.choose(Action)
        stream.append("\nDone:")
        done = stream.choose({"yes": True, "no": False}, mode="greedy")
        text = smollm2.detokenize(stream.tokens, special=True).decode()
    assert isinstance(action.value, Action)
    assert isinstance(done.value, bool)
    assert text == f"Request: wake me at seven.\nThought:{thought}\nAction: {action.text}\nDone: {done.text}"


def test_the_seam_moves_as_choose_moves_it(smollm2: Any) -> None:
    expected = choose(smollm2, "The capital of France is ", ["Paris", "London"])
    with StreamHandle(smollm2, n_ctx=128) as stream:
        stream.prefill("The capital of France is ")
        assert stream.choose(["Paris", "London"]).tokens == expected.tokens
        assert smollm2.detokenize(stream.tokens).decode() == "The capital of France is Paris"


@pytest.mark.parametrize("mode", MODES)
def test_stepping_token_by_token_gives_the_same(precise: Any, mode: Any) -> None:
    results = []
    for jump_forward in (True, False):
        with StreamHandle(precise, n_ctx=512, jump_forward=jump_forward) as stream:
            stream.prefill("Begin")
            for k in range(4):
                stream.append(f"\nAction {k}:")
                stream.choose(ACTIONS, mode=mode, **seeded(mode, k))
                stream.text(3)
            results.append(stream.tokens)
    assert results[0] == results[1]


def test_probabilities_are_those_of_choose(precise: Any, stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    p = stream.choose(ACTIONS, probabilities=True).probabilities
    assert p == pytest.approx(choose(precise, PROMPT, ACTIONS, probabilities=True).probabilities, abs=1e-4)


@pytest.mark.parametrize(
    ("choices", "options", "message"),
    [
        ([], {}, "choices: none given"),
        (ACTIONS, {"mode": "best"}, "mode must be one of"),
        ({"READ": 1, " READ": 2}, {}, "stand for different values"),
    ],
)
def test_a_refused_decision_leaves_the_sequence(stream: StreamHandle, choices: Any, options: Any, message: str) -> None:
    stream.prefill(PROMPT)
    before = stream.tokens
    with pytest.raises(ArgumentError, match=message):
        stream.choose(choices, **options)
    assert stream.tokens == before


def test_without_room_the_sequence_is_what_it_was(precise: Any) -> None:
    long = TokenTrie.from_sequences({"long": [300] * 400, "longer": [300] * 401})
    with StreamHandle(precise, n_ctx=256) as stream:
        stream.prefill(PROMPT + " ")
        before = stream.tokens
        for mode in MODES:
            with pytest.raises(ContextError):
                stream.choose(long, mode=mode)
            assert stream.tokens == before


def test_a_choice_without_a_prompt_is_refused(stream: StreamHandle) -> None:
    with pytest.raises(ArgumentError, match="there is no text to continue: prefill first"):
        stream.choose(ACTIONS)


def test_a_handle_on_a_file_chooses_among_texts_too(model_paths: dict[str, Path]) -> None:
    with StreamHandle(model_paths["tiny"], n_ctx=512) as stream:
        stream.prefill(PROMPT)
        assert stream.choose(ACTIONS, probabilities=True).value in ACTIONS
        stream.append("\nAction:")
        assert stream.choose(range(5)).value in range(5)


def test_a_handle_on_a_file_writes_records_and_calls_too(model_paths: dict[str, Path], tiny: Any) -> None:
    schema = {"type": "object", "properties": {"action": {"enum": ACTIONS}, "urgent": {"type": "boolean"}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("act", "plan")]
    with StreamHandle(model_paths["tiny"], n_ctx=512, n_threads=1) as own, StreamHandle(tiny, n_ctx=512) as other:
        for stream in (own, other):
            stream.prefill(PROMPT)
            stream.fill(schema)
            stream.choose_tool(tools)
        assert own.tokens == other.tokens


def test_another_threads_generation_keeps_the_handle(stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    steps = stream.generate(8)
    thread = threading.Thread(target=lambda: next(steps))
    thread.start()
    thread.join()
    with pytest.raises(BusyError):
        stream.choose(ACTIONS)
    steps.close()
    assert stream.choose(ACTIONS).value in ACTIONS


def test_no_other_thread_interrupts_the_calls_of_a_decision(
    precise: Any, stream: StreamHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[Exception] = []

    def other() -> None:
        for call in (lambda: stream.append([300]), lambda: stream.tokens, lambda: next(stream.generate(1))):
            try:
                call()
            except BusyError as error:
                refused.append(error)

    finish = StreamDriver.finish

    def run_beside_another(*arguments: Any) -> Any:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return finish(*arguments)

    stream.prefill(PROMPT)
    before = stream.tokens
    monkeypatch.setattr(StreamDriver, "finish", run_beside_another)
    decision = stream.choose(ACTIONS)
    assert len(refused) == 3
    assert stream.tokens == [*before, *decision.tokens]
    stream.append([300])


def test_a_decision_leaves_the_draws_of_text_alone(precise: Any) -> None:
    texts = set()
    for mode in ("greedy", "exact", "greedy"):
        with StreamHandle(precise, n_ctx=256, seed=7) as stream:
            stream.prefill(PROMPT)
            stream.choose(["yes"], mode=mode)
            texts.add(stream.text(12, temperature=1.0).text)
    assert len(texts) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_grammar_begins_anew_after_the_answer(stream: StreamHandle, mode: Any) -> None:
    stream.prefill(PROMPT)
    stream.set_grammar('root ::= "ab" | "cd"')
    stream.choose(["yes", "no"], mode=mode)
    assert stream.text(8).text in ("ab", "cd")


@pytest.mark.parametrize(
    "refused",
    [
        lambda stream: stream.choose(["a\0"]),
        lambda stream: stream.choose(["a " * 400, "b"]),
        lambda stream: stream.choose_list(["a " * 400, "b"]),
        lambda stream: stream.fill({"type": "object", "properties": {"a": {"$ref": "nowhere"}}}),
    ],
)
def test_what_is_refused_lets_a_span_and_its_reader_go_on(precise: Any, stream: StreamHandle, refused: Any) -> None:
    texts = []
    for call in (lambda _: None, refused):
        stream.prefill(PROMPT)
        stream.set_token_trie(TokenTrie.from_choices(precise, ["SET_ALARM_NOW", "SET_TIMER_SOON"], prompt=PROMPT))
        steps = stream.generate()
        texts.append(next(steps).text + next(steps).text)
        try:
            call(stream)
        except ValueError:
            assert call is refused
        texts[-1] += "".join(step.text for step in steps)
        assert stream.state.span == "complete"
    assert texts[0] == texts[1]


def test_a_decision_that_fails_puts_the_trie_back(precise: Any, stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    stream.set_token_trie(TokenTrie.from_choices(precise, ["yes", "no"]))
    with pytest.raises(ContextError):
        stream.choose(["x" * 3000, "y"])
    assert stream.state.span == "constrained"
    with pytest.raises(ArgumentError, match="calibration: 1 weights"):
        stream.choose(ACTIONS, calibration=Weights([1.0]))
    assert "".join(step.text for step in stream.generate()).strip() in ("yes", "no")


def test_an_explanation_is_that_of_explain_and_the_sequence_stays(precise: Any, stream: StreamHandle) -> None:
    expected = explain(precise, PROMPT, ACTIONS)
    stream.prefill(PROMPT)
    before = stream.tokens
    explained = stream.explain(ACTIONS)
    assert (explained.exact.value, explained.greedy.value) == (expected.exact.value, expected.greedy.value)
    assert explained.probabilities == pytest.approx(expected.probabilities, abs=1e-4)
    assert explained.shares == pytest.approx(expected.shares, abs=1e-4)
    assert explained.model == expected.model
    assert stream.tokens == before
    leaves = [{"name": leaf.name, "tokens": list(leaf.tokens)} for leaf in expected.trie]
    stream.set_payload({"modelId": "", "descriptors": [{"path": "actions", "leaves": leaves}]})
    assert stream.explain(path="actions").exact.value == explained.exact.value
    assert stream.choose(ACTIONS).value == expected.exact.value


def test_an_explanation_that_fails_leaves_the_sequence(stream: StreamHandle) -> None:
    with pytest.raises(ArgumentError, match="prefill"):
        stream.explain(ACTIONS)
    stream.prefill(PROMPT)
    before = stream.tokens
    with pytest.raises(ContextError):
        stream.explain(["word " * 600, "b"])
    assert stream.tokens == before
