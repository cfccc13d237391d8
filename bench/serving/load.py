"""So many clients, each asking again as soon as it has an answer."""

import asyncio
import time
from dataclasses import dataclass

import httpx
import numpy as np

from bench.serving.hosts import Asked, Host


@dataclass(frozen=True)
class Load:
    """What a server did under load."""

    n: int
    n_failed: int
    n_outside: int
    """Answers that were none of the options."""
    per_second: float
    p50_ms: float
    p99_ms: float


def press(host: Host, url: str, asked: Asked, n_clients: int, seconds: float) -> Load:
    """Let clients ask for some seconds, each about other states than its neighbours."""
    return asyncio.run(_press(host, url, asked, n_clients, seconds))


async def _press(host: Host, url: str, asked: Asked, n_clients: int, seconds: float) -> Load:
    took: list[float] = []
    n_failed = n_outside = 0
    options = set(asked.options)
    limits = httpx.Limits(max_connections=n_clients, max_keepalive_connections=n_clients)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        warm = host.body(asked, asked.states[-1])
        await client.post(warm[0], json=warm[1])
        begun = time.perf_counter()
        until = begun + seconds

        async def ask_on(first: int) -> None:
            nonlocal n_failed, n_outside
            for i in range(first, 1 << 30, n_clients):
                state = f"{asked.states[i % len(asked.states)]} ({i})"  # new to the server
                path, body = host.body(asked, state)
                started = time.perf_counter()
                reply = await client.post(path, json=body)
                took.append(time.perf_counter() - started)
                if reply.status_code != 200:
                    n_failed += 1
                elif host.read(reply.json()) not in options:
                    n_outside += 1
                if time.perf_counter() > until:
                    return

        await asyncio.gather(*(ask_on(i) for i in range(n_clients)))
        wall = time.perf_counter() - begun
    p50, p99 = (float(v) * 1e3 for v in np.percentile(took, [50, 99]))
    return Load(len(took), n_failed, n_outside, (len(took) - n_failed) / wall, p50, p99)
