"""Threads and tasks that choose with one Llama at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import child_process
import llama_cpp
import pytest
from token_trie import BusyError, Contextual, Decision, Think, TokenTrieError, choose, choose_list, fill, score
from token_trie.asynchronous import achoose
from token_trie.llama.batch import SharedBatch, chooser
from token_trie.native.lifetime import attachment

ACTIONS = ["READ", "READ_FILE", "SEND_EMAIL", "SEND_MESSAGE", "SET_ALARM", "SET_TIMER", "NONE"]
NEAR = 1e-4
WAYS: list[dict[str, Any]] = [
    {},
    {"mode": "greedy"},
    {"mode": "sampled", "seed": 3},
    {"mode": "aligned", "seed": 5},
    {"mode": "beam", "beam_width": 2, "n_best": 2},
    {"probabilities": True, "leaf_end": "follow"},
    {"calibration": Contextual("Request.\nAction:")},
    {"think": Think("\n", max_tokens=4)},
]


def asked(n: int) -> list[tuple[str, dict[str, Any]]]:
    return [(f"Choose an action.\nRequest {i}.\nAction:", WAYS[i % len(WAYS)]) for i in range(n)]


def check_same(decision: Decision[Any], alone: Decision[Any]) -> None:
    assert (decision.value, decision.tokens, decision.thought) == (alone.value, alone.tokens, alone.thought)
    assert decision.logprob == pytest.approx(alone.logprob, abs=NEAR)
    assert decision.branch_logprob == pytest.approx(alone.branch_logprob, abs=NEAR)


def at_once(n: int, call: Callable[[int], Any]) -> list[Any]:
    barrier = threading.Barrier(n)

    def work(i: int) -> Any:
        barrier.wait()
        return call(i)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(work, range(n)))


def test_threads_get_what_each_would_get_alone(precise: Any) -> None:
    questions = asked(16 * len(WAYS))
    alone = [choose(precise, prompt, ACTIONS, **way) for prompt, way in questions]

    def decide(thread: int) -> list[Decision[Any]]:
        return [choose(precise, prompt, ACTIONS, **way) for prompt, way in questions[thread::16]]

    for thread, decisions in enumerate(at_once(16, decide)):
        for decision, expected in zip(decisions, alone[thread::16], strict=True):
            check_same(decision, expected)
    assert attachment(precise).made(SharedBatch) is not None


def test_scores_lists_and_records_of_threads_are_those_of_each_alone(precise: Any) -> None:
    calls: list[Callable[[str], Any]] = [
        lambda prompt: score(precise, prompt, ACTIONS, leaf_end="follow"),
        lambda prompt: score(precise, prompt, ACTIONS, normalize="tokens"),
        lambda prompt: score(precise, prompt, ACTIONS, normalize="prior"),
        lambda prompt: choose_list(precise, prompt, ACTIONS, max_items=2).names,
        lambda prompt: fill(precise, prompt, {"enum": ["yes", "no"]}).value,
    ]
    prompts = [f"Choose an action.\nRequest {i}.\nAction:" for i in range(8)]
    alone = [[call(prompt) for call in calls] for prompt in prompts]
    for told, expected in zip(at_once(8, lambda i: [call(prompts[i]) for call in calls]), alone, strict=True):
        for scores, own in zip(told[:3], expected[:3], strict=True):
            assert scores == pytest.approx(own, abs=NEAR)
        assert told[3:] == expected[3:]


def test_tasks_get_what_each_would_get_alone(precise: Any) -> None:
    questions = asked(64)
    alone = [choose(precise, prompt, ACTIONS, **way) for prompt, way in questions]

    async def main() -> list[Decision[Any]]:
        return await asyncio.gather(*(achoose(precise, prompt, ACTIONS, **way) for prompt, way in questions))

    for decision, expected in zip(asyncio.run(main()), alone, strict=True):
        check_same(decision, expected)


def test_scores_and_decisions_take_turns(precise: Any) -> None:
    expected = score(precise, "Action:", ACTIONS)
    for scores in at_once(8, lambda i: score(precise, "Action:", ACTIONS) if i % 2 else choose(precise, "A:", ACTIONS)):
        assert isinstance(scores, Decision) or scores == pytest.approx(expected, abs=NEAR)


def test_who_comes_alone_has_no_batch(model_paths: dict[str, Path]) -> None:
    llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=64, verbose=False)
    for _ in range(3):
        choose(llm, "A:", ["yes", "no"])
    assert attachment(llm).made(SharedBatch) is None


def test_where_there_is_no_batch_one_waits_for_the_other(model_paths: dict[str, Path]) -> None:
    llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=64, n_batch=1, verbose=False)
    expected = choose(llm, "A:", ["yes", "no"])
    for decision in at_once(6, lambda _: choose(llm, "A:", ["yes", "no"])):
        check_same(decision, expected)
    assert attachment(llm).made(SharedBatch) is None


def test_of_a_model_with_states_too(recurrent: Any) -> None:
    def decide(_: int) -> list[Decision[Any]]:
        return [choose(recurrent, "A:", ACTIONS, **way) for _ in range(4) for way in WAYS]

    alone = decide(0)
    for decisions in at_once(8, decide):
        for decision, own in zip(decisions, alone, strict=True):
            check_same(decision, own)
    assert attachment(recurrent).made(SharedBatch) is not None


def test_an_error_is_its_own_threads(precise: Any) -> None:
    def decide(i: int) -> object:
        try:
            return choose(precise, "word " * 5000 if i % 3 == 0 else f"{i}:", ACTIONS)
        except TokenTrieError as error:
            return error

    for i, result in enumerate(at_once(12, decide)):
        assert isinstance(result, TokenTrieError if i % 3 == 0 else Decision)


def test_a_thread_that_asks_from_within_its_own_decision_is_refused(precise: Any) -> None:
    choose(precise, "A:", ["yes", "no"])
    with chooser(precise), pytest.raises(BusyError, match="already"):
        choose(precise, "A:", ["yes", "no"])


BUSY = """
import concurrent.futures
from token_trie import CancelledError, ArgumentError
from token_trie.asynchronous import achoose
llm = llama_cpp.Llama({path!r}, n_ctx=16384, n_threads=1, n_threads_batch=1, verbose=False)
trie = TokenTrie.from_sequences({{"a": [300], "b": [301]}})
expected = choose(llm, [300], trie).value
def long(i):
    return lambda: choose(llm, [300 + i] + LONG, trie)
"""


def test_a_task_that_is_cancelled_ends_and_the_others_go_on(model_paths: dict[str, Path]) -> None:
    code = (
        BUSY.format(path=str(model_paths["tiny"]))
        + """
async def main():
    prompts = [[300 + i] + (LONG if i % 3 == 0 else LONG[:500]) for i in range(6)]
    tasks = [asyncio.create_task(achoose(llm, prompt, trie)) for prompt in prompts]
    await asyncio.sleep(0.2)
    tasks[0].cancel()
    tasks[3].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    kinds = [type(result).__name__ for result in results]
    assert kinds == ["CancelledError", "Decision", "Decision", "CancelledError", "Decision", "Decision"], kinds
asyncio.run(main())
assert choose(llm, [300], trie).value == expected
"""
    )
    child_process.run(model_paths["tiny"], code)


def test_an_interrupt_ends_the_main_threads_question_alone(model_paths: dict[str, Path]) -> None:
    code = (
        BUSY.format(path=str(model_paths["tiny"]))
        + """
import os
log = []
threads = start(*(ends(lambda i=i: choose(llm, [300 + i] + LONG[:4000], trie), log) for i in range(3)))
time.sleep(0.2)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    long(9)()
except KeyboardInterrupt:
    pass
else:
    sys.exit("it was not interrupted")
for thread in threads:
    thread.join()
assert len(log) == 3 and not any(isinstance(each, TokenTrieError) for each in log), log
assert choose(llm, [300], trie).value == expected
"""
    )
    child_process.run(model_paths["tiny"], code)
