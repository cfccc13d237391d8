"""Kills processes that are registering sets, again and again; run as a script: killed.py FOLDER TIMES.

After each kill, the folder has the set that was there before or a later one, whole. It prints how many of each there
were.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from token_trie.serve.sets import Sets

T = TypeVar("T")


class Engine:
    """What of one the registry uses."""

    llm: Any = None  # choices are read without a model

    async def on_worker(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)


def given(number: int) -> dict[str, Any]:
    return {"choices": [f"{number} {i}" for i in range(5000)]}


def number_of(folder: Path) -> int:
    sets = Sets(folder)
    sets.load(Engine.llm)
    found = json.loads(sets.get("kept").data)
    number = int(found["choices"][0].split()[0])
    assert found == given(number)
    return number


async def register(folder: Path, begin: int) -> None:
    sets, engine = Sets(folder), Engine()
    sets.load(engine.llm)
    for number in range(begin, begin + 1_000_000):
        await sets.put(engine, "kept", given(number))  # type: ignore[arg-type]


def main(folder: Path, times: int) -> None:
    rng = random.Random(0)
    asyncio.run(Sets(folder).put(Engine(), "kept", given(0)))  # type: ignore[arg-type]
    counts: collections.Counter[str] = collections.Counter()
    number = 0
    for _ in range(times):
        child = os.fork()
        if child == 0:
            asyncio.run(register(folder, number + 1))
        time.sleep(0.005 + rng.random() * 0.1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        counts["unfinished"] += bool(list(folder.glob("*.tmp")))
        before, number = number, number_of(folder)
        assert number >= before
        counts["old" if number == before else "new"] += 1
        assert not list(folder.glob("*.tmp")), "taken away at the start"
    print(dict(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
