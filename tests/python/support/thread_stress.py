"""Random calls on one Llama from several threads; run as a script: thread_stress.py MODEL SEED SECONDS.

Each call ends with the right answer or an error of ours. It prints how many of each there were, and a hang shows where
the threads are. What it draws is seeded; how the threads come to lie is not.
"""

from __future__ import annotations

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
    explain,
    score,
)

NAMES = ["yes", "no", "Paris", "Pizza"]
LONG = [5 + i % 200 for i in range(4000)]


class Stress:
    """One Llama, a handle of it that all threads share, and what became of the calls."""

    def __init__(self, path: str) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.reopening = threading.Lock()
        self.llm = llama_cpp.Llama(path, n_ctx=8192, n_threads=1, n_threads_batch=1, verbose=False)
        self.trie = TokenTrie.from_choices(self.llm, NAMES, prompt="Answer:")
        self.handle = StreamHandle(self.llm, n_ctx=8192)
        self.handle.prefill("Answer:")

    def expect(self, holds: bool, what: object) -> None:
        if not holds:
            self.wrong.append(repr(what))

    # Each of these is one call, drawn by its name.

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
        made = TokenTrie.from_choices(self.llm, texts)
        self.expect(len(made) == len(texts), made)

    def generate(self, rng: random.Random) -> None:
        handle = self.handle
        n_cancels = handle._stream.n_cancels
        handle.prefill("Answer:")
        handle.set_token_trie(self.trie)
        text = "".join(step.text for step in handle.generate()).strip()
        # One that is cancelled ends, and says so in the state, which others change.
        self.expect(text in NAMES or handle._stream.n_cancels != n_cancels, ("generate", text))

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
                pass
            closing.join()

    def close_handle(self, rng: random.Random) -> None:
        self.handle.close()
        with self.reopening:
            self.handle = StreamHandle(self.llm, n_ctx=8192)

    def collect(self, rng: random.Random) -> None:
        gc.collect()

    def step(self, rng: random.Random) -> None:
        calls = [self.choose, self.score, self.explain, self.build, self.generate, self.prefill]
        calls += [self.own_handle, self.fork, self.many]
        weights = [8] * len(calls)
        calls += [self.cancel, self.collect, self.close_handle]
        weights += [8, 2, 1]
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
