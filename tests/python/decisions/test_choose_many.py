"""`choose_many`, `score_many`, `achoose_many`."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from token_trie import (
    ArgumentError,
    BusyError,
    CancelledError,
    ContextError,
    Decision,
    Think,
    TokenTrie,
    TokenTrieError,
    choose,
    choose_many,
    score,
    score_many,
)
from token_trie.asynchronous import achoose_many
from token_trie.plan import WINDOW

ACTIONS = ["READ", "READ_FILE", "SEND_EMAIL", "SEND_MESSAGE", "SET_ALARM", "SET_TIMER", "NONE"]
NEAR = 1e-4


def prompts(n: int, start: int = 0) -> list[str]:
    return [f"Choose an action for each request.\nRequest {i}.\nAction:" for i in range(start, start + n)]


def check_same(decision: Decision[Any], alone: Decision[Any]) -> None:
    assert isinstance(decision, Decision)
    assert (decision.value, decision.text, decision.index) == (alone.value, alone.text, alone.index)
    assert (decision.tokens, decision.thought) == (alone.tokens, alone.thought)
    assert decision.logprob == pytest.approx(alone.logprob, abs=NEAR)
    assert decision.branch_logprob == pytest.approx(alone.branch_logprob, abs=NEAR)
    assert decision.gap == pytest.approx(alone.gap, abs=NEAR)
    assert [c.index for c in decision.candidates] == [c.index for c in alone.candidates]
    for figure in ("lead", "mass", "probabilities"):
        expected = getattr(alone, figure)
        if expected is None:
            assert getattr(decision, figure) is None
        else:
            assert getattr(decision, figure) == pytest.approx(expected, abs=NEAR)
    assert decision.stats.n_prompt == alone.stats.n_prompt
    assert decision.stats.n_branches == alone.stats.n_branches
    assert decision.stats.n_forced == alone.stats.n_forced


WAYS: list[dict[str, Any]] = [
    {},
    {"mode": "greedy"},
    {"mode": "sampled", "seed": 3},
    {"mode": "sampled", "seed": 4, "temperature": 2.5, "top_p": 0.9},
    {"mode": "aligned", "seed": 5},
    {"mode": "beam", "beam_width": 2, "n_best": 2},
    {"mode": "exact", "n_best": 3, "leaf_end": "any"},
    {"probabilities": True, "leaf_end": "follow"},
    {"think": Think("\n", max_tokens=4)},
    {"mode": "sampled", "seed": 6, "think": Think("e", max_tokens=9, temperature=1.0, top_p=0.95)},
    {"probabilities": True, "think": Think("\nA:", max_tokens=0)},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_decision_is_the_one_that_choose_makes_alone(precise: Any, way: dict[str, Any]) -> None:
    asked = prompts(12)
    for prompt, decision in zip(asked, choose_many(precise, asked, ACTIONS, **way), strict=True):
        check_same(decision, choose(precise, prompt, ACTIONS, **way))


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
@example(150)  # a marker stands in a token whose beginning takes several
def test_prompts_of_all_lengths_with_sets_of_their_own_are_decided_as_alone(precise: Any, seed: int) -> None:
    rng = random.Random(seed)
    beginnings = ["", "One beginning. " * rng.randint(1, 5), "Another one: " * rng.randint(1, 9)]
    asked = [rng.choice(beginnings) + "x" * rng.randint(0, 9) + f" {rng.random()}" for _ in range(rng.randint(1, 30))]
    sets = [rng.sample(ACTIONS, rng.randint(1, len(ACTIONS))) for _ in asked]
    way = rng.choice(WAYS)
    n_parallel = rng.choice([None, 2, 3, 8])
    decisions = list(choose_many(precise, asked, sets=sets, n_parallel=n_parallel, **way))
    for prompt, choices, decision in zip(asked, sets, decisions, strict=True):
        check_same(decision, choose(precise, prompt, choices, **way))


def test_tokens_and_messages_are_prompts_too(precise: Any) -> None:
    asked: list[Any] = [precise.tokenize(b"Action:"), [{"role": "user", "content": "Read it."}], "Action:"]
    for prompt, decision in zip(asked, choose_many(precise, asked, ACTIONS), strict=True):
        check_same(decision, choose(precise, prompt, ACTIONS))


def test_a_trie_and_values_of_all_kinds_are_choices(precise: Any) -> None:
    trie = TokenTrie.from_choices(precise, ACTIONS)
    assert [d.value for d in choose_many(precise, prompts(3), trie)] == [
        choose(precise, prompt, trie).value for prompt in prompts(3)
    ]
    assert all(d.value in (1, 2, 3) for d in choose_many(precise, prompts(3), {"one": 1, "two": 2, "three": 3}))
    assert all(d.value in range(20) for d in choose_many(precise, prompts(3), range(20)))
    assert len(list(choose_many(precise, prompts(3), (action for action in ACTIONS)))) == 3


def test_decisions_come_in_order_or_as_they_are_ready_with_their_places(precise: Any) -> None:
    asked = ["y" * 400 if i % 7 == 0 else prompt for i, prompt in enumerate(prompts(40))]
    expected = [choose(precise, prompt, ACTIONS).value for prompt in asked]
    assert [d.value for d in choose_many(precise, asked, ACTIONS)] == expected
    ready = list(choose_many(precise, asked, ACTIONS, as_ready=True))
    assert [place for place, _ in ready] != list(range(40))
    assert [d.value for _, d in sorted(ready, key=lambda pair: pair[0])] == expected


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's own figures")
def test_a_generator_of_thousands_is_read_as_there_is_room_and_memory_stays_flat(tiny: Any) -> None:
    n_read = 0

    def endless() -> Iterator[str]:
        nonlocal n_read
        while True:
            n_read += 1
            yield f"{n_read} is"

    decisions = choose_many(tiny, endless(), ["odd", "even", "prime"], mode="greedy")
    sizes = []
    for i, decision in zip(range(2000), decisions, strict=False):
        assert n_read - i <= WINDOW
        assert decision.stats.n_prompt == len(tiny.tokenize(f"{i + 1} is".encode()))
        if i % 500 == 499:
            sizes.append(resident())
    decisions.close()
    assert sizes[-1] - sizes[0] < 4 << 20


def test_a_prompt_that_cannot_be_answered_has_an_error_of_its_own(precise: Any) -> None:
    asked: list[Any] = ["Action:", "x y " * 2000, 7, None, b"bytes", [1 << 30], "a\0b", {"role": "user"}, "Action:"]
    results = list(choose_many(precise, asked, ACTIONS, on_error="return"))
    assert [isinstance(result, TokenTrieError) for result in results] == [False, *[True] * 7, False]
    assert isinstance(results[1], ContextError)
    for place, result in enumerate(results[1:8], 1):
        assert str(result).startswith(f"prompts[{place}]: ")
    check_same(results[8], choose(precise, "Action:", ACTIONS))


def test_an_error_is_raised_after_the_decisions_before_it(precise: Any) -> None:
    decisions = choose_many(precise, ["Action:", "Act:", "x y " * 2000, "Action:"], ACTIONS)
    assert [next(decisions).value, next(decisions).value]
    with pytest.raises(ContextError, match=r"^prompts\[2\]: "):
        next(decisions)
    assert list(decisions) == []


def test_an_error_of_the_prompts_comes_after_the_decisions_before_it(precise: Any) -> None:
    def broken() -> Iterator[str]:
        yield from prompts(3)
        raise OSError("the disk is gone")

    decisions = choose_many(precise, broken(), ACTIONS)
    assert len([next(decisions) for _ in range(3)]) == 3
    with pytest.raises(OSError, match="the disk is gone"):
        next(decisions)


def test_sets_that_do_not_fit_are_their_prompts_errors(precise: Any) -> None:
    sets: list[Any] = [ACTIONS, [], ["yes", 3], "text", ACTIONS]
    results = list(choose_many(precise, prompts(5), sets=sets, on_error="return"))
    assert [isinstance(result, ArgumentError) for result in results] == [False, True, True, True, False]


@pytest.mark.parametrize(("n_prompts", "n_sets"), [(2, 1), (1, 2), (0, 3)])
def test_as_many_sets_as_prompts_are_needed(precise: Any, n_prompts: int, n_sets: int) -> None:
    asked, sets = prompts(n_prompts), [ACTIONS] * n_sets
    with pytest.raises(ArgumentError, match=f"sets: {n_sets}, where there are {n_prompts} prompts"):
        choose_many(precise, asked, sets=sets)
    decisions = choose_many(precise, iter(asked), sets=iter(sets))
    n_paired = min(n_prompts, n_sets)
    assert len([next(decisions) for _ in range(n_paired)]) == n_paired
    with pytest.raises(ArgumentError, match=r"sets: .* where there are .* prompts"):
        next(decisions)


def test_options_are_checked_at_once(precise: Any) -> None:
    wrong: list[dict[str, Any]] = [
        {"mode": "best"},
        {"temperature": 0},
        {"on_error": "ignore"},
        {"as_ready": 1},
        {"progress": "yes"},
        {"n_parallel": 1},
        {"n_parallel": 2.5},
        {"sets": [ACTIONS]},
    ]
    for options in wrong:
        with pytest.raises(ArgumentError):
            choose_many(precise, prompts(1), ACTIONS, **options)
    with pytest.raises(ArgumentError, match="prompts must be a list, not a text"):
        choose_many(precise, "Action:", ACTIONS)
    with pytest.raises(ArgumentError, match="prompts must be a list, not int; for one prompt there is choose"):
        choose_many(precise, 7, ACTIONS)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError):
        choose_many(precise, prompts(1))
    with pytest.raises(ArgumentError, match="n_ctx"):
        choose_many(precise, prompts(1), ACTIONS, n_ctx=-1)
    with pytest.raises(ArgumentError, match="llm must be "):
        choose_many("model.gguf", prompts(1), ACTIONS)  # type: ignore[arg-type]


def test_of_no_prompts_there_are_no_decisions(precise: Any) -> None:
    assert list(choose_many(precise, [], ACTIONS)) == []
    assert score_many(precise, [], ACTIONS).shape == (0, len(ACTIONS))


def test_an_interrupt_or_a_close_in_the_middle_leaves_all_usable(precise: Any) -> None:
    def interrupted() -> Iterator[str]:
        yield from prompts(20)
        signal.raise_signal(signal.SIGINT)
        yield from prompts(20)

    # A process that a shell begins in the background ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(choose_many(precise, interrupted(), ACTIONS))
    finally:
        signal.signal(signal.SIGINT, before)
    decisions = choose_many(precise, prompts(50), ACTIONS)
    first = next(decisions)
    decisions.close()
    assert list(decisions) == []
    check_same(first, choose(precise, prompts(1)[0], ACTIONS))
    choose_many(precise, prompts(5), ACTIONS)  # never begun


def test_choose_and_others_like_it_may_be_called_meanwhile(precise: Any) -> None:
    expected = [choose(precise, prompt, ACTIONS).value for prompt in prompts(6)]
    one, other = (choose_many(precise, prompts(6), ACTIONS, n_parallel=4) for _ in range(2))
    for i in range(6):
        assert next(one).value == next(other).value == choose(precise, prompts(6)[i], ACTIONS).value == expected[i]


def test_threads_have_each_their_own(precise: Any) -> None:
    expected = [choose(precise, prompt, ACTIONS).value for prompt in prompts(30)]
    results: list[list[Any]] = []

    def work() -> None:
        results.append([d.value for d in choose_many(precise, prompts(30), ACTIONS, n_parallel=8)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_without_end_it_ends_when_the_llama_is_closed(model_paths: dict[str, Path]) -> None:
    llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    endless = (f"{i}" for i in range(10**9))
    decisions = choose_many(llm, endless, ACTIONS, as_ready=True, on_error="return")
    next(decisions)
    llm.close()
    with pytest.raises(CancelledError, match="the Llama was closed"):
        list(decisions)


def test_slow_prompts_hold_up_no_answer(precise: Any) -> None:
    read = []

    def slow() -> Iterator[str]:
        for prompt in prompts(40):
            time.sleep(0.02)
            read.append(prompt)
            yield prompt

    decisions = choose_many(precise, slow(), ACTIONS)
    next(decisions)
    assert len(read) < 40
    decisions.close()


def test_what_asks_while_it_is_asked_is_refused(precise: Any) -> None:
    def asking() -> Iterator[str]:
        yield "Action:"
        with pytest.raises(BusyError):
            next(decisions)
        yield "Action:"

    decisions = choose_many(precise, asking(), ACTIONS)
    assert len(list(decisions)) == 2


def test_an_error_of_a_set_comes_after_the_decisions_before(precise: Any) -> None:
    def broken() -> Iterator[str]:
        yield "yes"
        raise OSError("gone")

    decisions = choose_many(precise, prompts(4), sets=[ACTIONS, ACTIONS, broken(), ACTIONS], on_error="return")
    assert [next(decisions).value for _ in range(2)] == [choose(precise, p, ACTIONS).value for p in prompts(2)]
    with pytest.raises(OSError, match="gone"):
        next(decisions)


def test_more_best_answers_than_there_are_take_no_memory(precise: Any) -> None:
    (decision,) = choose_many(precise, prompts(1), ACTIONS, n_best=2**31 - 1)
    assert len(decision.candidates) == len(ACTIONS)


def test_scores_are_those_of_score(precise: Any) -> None:
    scores = score_many(precise, prompts(5), ACTIONS, leaf_end="longest")
    assert scores.shape == (5, len(ACTIONS))
    for prompt, row in zip(prompts(5), scores, strict=True):
        assert row == pytest.approx(score(precise, prompt, ACTIONS, leaf_end="longest"), abs=NEAR)
    with pytest.raises(ContextError, match=r"prompts\[1\]"):
        score_many(precise, ["Action:", "x y " * 2000], ACTIONS)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_models_with_states_answer_together_what_each_prompt_has_alone(recurrent: Any, way: dict[str, Any]) -> None:
    for prompt, decision in zip(prompts(3), choose_many(recurrent, prompts(3), ACTIONS, **way), strict=True):
        check_same(decision, choose(recurrent, prompt, ACTIONS, **way))


def test_models_with_states_score_together_what_each_prompt_has_alone(recurrent: Any) -> None:
    expected = [score(recurrent, prompt, ACTIONS) for prompt in prompts(3)]
    np.testing.assert_allclose(score_many(recurrent, prompts(3), ACTIONS), expected, atol=NEAR)


def test_tasks_get_the_same_decisions(precise: Any) -> None:
    async def run() -> list[Any]:
        return [decision async for decision in achoose_many(precise, prompts(8), ACTIONS)]

    for one, other in zip(asyncio.run(run()), choose_many(precise, prompts(8), ACTIONS), strict=True):
        check_same(one, other)


def test_a_task_that_is_cancelled_ends_it(precise: Any) -> None:
    seen = []

    async def run() -> None:
        async for decision in achoose_many(precise, (f"{i}" for i in range(10**6)), ACTIONS):
            seen.append(decision)

    async def main() -> None:
        task = asyncio.create_task(run())
        while len(seen) < 5:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert 5 <= len(seen) < 10**6
    assert choose(precise, "Action:", ACTIONS).value in ACTIONS
