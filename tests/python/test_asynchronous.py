from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import child_process
import numpy as np
import pytest
from token_trie import ArgumentError, asynchronous, choose, score
from token_trie.asynchronous import achoose, ascore

CHOICES = ["yes", "no", "Paris"]


def test_decisions_are_those_of_the_plain_calls(precise: Any) -> None:
    async def main() -> None:
        for options in ({}, {"mode": "greedy"}, {"probabilities": True}):
            decision = await achoose(precise, "Answer:", CHOICES, **options)
            assert decision.value == choose(precise, "Answer:", CHOICES, **options).value
        scores = await ascore(precise, "Answer:", CHOICES)
        assert np.abs(scores - score(precise, "Answer:", CHOICES)).max() < 1e-4
        with pytest.raises(ArgumentError, match="choices: none given"):
            await achoose(precise, "Answer:", [])

    asyncio.run(main())


def test_a_prompt_does_not_hold_up_the_event_loop(precise: Any) -> None:
    async def main() -> None:
        n_ticks = 0

        async def tick() -> None:
            nonlocal n_ticks
            while True:
                n_ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        assert (await achoose(precise, [300 + i % 50 for i in range(500)], CHOICES)).value in CHOICES
        assert n_ticks > 1
        ticking.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("call", ["achoose(wide, LONG, trie)", "ascore(wide, LONG, trie)"])
def test_a_call_that_timed_out_has_ended_and_the_model_is_usable(model_paths: dict[str, Path], call: str) -> None:
    code = """
from token_trie.asynchronous import achoose, ascore
from token_trie import asynchronous
llm = load()
wide = llama_cpp.Llama(llm.model_path, n_ctx=16384, n_threads=1, n_threads_batch=1, verbose=False)
trie = TokenTrie.from_sequences({"a": [300], "b": [301]})
expected = choose(wide, [300], trie).value
async def main():
    try:
        await asyncio.wait_for(CALL, 0.05)
    except asyncio.TimeoutError:
        pass
    else:
        sys.exit("it was not cut short")
asyncio.run(main())
assert choose(wide, [300], trie).value == expected
"""
    child_process.run(model_paths["tiny"], code.replace("CALL", call))


def test_a_cancelled_task_leaves_the_decisions_of_others_alone(precise: Any) -> None:
    reading, go_on = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def slowly() -> Iterator[str]:
        yield "yes"
        reading.set()
        go_on.wait(60)
        yield "no"

    def decide() -> None:
        try:
            for _ in range(20):
                choose(precise, "Answer:", CHOICES)
        except Exception as error:
            errors.append(error)

    async def main() -> None:
        task = asyncio.create_task(achoose(precise, "Answer:", slowly()))
        while not reading.is_set():
            await asyncio.sleep(0.001)
        deciding = threading.Thread(target=decide)
        deciding.start()
        task.cancel()
        while deciding.is_alive():
            await asyncio.sleep(0.001)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert errors == []


def test_a_task_cancelled_before_its_turn_in_a_full_executor_is_over_at_once(precise: Any, monkeypatch: Any) -> None:
    async def main() -> None:
        release = threading.Event()
        busy = asyncio.get_running_loop().run_in_executor(workers, release.wait)
        task = asyncio.create_task(achoose(precise, "Answer:", CHOICES))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not release.is_set()
        release.set()
        await busy

    workers = ThreadPoolExecutor(1)
    monkeypatch.setattr(asynchronous, "_workers", workers)
    asyncio.run(main())
    assert choose(precise, "Answer:", CHOICES).value in CHOICES
