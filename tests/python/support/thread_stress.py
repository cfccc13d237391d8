"""Random calls on one Llama from several threads and tasks; run as a script: thread_stress.py MODEL SEED SECONDS.

Each call ends with the right answer or an error of ours. It prints how many of each there were, and a hang shows where
the threads are. What it draws is seeded; how the threads come to lie is not.
"""

from __future__ import annotations

import asyncio
import collections
import faulthandler
import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import llama_cpp
from token_trie import (
    ArgumentError,
    CancelledError,
    StreamHandle,
    TokenTrie,
    TokenTrieError,
    choose,
    choose_many,
    constrain,
    explain,
    score,
)

NAMES = ["yes", "no", "Paris", "Pizza"]
LONG = [5 + i % 200 for i in range(4000)]


class Stress:
    """One Llama, a handle of it that all threads share, and what became of the calls."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.renewing = threading.Lock()
        self.llm = self.handle = None
        self.renew(random.Random(0))

    def expect(self, holds: bool, what: object) -> None:
        if not holds:
            self.wrong.append(repr(what))

    # Each of these is one call, drawn by its name.

    def renew(self, rng: random.Random) -> None:
        with self.renewing:
            if self.llm is not None:
                self.llm.close()
            self.llm = llama_cpp.Llama(self.path, n_ctx=8192, n_threads=1, n_threads_batch=1, verbose=False)
            self.trie = TokenTrie.from_choices(self.llm, NAMES, prompt="Answer:")
            self.handle = StreamHandle(self.llm, n_ctx=8192)
            self.handle.prefill("Answer:")

    def choose(self, rng: random.Random) -> None:
        prompt = rng.choice(["Answer:", "Question? Answer:", LONG])
        given = rng.choice([NAMES, self.trie]) if isinstance(prompt, str) else self.trie
        mode = rng.choice(["greedy", "sampled", "exact", "aligned", "beam"])
        self.expect(choose(self.llm, prompt, given, mode=mode).value in NAMES, (prompt, mode))

    def score(self, rng: random.Random) -> None:
        scores = rng.choice(
            [
                lambda: score(self.llm, "Answer:", self.trie),
                lambda: self.handle.score(self.trie, prompt="Answer:"),
            ]
        )()
        self.expect(scores.shape == (len(NAMES),) and bool((scores < 0).all()), scores)

    def explain(self, rng: random.Random) -> None:
        self.expect(explain(self.llm, "Answer:", NAMES).exact.value in NAMES, "explain")

    def build(self, rng: random.Random) -> None:
        texts = [f"{name} {i}" for name in NAMES for i in range(200)]
        made = TokenTrie.from_choices(self.llm, texts, tokenization=rng.choice(["canonical", "any"]))
        self.expect(len(made) == len(texts), made)

    def constrain(self, rng: random.Random) -> None:
        llm = self.llm
        with constrain(llm, self.trie, "sampled") as constraint:
            for _ in range(3):
                if rng.random() < 0.5:
                    text = llm.create_completion("Answer:", max_tokens=8)["choices"][0]["text"]
                else:
                    parts = llm.create_completion("Answer:", max_tokens=8, stream=True)
                    text = "".join(part["choices"][0]["text"] for part in parts)
                self.expect(text.strip() in NAMES and constraint.complete, text)

    def generate(self, rng: random.Random) -> None:
        handle = self.handle
        n_cancels = handle._stream.n_cancels
        handle.prefill("Answer:")
        handle.set_token_trie(self.trie)
        text = "".join(step.text for step in handle.generate()).strip()
        # One that is cancelled ends, and says so in the state, which others change.
        self.expect(text in NAMES or handle._stream.n_cancels != n_cancels, ("generate", text))

    def generate_in_tasks(self, rng: random.Random) -> None:
        async def read(handle: StreamHandle) -> None:
            async for step in handle.generate(max_tokens=5):
                self.expect(isinstance(step.text, str), step)

        async def main() -> None:
            tasks = [asyncio.create_task(read(self.handle)) for _ in range(2)]
            await asyncio.sleep(rng.random() / 100)
            for task in tasks * 2:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, TokenTrieError):
                    self.counts[type(result).__name__] += 1
                self.expect(isinstance(result, (asyncio.CancelledError, TokenTrieError, type(None))), result)

        asyncio.run(main())

    def prefill(self, rng: random.Random) -> None:
        self.handle.prefill(LONG[rng.randrange(len(LONG) - 1) :])

    def cancel(self, rng: random.Random) -> None:
        self.handle.cancel()

    def own_handle(self, rng: random.Random) -> None:
        with StreamHandle(self.llm, n_ctx=256) as handle:
            handle.prefill("Answer:")
            handle.set_token_trie(self.trie)
            self.expect("".join(step.text for step in handle.generate()).strip() in NAMES, "own handle")

    def fork(self, rng: random.Random) -> None:
        fork = self.handle.fork()
        if fork.tokens:
            fork.append(" on")
        if rng.random() < 0.5:
            fork.close()

    def many(self, rng: random.Random) -> None:
        n = rng.choice([3, 10_000])
        decisions: Any = choose_many(self.llm, (f"{i} Answer:" for i in range(n)), NAMES, on_error="return")
        if n == 3:
            self.expect(all(decision.value in NAMES for decision in decisions), "many")
        elif rng.random() < 0.5:
            next(decisions)  # and is dropped
        else:
            closing = threading.Timer(rng.random() / 20, decisions.close)
            closing.start()
            try:
                results = [getattr(decision, "value", decision) for decision in decisions]
                self.expect(closing.finished.is_set() and set(results) <= set(NAMES), ("many", results[-3:]))
            except CancelledError:
                pass  # by the close, or by the Llama's
            closing.join()

    def close_handle(self, rng: random.Random) -> None:
        self.handle.close()
        with self.renewing:
            self.handle = StreamHandle(self.llm, n_ctx=8192)

    def collect(self, rng: random.Random) -> None:
        gc.collect()

    def step(self, rng: random.Random) -> None:
        calls = [self.choose, self.score, self.explain, self.build, self.constrain, self.generate, self.prefill]
        calls += [self.generate_in_tasks, self.own_handle, self.fork, self.many]
        weights = [8] * len(calls)
        calls += [self.cancel, self.collect, self.close_handle]
        weights += [8, 2, 1]
        if rng.random() < 0.02:
            calls, weights = [self.renew], [1]
        self.run(rng.choices(calls, weights)[0], rng)

    def run(self, call: Callable[[random.Random], None], rng: random.Random) -> None:
        try:
            call(rng)
            self.counts["right"] += 1
        except ArgumentError as error:
            self.counts["closed"] += 1
            self.expect("closed" in str(error), error)
            time.sleep(0.001)
        except TokenTrieError as error:
            self.counts[type(error).__name__] += 1


def main(path: str, seed: int, seconds: float) -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(seconds + 120, exit=True)
    stress, until = Stress(path), time.monotonic() + seconds
    failures: list[Any] = []
    ended = threading.Event()

    def work(n: int) -> None:
        rng = random.Random(f"{seed} {n}")
        try:
            while time.monotonic() < until:
                stress.step(rng)
        except BaseException as error:
            failures.append(error)
            raise

    def interrupt() -> None:
        rng = random.Random(f"{seed} interrupts")
        while not ended.wait(rng.random() / 2):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    # The one thread that interrupts reach, and they are to come into calls of ours.
    calling = False

    def on_interrupt(*_: object) -> None:
        nonlocal calling
        if calling:
            calling = False
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_interrupt)
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    rng = random.Random(f"{seed} main")
    while time.monotonic() < until:
        try:
            calling = True
            calls = [stress.prefill, stress.choose, stress.score, stress.generate, stress.own_handle, stress.fork]
            stress.run(rng.choice(calls), rng)
            calling = False
        except KeyboardInterrupt:
            stress.counts["interrupted"] += 1
    ended.set()
    interrupter.join()
    for thread in threads:
        thread.join()
    stress.llm.close()
    print(dict(stress.counts))
    if failures or stress.wrong:
        sys.exit(f"failures: {failures}, wrong: {stress.wrong[:5]}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
