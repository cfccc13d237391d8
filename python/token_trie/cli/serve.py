"""``token-trie serve``, ``token-trie mcp``, and ``token-trie run-batch``, which uses the server without a network."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import signal
import socket
import string
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from token_trie.cli.options import SERVED_N_CTX, ModelOptions, command, say
from token_trie.cli.rows import OutputFile, digest, require_other, require_same_run
from token_trie.cli.tables import require_all
from token_trie.errors import ArgumentError
from token_trie.native.loaded import File, digest_of_model, model_file
from token_trie.progress import Progress

if TYPE_CHECKING:
    from token_trie.serve.engine import Engine


@command(
    "token-trie serve",
    "token-trie serve -m model.gguf --port 8080 --api-key secret",
    "token-trie serve -m model.gguf --calibration teams.json --calibration moods.json",
    "token-trie serve -m model.gguf --calibration running --priors priors.json",
    needs="serve",
)
def serve(
    model: ModelOptions,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="TOKEN_TRIE_API_KEY", help="The key that clients must send. Default: none."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name under which clients reach the server, as example.com, and whose pages may ask it, from any "
            "port. Repeat the option for each. Addresses, names without a dot and the name in --host need none to be "
            "reached; with --api-key, no name does.",
        ),
    ] = None,
    n_parallel: Annotated[
        int, typer.Option(min=0, help="Number of parallel sequences; 0: as many as suit the model.")
    ] = 0,
    max_requests: Annotated[
        int, typer.Option(min=1, help="The largest number of requests in progress; others are told to wait.")
    ] = 256,
    max_options: Annotated[
        int, typer.Option(min=2, help="The largest number of options per question; 255 in both formats.")
    ] = 255,
    max_questions: Annotated[int, typer.Option(min=1, help="The largest number of questions per request.")] = 400,
    sets: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder that keeps registered sets across restarts.")
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|running",
            help="A calibration file from `evaluate --fit` or `Calibration.save`, for one question. Repeat the option "
            "for each file. running: other questions are corrected by the mean of their earlier answers instead of the "
            "contextual prior, so that an answer depends on those before it.",
        ),
    ] = None,
    priors: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File that keeps the means of --calibration running.")
    ] = None,
    grammars: Annotated[bool, typer.Option(help="Whether requests may contain GBNF grammars.")] = True,
    reproducible: Annotated[
        bool,
        typer.Option(
            help="Answer requests one at a time, so that an answer is the same, bit by bit, whatever else is asked. "
            "Takes longer."
        ),
    ] = False,
    time_limit: Annotated[float, typer.Option(min=0.001, help="The longest time of a request, in seconds.")] = 120,
) -> None:
    """Serve decisions over HTTP, in the formats of TypeSafe and OpenAI."""
    import uvicorn

    from token_trie.serve.app import Server, application
    from token_trie.serve.calibrations import Calibrations, RunningPriors
    from token_trie.serve.engine import Engine
    from token_trie.serve.limits import Limits, connections, name_of
    from token_trie.serve.sets import Sets

    if api_key is not None:
        api_key = api_key.strip(string.whitespace)
        if not api_key or not api_key.isprintable():
            raise ArgumentError("--api-key: empty, or with characters that no client can send; use letters and digits")

    for name in allow_host or ():
        if not name or name_of(f"//{name}") != name.lower():
            raise ArgumentError(f"--allow-host: {name!r} is not a name alone, as example.com or localhost")

    class Http(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            """First interrupt: finish requests in progress; second: cancel them; third: exit at once."""
            if sig != signal.SIGINT or not self.should_exit:
                if sig == signal.SIGINT and self.server_state.tasks:
                    say("finishing the requests in progress; a second interrupt cancels them")
                super().handle_exit(sig, frame)
                return
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    path = model.path
    files = [Path(name) for name in calibration or () if name != "running"]
    runs = len(files) < len(calibration or ())
    if priors is not None and not runs:
        raise ArgumentError("--priors: only with --calibration running")
    if reproducible and runs:
        raise ArgumentError("--reproducible: goes without --calibration running, whose answers depend on those before")
    calibrations = Calibrations(files, RunningPriors(priors) if runs else None)

    def load() -> Engine:
        engine = Engine(
            model.load(SERVED_N_CTX), n_parallel=n_parallel, calibrations=calibrations, reproducible=reproducible
        )
        server.sets.load(engine.llm)
        return engine

    server = Server(
        load,
        path.stem,
        Limits(
            requests=max_requests,
            seconds=time_limit,
            options=max_options,
            questions=max_questions,
            grammars=grammars,
        ),
        api_key,
        None if api_key is not None else {host, *(allow_host or ())},
        allow_host or (),
        sets=Sets(sets),
    )
    config = uvicorn.Config(
        application(server),
        host=host,
        port=port,
        access_log=False,
        log_level="error",  # what is not HTTP would be a line each
        http=connections(time_limit),
        ws="none",
        timeout_graceful_shutdown=math.ceil(time_limit) + 1,  # after the last request has reached its limit
        # Longer than clients keep idle connections: a request on a connection that just closed gets no answer.
        timeout_keep_alive=75,
    )
    try:
        bound = config.bind_socket()
    except SystemExit as error:  # it has logged why
        raise ArgumentError(f"--port: no server can listen on {host}:{port}; use another port or --host") from error
    # Name the TCP protocol: only then does asyncio send small parts at once.
    listening = socket.socket(bound.family, bound.type, socket.IPPROTO_TCP, bound.detach())
    url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
    say(f"loading {path.name}, to be served at {url}")
    http = Http(config)
    server.on_ready = lambda: say(f"{path.name} is ready")
    server.on_failure = lambda: setattr(http, "should_exit", True)
    http.run(sockets=[listening])
    if server.failure is not None:
        raise server.failure


@command(
    "token-trie mcp",
    "token-trie mcp -m model.gguf",
    needs="mcp",
)
def mcp(model: ModelOptions) -> None:
    """Serve decisions as tools of the Model Context Protocol, over standard input and output.

    The tools are decide (takes a state and typed questions about it) and choose (takes a prompt and choices).
    """
    from token_trie.serve.engine import Engine
    from token_trie.serve.mcp import serve_tools

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread that reads standard input cannot be cancelled
    engine = Engine(model.load(SERVED_N_CTX))
    try:
        asyncio.run(serve_tools(engine, model.path.stem))
    finally:
        engine.close()


_MAX_CONCURRENT = 64


class _Line(NamedTuple):
    custom_id: str
    url: str
    body: bytes
    mark: str
    """Digest of url and body, which `--resume` compares."""
    read: int
    """End of the line in the file, in bytes."""


@command(
    "token-trie run-batch -i requests.jsonl -o answers.jsonl",
    "token-trie run-batch -i requests.jsonl -o answers.jsonl -m model.gguf --resume",
    needs="serve",
)
def run_batch(
    model: ModelOptions,
    requests: Annotated[Path, typer.Option("--input", "-i", help="The file of requests, one JSON object per line.")],
    answers: Annotated[
        Path, typer.Option("--output", "-o", help="The file for the answers. Each is written as soon as it is known.")
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run that wrote --output.")] = False,
    sets: Annotated[
        Path | None,
        typer.Option(file_okay=False, exists=True, help="Folder of registered sets, as in serve."),
    ] = None,
) -> None:
    """Answer a file of server requests in OpenAI's batch format, many at once.

    Each line has custom_id, method (POST), url (for example /v1/systemone, /v1/decisions or /v1/chat/completions) and
    body. Each line of the output has the custom_id and a response with status_code and body. A request that the server
    refuses gets an answer with the status code of the refusal.
    """
    from token_trie.serve.app import Server
    from token_trie.serve.engine import Engine
    from token_trie.serve.limits import Limits
    from token_trie.serve.sets import Sets

    if not requests.is_file():
        raise ArgumentError(f"--input: no file {str(requests)!r}")
    require_other(answers, requests)
    files = [] if sets is None else [path for path in sorted(sets.iterdir()) if path.is_file()]
    marks = {
        "another model": digest(digest_of_model(model.path)),
        "other sets, or before their files changed": digest([[path.name, File.at(path).digest()] for path in files]),
    }
    with closing(_Answers(answers, resume, marks)) as written:
        lines = _read(requests, written.marks)
        first = next(lines, None)  # reports an invalid first line before the model is loaded
        if first is not None:
            # There are no other clients to protect.
            most = 1 << 60
            limits = Limits(most, questions=most, options=most, seconds=86_400, memory=most, readings=most)
            with closing(Engine(model.load(SERVED_N_CTX))) as engine:
                if digest(digest_of_model(model_file(engine.llm))) != marks["another model"]:
                    raise ArgumentError(f"--model: {str(model.path)!r} was changed meanwhile")
                server = Server(lambda: engine, model.path.stem, limits, engine=engine, sets=Sets(sets))
                server.sets.load(engine.llm)
                with Progress(requests.stat().st_size, "requests") as progress:
                    asyncio.run(_answer(server, chain([first], lines), written, progress))
    say(f"{written.n:,} answers are in {answers}, {written.n_refused:,} of them refused")


async def _answer(server: Any, lines: Iterator[_Line], written: _Answers, progress: Progress) -> None:
    import httpx

    from token_trie.serve.app import application

    async def work() -> None:
        for line in lines:  # which all workers share
            try:
                request = client.build_request("POST", line.url, content=line.body)
            except (httpx.InvalidURL, ValueError) as error:  # has a line break, is too long, or is not Unicode text
                fault = {"message": f"url: {error}", "type": "invalid_request_error", "param": "url", "code": None}
                response = httpx.Response(400, json={"error": fault})
            else:
                response = await client.send(request)
            written.answer(line, response)
            progress.move(written.n, line.read)

    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(application(server)),
        base_url="http://batch",
        headers={"content-type": "application/json"},
        timeout=None,
    )
    await asyncio.gather(*(work() for _ in range(_MAX_CONCURRENT)))


def _read(path: Path, done: dict[str, str]) -> Iterator[_Line]:
    """Iterate over requests without an answer; ArgumentError for a line that is no request."""
    seen: set[str] = set()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number, line in enumerate(chain(file, [b""]), 1):
            if not line.endswith(b"\n"):
                require_all(str(path), file.tell(), size)
            if not line.strip():
                continue
            at = f"{path}: line {number}"
            try:
                request = json.loads(line)
                request = request if isinstance(request, dict) else {}
                body = json.dumps(request.get("body"))
            except (ValueError, RecursionError) as error:
                raise ArgumentError(f"{at}: not JSON ({error})") from error
            custom_id, url = request.get("custom_id"), request.get("url")
            if not isinstance(custom_id, str) or not custom_id:
                raise ArgumentError(f"{at}: no custom_id")
            if custom_id in seen:
                raise ArgumentError(f"{at}: custom_id {custom_id!r} occurs twice")
            seen.add(custom_id)
            if request.get("method", "POST") != "POST" or not isinstance(url, str) or not url.startswith("/"):
                raise ArgumentError(f"{at}: method must be POST, and url a path such as /v1/systemone")
            mark = digest(url, body)
            if done.get(custom_id, mark) != mark:
                raise ArgumentError(f"--resume: {at}: {custom_id!r} asked something else when it was answered")
            if custom_id not in done:
                yield _Line(custom_id, url, body.encode(), mark, file.tell())


class _Answers(OutputFile):
    """The file of answers."""

    def __init__(self, path: Path, resume: bool, marks: dict[str, str]) -> None:
        super().__init__(path, resume)
        self._run_marks = marks
        self.marks: dict[str, str] = {}
        """Mark of the request by the custom_id of each answer."""
        self.n = self.n_refused = end = 0
        try:
            with path.open("rb") if self.size else io.BytesIO() as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        break
                    try:
                        answer = json.loads(line)
                        require_same_run(answer["x_run"], marks)
                        self._count(answer)
                    except (ValueError, KeyError, TypeError, RecursionError) as error:
                        why = str(error) if isinstance(error, ArgumentError) else "was not written by run-batch"
                        raise ArgumentError(f"--resume: {self.name!r}: line {number} {why}") from error
                    end += len(line)
            self.cut(end)
        except BaseException:
            self.close()
            raise

    def _count(self, answer: Any) -> None:
        self.marks[answer["custom_id"]] = answer["x_request"]
        self.n += 1
        self.n_refused += answer["response"]["status_code"] != 200

    def answer(self, line: _Line, response: Any) -> None:
        """Write an answer."""
        is_json = response.headers.get("content-type", "").startswith("application/json")
        answer = {
            "id": f"answer-{self.n + 1}",
            "custom_id": line.custom_id,
            "response": {
                "status_code": response.status_code,
                "request_id": response.headers.get("x-request-id", ""),
                "body": response.json() if is_json else response.text,
            },
            "error": None,
            "x_request": line.mark,
            "x_run": "-".join(self._run_marks.values()),
        }
        try:
            text = json.dumps(answer, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # half a surrogate pair, which JSON can only escape
            text = json.dumps(answer).encode()
        self.put(text + b"\n")
        self._count(answer)
