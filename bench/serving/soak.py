"""`python -m bench.serving.soak`: thousands of requests of all kinds, some broken, some whose client leaves.

What is right is answered as `decide` answers in one process; what is broken gets a 4xx; nothing gets a 5xx; the
server's memory stays as it is after the first quarter, and in the end nothing is under way.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import llama_cpp
from rich.console import Console
from token_trie import Choice, Predicate, Score, decide

from bench.table import progress_bar

_CLIENTS = 64
_TOLERANCE = 0.05  # of a probability, where others are in the same pass
_GROWTH = 1.15  # of memory, from the first quarter to the end
_WORDS = ["parcel", "order", "late", "refund", "angry", "happy", "login", "price", "travel", "music", "cat", "tea"]


class Case:
    """A request, and what is right of its answer."""

    def __init__(self, rng: random.Random, number: int) -> None:
        words = rng.choices(_WORDS, k=rng.randint(1, 40))
        self.state = f"{number % 97}: " + " ".join(words)
        self.options = rng.sample(_WORDS, rng.randint(2, 8))
        self.is_openai = rng.random() < 0.4
        self.fate = rng.choices(["right", "broken", "gone"], [8, 1, 1])[0]
        self.stays_s = rng.random() * 0.03
        self.body = self._openai() if self.is_openai else self.systemone()
        if self.fate == "broken":
            self._break(rng)

    @property
    def path(self) -> str:
        """Where it goes."""
        return "/v1/decisions" if self.is_openai else "/v1/systemone"

    def systemone(self) -> dict[str, Any]:
        """Return a request in that format."""
        questions = {
            "c": {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(self.options)},
            "p": {"type": "noul", "instructions": "Is it so?"},
            "s": {"type": "score", "instructions": "How much?", "criteria": ["low", "middle", "high"]},
        }
        return {"model": "any", "state": self.state, "questions": questions}

    def _openai(self) -> dict[str, Any]:
        questions = [
            {"type": "choice", "instructions": "Which?", "choices": [{"value": option} for option in self.options]},
            {"type": "predicate", "instructions": "Is it so?"},
            {"type": "score", "instructions": "How much?", "levels": [{"label": x} for x in ("low", "middle", "high")]},
        ]
        return {"model": "any", "input": self.state, "questions": questions}

    def _break(self, rng: random.Random) -> None:
        key = "input" if self.is_openai else "state"
        broken: list[Any] = [
            {**self.body, "questions": []},
            {**self.body, key: None},
            {**self.body, key: "word " * 50_000},
            {k: v for k, v in self.body.items() if k != "questions"},
            {**self.body, "questions": {"c": {"type": "none"}}},
            [self.body],
            "text",
        ]
        self.body = rng.choice(broken)

    def read(self, reply: Any) -> list[float]:
        """Return the numbers of an answer: of each option, of True, the score."""
        answers = reply["answers"]
        if self.is_openai:
            return [
                *(p["probability"] for p in answers[0]["probabilities"]),
                answers[1]["probability"],
                answers[2]["score"],
            ]
        return [*answers["c"]["probabilities"].values(), answers["p"]["noul"], answers["s"]["score"]]

    def expected(self, llm: llama_cpp.Llama) -> list[float]:
        """Return the numbers by `decide`."""
        questions: dict[str, Any] = {
            "c": Choice("Which?", self.options),
            "p": Predicate("Is it so?"),
            "s": Score("How much?", ["low", "middle", "high"]),
        }
        answers = decide(llm, self.state, questions)
        return [*answers["c"].probabilities.values(), answers["p"].probability, answers["s"].score]


def main() -> None:
    """Run; exit status 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file; a small one will do")
    parser.add_argument("--requests", type=int, default=60_000, help="until the caches are full")
    parser.add_argument("--checked", type=int, default=500, help="answers that are compared with those of decide")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    command = [str(Path(sys.executable).with_name("token-trie")), "serve", "-m", str(options.model), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            wrong = asyncio.run(_soak(server, options))
        finally:
            server.terminate()
            server.communicate(timeout=60)
    sys.exit(1 if wrong else 0)


async def _soak(server: subprocess.Popen[str], options: argparse.Namespace) -> list[str]:
    assert server.stderr is not None
    url = ""
    for line in server.stderr:
        url = found[0] if (found := re.search(r"http://\S+", line)) else url
        if "is ready" in line:
            break
    rng = random.Random(options.seed)
    cases = (Case(rng, i) for i in range(options.requests))
    statuses: dict[tuple[str, int], int] = {}
    answered: list[tuple[Case, Any]] = []
    memory: list[int] = []
    console = Console()
    with progress_bar(console) as progress:
        task = progress.add_task("requests", total=options.requests)
        async with httpx.AsyncClient(
            base_url=url, timeout=120, limits=httpx.Limits(max_connections=_CLIENTS)
        ) as client:

            async def work() -> None:
                for case in cases:
                    status = await _ask(client, case, answered)
                    statuses[case.fate, status] = statuses.get((case.fate, status), 0) + 1
                    progress.advance(task)
                    if sum(statuses.values()) % max(options.requests // 8, 1) == 0:
                        memory.append(_resident(server.pid))

            await asyncio.gather(*(work() for _ in range(_CLIENTS)))
            await asyncio.sleep(1)
            metrics = (await client.get("/metrics")).text
            last = await asyncio.gather(
                *(client.post("/v1/systemone", json=Case(rng, 0).systemone()) for _ in range(64))
            )
    wrong = [f"{fate}: {n} with status {status}" for (fate, status), n in statuses.items() if not _fits(fate, status)]
    if "token_trie_requests_under_way 0.0" not in metrics:
        wrong.append("something is under way still")
    if any(reply.status_code != 200 for reply in last):
        wrong.append("as many at once are not answered any more")
    quarter = memory[max(len(memory) // 4 - 1, 0)]
    if memory[-1] > _GROWTH * quarter:
        wrong.append(f"memory has grown from {quarter:,} to {memory[-1]:,} KiB")
    llm = llama_cpp.Llama(str(options.model), n_ctx=2048, verbose=False)
    checked = random.Random(1).sample(answered, min(options.checked, len(answered)))
    for case, reply in checked:
        pairs = zip(case.read(reply), case.expected(llm), strict=True)
        if any(abs(a - b) > _TOLERANCE for a, b in itertools.islice(pairs, 100)):
            wrong.append(f"another answer to {json.dumps(case.body)}")
    console.print(f"{sum(statuses.values()):,} requests: {dict(sorted(statuses.items()))}")
    console.print(f"memory in KiB: {memory}; {len(checked)} answers compared; wrong: {wrong or 'nothing'}")
    return wrong


def _fits(fate: str, status: int) -> bool:
    return {"right": status in (200, 429), "broken": 400 <= status < 500, "gone": status in (0, 200, 429)}[fate]


async def _ask(client: httpx.AsyncClient, case: Case, answered: list[tuple[Case, Any]]) -> int:
    """Return the status; 0 where the client has left, -1 where the connection broke."""
    asked = client.post(case.path, json=case.body)
    if case.fate == "gone":
        try:
            return (await asyncio.wait_for(asked, case.stays_s)).status_code
        except asyncio.TimeoutError:
            return 0
        except httpx.TransportError:
            return -1
    try:
        reply = await asked
    except httpx.TransportError:
        return -1
    if case.fate == "right" and reply.status_code == 200:
        answered.append((case, reply.json()))
    return reply.status_code


def _resident(pid: int) -> int:
    """Return the memory of a process, in KiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


if __name__ == "__main__":
    main()
