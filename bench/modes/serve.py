"""Servers on loopback, beside each other, under 1 to 128 clients."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from token_trie.cli.demo import ACTIONS

from bench.contenders import alternatives
from bench.models import find
from bench.results import Results, Table, progress
from bench.sets import ids
from bench.tasks import MAIN_SET, requests

_CLIENTS = (1, 8, 32, 128)
_SECONDS = 8.0  # of each load
_START_S = 120


@dataclass(frozen=True)
class Question:
    """A question about many states."""

    name: str
    instructions: str
    options: list[str]

    def prompt(self, state: str) -> str:
        """Return a prompt for servers that take text alone."""
        return f"{state}\n\nQuestion: {self.instructions}\nAnswer:"


_QUESTIONS = [
    Question("3 labels", "What is it about?", ["work", "home", "travel"]),
    Question(MAIN_SET, "What should the assistant do?", list(ACTIONS)),
    Question("1,000 options", "Which item is meant?", ids(1000)),
]


@dataclass(frozen=True)
class Server:
    """A server: the command that starts it, None where it is not installed; a request, and its answer."""

    command: Callable[[str, str, str], list[str] | None]  # of a model, a port and a number of threads
    is_up: str  # the path that answers as soon as it is
    path: str
    body: Callable[[Question, str], dict[str, Any]]
    read: Callable[[Any], str]
    max_options: int = 1 << 20


def _own(model: str, port: str, threads: str) -> list[str]:
    program = str(Path(sys.executable).with_name("token-trie"))
    bounds = ["--max-options", "1000", "--max-requests", "1024"]
    return [program, "serve", "-m", model, "--port", port, "--threads", threads, *bounds]


def _python(model: str, port: str, threads: str) -> list[str] | None:
    command = [sys.executable, "-m", "llama_cpp.server", "--model", model, "--port", port, "--n_ctx", "2048"]
    command += ["--n_threads", threads, "--n_threads_batch", threads, "--verbose", "false"]
    return command if find_spec("fastapi") else None


def _llama_server() -> str | None:
    return os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")


def _llama(model: str, port: str, threads: str) -> list[str] | None:
    more = ["-t", threads, "-tb", threads, "-np", "8", "-c", "16384", "--no-webui"]
    return [program, "-m", model, "--port", port, *more] if (program := _llama_server()) else None


def _callo(model: str, port: str, threads: str) -> list[str] | None:
    program, server = shutil.which("callo", path=str(Path(sys.executable).parent)), _llama_server()
    if program is None or server is None:
        return None
    more = ["--ctx", "16384", "--parallel", "8", "--s1-slots", "7"]
    return [program, "serve", "--model", model, "--llama-server", server, "--port", port, *more]


def _systemone(question: Question, state: str) -> dict[str, Any]:
    asked = {"type": "choice", "instructions": question.instructions, "criteria": dict.fromkeys(question.options)}
    return {"model": "jev-latest", "state": state, "questions": {"q": asked}}


def _with_choice(question: Question, state: str) -> dict[str, Any]:
    return {"prompt": question.prompt(state), "structured_outputs": {"choice": question.options}}


def _with_grammar(question: Question, state: str) -> dict[str, Any]:
    grammar = alternatives([f" {option}" for option in question.options])
    bounds = {"max_tokens": 48, "n_predict": 48, "temperature": 0, "cache_prompt": True}
    return {"prompt": question.prompt(state), "grammar": grammar, **bounds}


def _read_systemone(reply: Any) -> str:
    return str(reply["answers"]["q"]["choice"])


def _read_completion(reply: Any) -> str:
    return str(reply["choices"][0]["text"] if "choices" in reply else reply["content"]).strip()


_SERVERS = {
    "token-trie": Server(_own, "/health", "/v1/systemone", _systemone, _read_systemone),
    "token-trie, the same prompt": Server(_own, "/health", "/v1/completions", _with_choice, _read_completion),
    "llama-cpp-python, GBNF": Server(_python, "/v1/models", "/v1/completions", _with_grammar, _read_completion),
    "llama-server, GBNF": Server(_llama, "/health", "/completion", _with_grammar, _read_completion),
    "callo": Server(_callo, "/callo/stats", "/v1/systemone", _systemone, _read_systemone, max_options=255),
}


def run(options: Any) -> None:
    """Measure all servers that are there."""
    results, rows = Results("serve"), []
    seconds = _SECONDS * (options.rounds or 1)
    for model in map(find, options.models):
        for name, server in _SERVERS.items():
            with _running(server, str(model), str(options.threads)) as url:
                if url is None:
                    print(f"{name}: not installed, left out")
                    continue
                loads = [(q, n) for q in _QUESTIONS for n in _CLIENTS if len(q.options) <= server.max_options]
                for question, n in progress(loads, f"{model.stem}, {name}"):
                    row = {"model": model.stem, "set": question.name, "server": name, ">clients": n}
                    rows.append(row | asyncio.run(_press(server, url, question, n, seconds)))
    results.tables.append(Table("Decisions over HTTP, on loopback", rows))
    results.finish(options.output)


@contextmanager
def _running(server: Server, model: str, threads: str) -> Iterator[str | None]:
    """Run a server until the context ends; yield its address once that answers."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command, url = server.command(model, str(port), threads), f"http://127.0.0.1:{port}"
    if command is None:
        yield None
        return
    quiet: dict[str, Any] = dict.fromkeys(("stdout", "stderr", "stdin"), subprocess.DEVNULL)
    with subprocess.Popen(command, **quiet) as process:
        try:
            until = time.monotonic() + _START_S
            while not _answers(url + server.is_up):
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{' '.join(command[:3])} does not come up")
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


async def _press(server: Server, url: str, question: Question, n_clients: int, seconds: float) -> dict[str, Any]:
    """Let clients ask for some seconds; each asks again after each answer, about a state new to the server."""
    took: list[float] = []
    n_failed = n_outside = 0
    states, options = [request["text"] for request in requests()], set(question.options)
    limits = httpx.Limits(max_connections=n_clients, max_keepalive_connections=n_clients)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        await client.post(server.path, json=server.body(question, states[-1]))
        begun = time.perf_counter()

        async def ask_on(first: int) -> None:
            nonlocal n_failed, n_outside
            for i in range(first, 1 << 30, n_clients):
                body = server.body(question, f"{states[i % len(states)]} ({i})")
                started = time.perf_counter()
                reply = await client.post(server.path, json=body)
                took.append(time.perf_counter() - started)
                failed = reply.status_code != 200
                n_failed += failed
                n_outside += not failed and server.read(reply.json()) not in options
                if time.perf_counter() > begun + seconds:
                    return

        await asyncio.gather(*(ask_on(i) for i in range(n_clients)))
        wall = time.perf_counter() - begun
    p50, p99 = (float(v) * 1e3 for v in np.percentile(took, [50, 99]))
    rate = (len(took) - n_failed) / wall
    row = {">decisions/s": rate, ">p50 ms": p50, ">p99 ms": p99, ">answers": len(took)}
    return row | {">failed": n_failed, ">outside the set": n_outside}
