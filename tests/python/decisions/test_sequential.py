"""`choose_many` where a context holds one sequence alone: it is ended, closed and cancelled as a batch is."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from token_trie import CancelledError, Think, choose, choose_many, score_many
from token_trie.asynchronous import achoose_many
from token_trie.native.lifetime import attachment

ACTIONS = ["yes", "no", "Paris", "Pizza"]


@pytest.fixture(params=[1, 512], ids=["one sequence", "many"])
def own(request: pytest.FixtureRequest, model_paths: dict[str, Path]) -> Iterator[Any]:
    path = str(model_paths["tiny"])
    llm = llama_cpp.Llama(path, n_ctx=512, n_batch=request.param, n_threads=1, n_threads_batch=1, verbose=False)
    yield llm
    llm.close()


def many() -> Iterator[str]:
    """Yield prompts that would take minutes."""
    for n in range(100_000):
        yield f"Question {n}:"


def in_thread(call: Any) -> tuple[threading.Thread, list[Any]]:
    log: list[Any] = []

    def run() -> None:
        try:
            log.append(call())
        except Exception as error:
            log.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, log


@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_a_close_by_another_thread_ends_it(own: Any, on_error: Any) -> None:
    decisions: Any = choose_many(own, many(), ACTIONS, on_error=on_error)
    first = next(decisions)
    thread, log = in_thread(lambda: list(decisions))
    time.sleep(0.05)
    decisions.close()
    thread.join(20)
    assert not thread.is_alive()
    assert isinstance(log[0], CancelledError)
    assert list(decisions) == []
    assert choose(own, "Question 0:", ACTIONS).value == first.value, "the Llama goes on"


def test_a_close_between_two_decisions_of_the_llama_ends_it_too(own: Any) -> None:
    decisions = choose_many(own, many(), ACTIONS, on_error="return")
    next(decisions)
    own.close()
    with pytest.raises(CancelledError, match="the Llama was closed"):
        list(decisions)


def test_a_long_decision_ends_within_a_pass(own: Any) -> None:
    think = Think(max_tokens=400, marker=[300, 301, 302, 303, 304])
    decisions: Any = choose_many(own, many(), ACTIONS, think=think)
    thread, log = in_thread(lambda: list(decisions))
    time.sleep(0.1)
    start = time.monotonic()
    decisions.close()
    thread.join(20)
    assert time.monotonic() - start < 1
    assert isinstance(log[0], CancelledError)


def test_an_iterator_that_is_dropped_leaves_nothing(own: Any) -> None:
    gc.disable()
    try:
        decisions = choose_many(own, many(), ACTIONS)
        next(decisions)
        dropped = weakref.ref(decisions)
        del decisions
        assert dropped() is None
    finally:
        gc.enable()
    assert not [stream for stream in attachment(own).streams if type(stream).__name__ in ("Batch", "Sequential")]


def test_a_cancelled_task_waits_for_no_prompt_to_come(own: Any) -> None:
    came, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[str]:
        yield "Question:"
        came.set()
        go_on.wait(60)
        yield "Question:"

    async def main() -> float:
        async def run() -> None:
            async for _ in achoose_many(own, slow(), ACTIONS):
                pass

        task = asyncio.create_task(run())
        while not came.is_set():
            await asyncio.sleep(0.001)
        start = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - start

    try:
        assert asyncio.run(main()) < 5
        assert choose(own, "Question:", ACTIONS).value in ACTIONS
    finally:
        go_on.set()


def test_scores_end_with_the_llama(own: Any) -> None:
    def closing() -> Iterator[str]:
        yield from ["One:"] * 5
        threading.Thread(target=own.close).start()
        yield from many()

    with pytest.raises(CancelledError):
        score_many(own, closing(), ACTIONS)
