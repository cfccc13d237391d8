from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.drawing import seeded
from token_trie import (
    ArgumentError,
    ContextError,
    Contextual,
    StreamHandle,
    Think,
    TokenTrie,
    choose,
    choose_list,
    choose_many,
    fill,
)
from token_trie.asynchronous import achoose
from token_trie.native.core import vocab_of
from token_trie.sets.tokenization import inner_tokens

PROMPT = "Is water wet? Think, then say yes or no.\n"
MARKER = "\nAnswer:"
MODES = ["exact", "greedy", "sampled", "aligned", "beam"]


@pytest.fixture
def stream(precise: Any) -> Iterator[StreamHandle]:
    with StreamHandle(precise, n_ctx=512) as handle:
        handle.prefill(PROMPT)
        yield handle


@pytest.mark.parametrize("mode", MODES)
def test_the_answer_is_that_of_the_prompt_with_the_thought(precise: Any, stream: StreamHandle, mode: Any) -> None:
    before = stream.tokens
    think = Think(MARKER, max_tokens=12)
    decision = stream.choose(["yes", "no"], mode=mode, **seeded(mode, 3), think=think)
    assert isinstance(decision.thought, str)
    behind = stream.tokens[: -len(decision.tokens)]
    assert behind[: len(before)] == before
    assert 0 < len(behind) - len(before) <= 12 + len(inner_tokens(MARKER, "marker", vocab_of(precise)))
    plain = choose(precise, behind, ["yes", "no"], mode=mode, **seeded(mode, 3))
    assert (decision.value, decision.tokens) == (plain.value, plain.tokens)
    assert decision.logprob == pytest.approx(plain.logprob, abs=1e-4)
    assert decision.branch_logprob == pytest.approx(plain.branch_logprob, abs=1e-4)
    beside = choose(precise, PROMPT, ["yes", "no"], mode=mode, **seeded(mode, 3), think=think)
    assert (beside.value, beside.thought) == (decision.value, decision.thought)
    assert plain.thought is None


def test_the_text_is_prompt_thought_marker_answer(smollm2: Any) -> None:
    for max_tokens in (0, 1, 20):
        with StreamHandle(smollm2, n_ctx=256) as stream:
            stream.prefill(PROMPT)
            decision = stream.choose(["yes", "no"], think=Think(MARKER, max_tokens))
            text = smollm2.detokenize(stream.tokens, special=True).decode()
            assert text == f"{PROMPT}{decision.thought}{MARKER} {decision.text}"
            assert MARKER not in decision.thought
            assert max_tokens > 0 or decision.thought == ""
            assert decision.to_dict()["thought"] == decision.thought


def test_a_list_follows_the_thought(smollm2: Any) -> None:
    think = Think(MARKER, max_tokens=6)
    with StreamHandle(smollm2, n_ctx=256) as stream:
        stream.prefill(PROMPT)
        found = stream.choose_list(["yes", "no"], max_items=2, think=think)
        text = smollm2.detokenize(stream.tokens, special=True).decode()
        assert text == f"{PROMPT}{found.thought}{MARKER}{found.text}"
        beside = choose_list(smollm2, PROMPT, ["yes", "no"], max_items=2, think=think)
        assert (found.values, found.thought) == (beside.values, beside.thought)
        assert stream.choose_list(["yes", "no"], max_items=1).thought is None


def test_a_record_follows_the_thought(precise: Any) -> None:
    think = Think(MARKER, max_tokens=6, temperature=2.0)
    schema = {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}
    with StreamHandle(precise, n_ctx=256) as stream:
        stream.prefill(PROMPT)
        found = stream.fill(schema, think=think, seed=3)
        text = precise.detokenize(stream.tokens, special=True).decode(errors="replace")
        assert text.endswith(f"{PROMPT}{found.thought}{MARKER}{found.text}")
        assert found == fill(precise, PROMPT, schema, think=think, seed=3)
        assert stream.fill(schema).thought is None


def test_control_tokens_may_mark_the_end(smollm2: Any) -> None:
    decision = choose(smollm2, PROMPT, ["yes", "no"], think=Think("<|im_end|>", max_tokens=4))
    assert "<|im_end|>" not in decision.thought
    assert decision.value in ("yes", "no")


def test_a_marker_in_other_tokens_is_found_in_the_text(smollm2: Any) -> None:
    with StreamHandle(smollm2, n_ctx=256) as stream:
        stream.prefill("Once upon a time")
        whole = stream.text(24).text
        for begin in range(2, 40, 3):
            marker = whole[begin : begin + 5]
            stream.prefill("Once upon a time")
            decision = stream.choose(["yes", "no"], think=Think(marker, 24), leading_space=True)
            assert decision.thought == whole[: whole.index(marker)]
            text = smollm2.detokenize(stream.tokens).decode()
            assert text == f"Once upon a time{decision.thought}{marker} {decision.text}"


def test_thoughts_are_drawn_from_a_seed(smollm2: Any) -> None:
    think = Think(MARKER, max_tokens=8, temperature=2.0)
    thoughts = [choose(smollm2, PROMPT, ["yes", "no"], seed=seed, think=think).thought for seed in (1, 1, 2)]
    assert thoughts[0] == thoughts[1] != thoughts[2]
    own = Think(MARKER, max_tokens=8, temperature=2.0, seed=1)
    assert choose(smollm2, PROMPT, ["yes", "no"], think=own).thought == thoughts[0]


def test_the_span_begins_where_a_plain_search_says(precise: Any) -> None:
    rng = random.Random(11)
    end = int(precise.token_eos())
    with StreamHandle(precise, n_ctx=512) as stream:
        for seed in range(400):
            marker = [rng.choice((300, 301)) for _ in range(rng.randint(1, 5))]
            budget = rng.randint(0, 64)
            stream.prefill([1, 310 + rng.randrange(9)])
            stream.set_seed(seed)
            stream.set_token_trie(TokenTrie.from_sequences({"x": [320]}), start_after=marker, max_before=budget)
            start = len(stream.tokens)
            free = 0
            for step in stream.generate(temperature=5.0):
                free += not step.forced
                if stream.state.span != "thinking":
                    break
            thought = stream.tokens[start:]
            found = next(i for i in range(len(thought)) if thought[i : i + len(marker)] == marker)
            assert len(thought) == found + len(marker)
            assert end not in thought
            assert found <= budget


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"think": "x"}, "think must be a Think, not str"),
        ({"think": Think("x"), "calibration": Contextual("y")}, "weighs answers directly after the prompt"),
        ({"think": Think([10**8])}, "outside"),
    ],
)
def test_what_is_no_way_to_think_is_refused(precise: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose(precise, PROMPT, ["yes", "no"], **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"marker": ""}, "the marker is empty"),
        ({"max_tokens": -1}, "max_tokens: -1"),
        ({"temperature": "warm"}, "temperature must be "),
        ({"temperature": float("nan")}, "temperature: nan"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p: 0.0"),
        ({"min_p": 1.5}, "min_p: 1.5"),
        ({"top_k": -1}, "top_k: -1"),
        ({"seconds": -1}, "seconds: -1"),
    ],
)
def test_what_is_no_thought_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Think(**arguments)


def test_a_thought_without_room_leaves_the_sequence_and_the_trie(precise: Any, stream: StreamHandle) -> None:
    stream.prefill(PROMPT)
    before = stream.tokens
    stream.set_token_trie(TokenTrie.from_choices(precise, ["yes", "no"]))
    with pytest.raises(ContextError):
        stream.choose(["yes", "no"], think=Think([300, 301, 302, 303, 304, 305], max_tokens=2000))
    assert stream.tokens == before
    assert stream.state.span == "constrained"


def test_thoughts_under_asyncio_end_when_they_are_waited_for_too_long(precise: Any, stream: StreamHandle) -> None:
    think = Think([300, 301, 302, 303, 304, 305], max_tokens=400, temperature=5.0)

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(achoose(precise, PROMPT, ["yes", "no"], think=think), 0.001)

    asyncio.run(main())
    assert stream.choose(["yes", "no"]).value == choose(precise, PROMPT, ["yes", "no"]).value


def test_seconds_end_a_thought(smollm2: Any) -> None:
    started = time.perf_counter()
    found = choose(smollm2, PROMPT, ["yes", "no"], think=Think("\n@@", max_tokens=1500, seconds=0.05))
    assert time.perf_counter() - started < 20
    assert found.thought is not None
    assert 0 < len(smollm2.tokenize(found.thought.encode(), add_bos=False)) < 1500
    endless = choose(smollm2, PROMPT, ["yes", "no"], think=Think("\n@@", max_tokens=20, seconds=60))
    plain = choose(smollm2, PROMPT, ["yes", "no"], think=Think("\n@@", max_tokens=20))
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
