"""Bodies that nobody means well with: whatever comes, the answer is a 4xx at worst, and in time."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from socket import socket

import hostile
import httpx
import pytest
from serving import Serving

N_CASES = int(os.environ.get("HOSTILE_REQUESTS", "0"))
CASES = 16
MAX_BYTES = 1 << 20
LIMIT_S = float(os.environ.get("HOSTILE_LIMIT", "2"))
SEED = int(os.environ.get("HOSTILE_SEED", "0"))


@contextmanager
def serving_x(model: Path, folder: Path) -> Iterator[Serving]:
    """Serve a model and the set x, which the bodies name."""
    (folder / "x.json").write_text(json.dumps([f"choice {i}" for i in range(5000)]))
    with Serving(model, "--time-limit", f"{LIMIT_S:g}", "--sets", str(folder)) as serving:
        yield serving


def test_bodies_of_every_kind_are_answered_or_refused(model_paths: dict[str, Path], tmp_path: Path) -> None:
    bodies = (hostile.bytes_of(random.Random(f"{SEED} {i}")) for i in itertools.count())
    small = ((path, data) for path, data in bodies if len(data) < MAX_BYTES)
    with serving_x(model_paths["tiny"], tmp_path) as serving, httpx.Client(base_url=serving.url, timeout=60) as client:
        for path, data in itertools.islice(small, CASES):
            answer = client.post(path, content=data, headers={"content-type": "application/json"})
            assert answer.status_code < 500, (path, data[:1000], answer.text)
        assert client.get("/health").status_code == 200
    assert "Traceback" not in serving.told, serving.told[-3000:]


class Watch(threading.Thread):
    """Asks the server for its health, again and again, and reads how much memory it has."""

    def __init__(self, serving: Serving) -> None:
        super().__init__()
        self._serving = serving
        self._is_over = threading.Event()
        self.idle = self.memory()
        self.most = 0
        self.slow: list[float] = []
        self.n = 0

    def memory(self) -> int:
        """Bytes that the process has resident; 0 where that is not known."""
        try:
            pages = Path(f"/proc/{self._serving.pid}/statm").read_text().split()[1]
        except OSError:
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def run(self) -> None:
        with httpx.Client(base_url=self._serving.url, timeout=60) as client:
            while not self._is_over.wait(0.02):
                began = time.monotonic()
                assert client.get("/health").status_code == 200
                took = time.monotonic() - began
                self.n += 1
                self.slow = sorted([*self.slow, took])[-100:]
                self.most = max(self.most, self.memory())

    def end(self) -> None:
        self._is_over.set()
        self.join()


@pytest.mark.skipif(not N_CASES, reason="HOSTILE_REQUESTS: how many")
def test_whatever_is_sent_the_server_stays_well(model_paths: dict[str, Path], tmp_path: Path) -> None:
    left: deque[tuple[float, socket]] = deque()
    with serving_x(model_paths["tiny"], tmp_path) as serving:
        assert httpx.post(f"{serving.url}/v1/completions", json={"prompt": "a"}).status_code == 200
        watch = Watch(serving)
        watch.start()

        def attack(i: int) -> None:
            while left and left[0][0] < time.monotonic() - LIMIT_S - 2:
                left.popleft()[1].close()
            rng = random.Random(f"{SEED} {i}")
            try:
                kept = hostile.send(rng, serving.connected, LIMIT_S + 10)
            except BaseException as error:
                raise AssertionError(f"case {i}") from error
            if kept is not None:
                left.append((time.monotonic(), kept))

        with ThreadPoolExecutor(16) as attackers:
            list(attackers.map(attack, range(N_CASES)))
        ended = time.monotonic()
        while "token_trie_requests_under_way 0.0" not in httpx.get(f"{serving.url}/metrics", timeout=60).text:
            assert time.monotonic() - ended < LIMIT_S + 1, "a slot is held"
            time.sleep(0.05)
        watch.end()
        for i in range(N_CASES, N_CASES + 50):
            if (kept := hostile.send(random.Random(f"{SEED} {i}"), serving.connected, LIMIT_S + 10)) is not None:
                left.append((time.monotonic(), kept))
        ended = time.monotonic()
    took = time.monotonic() - ended
    for _, connection in left:
        connection.close()
    grown = watch.most - watch.idle >> 20
    told = f"health {watch.slow[-1]:.3f} s at most of {watch.n}, {grown} MB more, ended in {took:.1f} s"
    print(f"{N_CASES} requests: {told}")
    assert "Traceback" not in serving.told, serving.told[-3000:]
    assert watch.slow[-1] < 0.5, told
    assert grown <= 500, told
    assert took < LIMIT_S + 2, told
