"""Servers that answer with one of a known set, each a process of its own, and how each is asked."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.contenders.gbnf import alternatives

LLAMA_SERVER = "LLAMA_SERVER"
"""The environment variable that names llama.cpp's own server."""
_START_S = 120


@dataclass(frozen=True)
class Asked:
    """A question about many states."""

    name: str
    instructions: str
    options: list[str]
    states: list[str]

    def prompt(self, state: str) -> str:
        """Return what a server is asked that takes text alone."""
        return f"{state}\n\nQuestion: {self.instructions}\nAnswer:"

    @property
    def grammar(self) -> str:
        """The options, behind the space that a text goes on with."""
        return alternatives([f" {option}" for option in self.options])


Body = Callable[[Asked, str], tuple[str, dict[str, Any]]]
Read = Callable[[Any], str]


@dataclass(frozen=True)
class Host:
    """A server.

    run : yields where it listens, given a model and threads; None: it is not there.
    body : path and body of a request.
    read : the answer in its reply.
    max_options : that it takes.
    """

    name: str
    run: Callable[[Path, int, ExitStack], str | None]
    body: Body
    read: Read
    max_options: int = 1 << 20


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def _process(command: list[str], url: str, path: str) -> Iterator[str]:
    """Run a server until the context ends; yield its address once that answers."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as process:  # type: ignore[call-overload]
        try:
            until = time.monotonic() + _START_S
            while True:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{Path(command[0]).name} {' '.join(command[1:3])} does not come up")
                try:
                    if httpx.get(url + path).is_success:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _own(model: Path, threads: int, stack: ExitStack) -> str | None:
    port = _free_port()
    command = [str(Path(sys.executable).with_name("token-trie")), "serve", "-m", str(model), "--port", str(port)]
    command += ["--threads", str(threads), "--max-options", "1000", "--max-requests", "1024"]
    return stack.enter_context(_process(command, f"http://127.0.0.1:{port}", "/health"))


def _python_server(model: Path, threads: int, stack: ExitStack) -> str | None:
    port = _free_port()
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--port", str(port)]
    command += ["--n_ctx", "2048", "--n_threads", str(threads), "--n_threads_batch", str(threads), "--verbose", "false"]
    try:
        import fastapi  # noqa: F401
    except ImportError:
        return None
    return stack.enter_context(_process(command, f"http://127.0.0.1:{port}", "/v1/models"))


def _llama_server(model: Path, threads: int, stack: ExitStack) -> str | None:
    program = os.environ.get(LLAMA_SERVER) or shutil.which("llama-server")
    if program is None:
        return None
    port = _free_port()
    command = [program, "-m", str(model), "--port", str(port), "-t", str(threads), "-tb", str(threads)]
    command += ["-np", "8", "-c", "16384", "--no-webui"]
    return stack.enter_context(_process(command, f"http://127.0.0.1:{port}", "/health"))


def _callo(model: Path, threads: int, stack: ExitStack) -> str | None:
    program = shutil.which("callo") or shutil.which("callo", path=str(Path(sys.executable).parent))
    server = os.environ.get(LLAMA_SERVER) or shutil.which("llama-server")
    if program is None or server is None:
        return None
    port = _free_port()
    command = [program, "serve", "--model", str(model), "--llama-server", server, "--port", str(port)]
    command += ["--ctx", "16384", "--parallel", "8", "--s1-slots", "7"]
    return stack.enter_context(_process(command, f"http://127.0.0.1:{port}", "/callo/stats"))


def _systemone(asked: Asked, state: str) -> tuple[str, dict[str, Any]]:
    question = {"type": "choice", "instructions": asked.instructions, "criteria": dict.fromkeys(asked.options)}
    return "/v1/systemone", {"model": "jev-latest", "state": state, "questions": {"q": question}}


def _read_systemone(reply: Any) -> str:
    return str(reply["answers"]["q"]["choice"])


def _completions(asked: Asked, state: str) -> tuple[str, dict[str, Any]]:
    body = {"prompt": asked.prompt(state), "grammar": asked.grammar, "max_tokens": 48, "temperature": 0}
    return "/v1/completions", body


def _choice(asked: Asked, state: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": asked.prompt(state), "structured_outputs": {"choice": asked.options}}


def _completion(asked: Asked, state: str) -> tuple[str, dict[str, Any]]:
    body = {"prompt": asked.prompt(state), "grammar": asked.grammar, "n_predict": 48, "temperature": 0}
    return "/completion", body | {"cache_prompt": True}


def _read_completions(reply: Any) -> str:
    return str(reply["choices"][0]["text"]).strip()


def _read_completion(reply: Any) -> str:
    return str(reply["content"]).strip()


OWN = "token-trie"
CHOICE = "token-trie, the same prompt"
PYTHON = "llama-cpp-python, GBNF"
LLAMA = "llama-server, GBNF"
CALLO = "callo"

HOSTS = [
    Host(OWN, _own, _systemone, _read_systemone),
    Host(CHOICE, _own, _choice, _read_completions),
    Host(PYTHON, _python_server, _completions, _read_completions),
    Host(LLAMA, _llama_server, _completion, _read_completion),
    Host(CALLO, _callo, _systemone, _read_systemone, max_options=255),
]
