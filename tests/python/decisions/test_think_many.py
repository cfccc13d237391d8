"""`choose_many` with a thought before each answer."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
from token_trie import ContextError, Decision, StreamHandle, Think, VocabularyError, choose, choose_many

ACTIONS = ["READ", "READ_FILE", "SEND_EMAIL", "NONE"]


def check_same(decision: Any, alone: Decision[Any]) -> None:
    assert isinstance(decision, Decision)
    assert (decision.thought, decision.value, decision.tokens) == (alone.thought, alone.value, alone.tokens)
    assert decision.stats.n_prompt == alone.stats.n_prompt
    assert decision.logprob == pytest.approx(alone.logprob, abs=1e-3)
    assert decision.branch_logprob == pytest.approx(alone.branch_logprob, abs=1e-3)


def test_a_thoughts_marker_in_other_tokens_is_found_in_the_text(smollm2: Any) -> None:
    begun = "Once upon a time"
    with StreamHandle(smollm2, n_ctx=256) as stream:
        stream.prefill(begun)
        whole = stream.text(24).text
    for begin in range(2, 40, 6):
        marker = whole[begin : begin + 5]
        think = Think(marker, 24)
        alone = choose(smollm2, begun, ["yes", "no"], think=think, leading_space=True)
        (decision,) = choose_many(smollm2, [begun], ["yes", "no"], think=think, leading_space=True)
        assert decision.thought == alone.thought == whole[: whole.index(marker)]
        assert decision.value == alone.value
        assert decision.stats.n_prompt == alone.stats.n_prompt


def test_a_thought_that_does_not_fit_is_its_prompts_error(precise: Any) -> None:
    think = Think("\n", max_tokens=40)
    asked = ["Short:", "x" * 240, "Short too:"]
    first, second, third = choose_many(precise, asked, ACTIONS, think=think, n_ctx=256, on_error="return")
    assert isinstance(first, Decision)
    assert isinstance(third, Decision)
    assert isinstance(second, ContextError)
    assert str(second).startswith("prompts[1]: ")


def test_a_thought_ends_before_its_marker_in_the_same_tokens_as_alone(precise: Any) -> None:
    n_inside = 0
    for seed in range(160):
        how: Any = {"mode": "greedy", "seed": seed}
        drawn: Any = {"max_tokens": 16, "temperature": 1.0 + seed % 3}
        with contextlib.suppress(VocabularyError):  # answers that cannot be spelled behind bytes that are no text
            whole = choose(precise, "Answer:", ACTIONS, think=Think("~~~~", **drawn), **how).thought or ""
            broken = whole.find("\N{REPLACEMENT CHARACTER}" * 2)
            at = seed % 9 if seed % 2 or broken < 0 else broken + 2
            marker = whole[at : at + 1 + seed % 3]
            if not marker or "\N{REPLACEMENT CHARACTER}" in marker or "\0" in marker:
                continue
            think = Think(marker, **drawn)
            alone = choose(precise, "Answer:", ACTIONS, think=think, **how)
            (decision,) = choose_many(precise, ["Answer:"], ACTIONS, think=think, **how)
            check_same(decision, alone)
            assert alone.thought == whole[: whole.index(marker)]
            n_inside += 1
    assert n_inside > 40


def test_a_thought_that_ends_in_time_has_all_the_room_that_it_has_alone(precise: Any) -> None:
    asked = "x" * (precise.n_ctx() - 60)
    whole = choose(precise, asked, ACTIONS, think=Think("~~~~", 20)).thought or ""
    think = Think(next(char for char in whole if char.isascii() and char.isprintable()), max_tokens=200)
    alone = choose(precise, asked, ACTIONS, think=think)
    (decision,) = choose_many(precise, [asked], ACTIONS, think=think)
    check_same(decision, alone)
    gathered: list[Any] = []
    threads = [
        threading.Thread(target=lambda: gathered.extend(choose(precise, asked, ACTIONS, think=think) for _ in range(3)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gathered) == 12
    for each in gathered:
        check_same(each, alone)
    endless = Think("~~~~", max_tokens=200)
    with pytest.raises(ContextError, match="full"):
        choose(precise, asked, ACTIONS, think=endless)
    with pytest.raises(ContextError, match=r"^prompts\[0\]: the context is full before the thought has ended"):
        list(choose_many(precise, [asked], ACTIONS, think=endless))
