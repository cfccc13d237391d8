"""``token-trie run-batch``: a file of requests, answered by the server's application without a network."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from token_trie.cli.options import SERVED_N_CTX, ModelOptions, command, status
from token_trie.cli.resume import WholeLines, digest, lock
from token_trie.errors import ArgumentError
from token_trie.native.loaded import File, digest_of_model
from token_trie.progress import Progress
from token_trie.show.trie import plain

if TYPE_CHECKING:
    import httpx

_MAX_CONCURRENT = 64
_NO_LIMIT = 1 << 20


class _Line(NamedTuple):
    custom_id: str
    url: str
    body: bytes
    """The bytes to send."""
    mark: str
    """Digest of url and body, which `--resume` compares."""
    read: int
    """End of the line in the file, in bytes."""


def _run_of(model: Path, sets: Path | None) -> str:
    """Return digests of a model and of a folder of sets, joined by a hyphen."""
    files = [] if sets is None else [path for path in sorted(sets.iterdir()) if path.is_file()]
    return f"{digest(digest_of_model(model))}-{digest([[path.name, File.at(path).digest()] for path in files])}"


def _require_same_run(run: str, earlier: object) -> None:
    """Raise ArgumentError if an earlier run had another model or other sets."""
    (model, _, sets), (its_model, _, its_sets) = run.partition("-"), str(earlier).partition("-")
    if its_model != model:
        raise ArgumentError("another model; use the one that the run began with, or another --output")
    if its_sets != sets:
        raise ArgumentError("other sets, or with their files changed; use those that the run began with")


@command(
    "token-trie run-batch -i requests.jsonl -o answers.jsonl",
    "token-trie run-batch -i requests.jsonl -o answers.jsonl -m model.gguf --resume",
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
    if not requests.is_file():
        raise ArgumentError(f"--input: no file {str(requests)!r}")
    with closing(_Answers(answers, resume, _run_of(model.path, sets))) as written:
        asked = _read(requests, written.marks)
        first = next(asked, None)  # reports an invalid first line before the model is loaded
        if first is not None:
            with Progress(requests.stat().st_size, "requests") as progress:
                asyncio.run(_answer(model, sets, first, asked, written, progress))
    status.print(
        f"{written.n:,} answers are in {plain(str(answers))}, {written.n_refused:,} of them refused", highlight=False
    )


def _read(path: Path, done: dict[str, str]) -> Iterator[_Line]:
    """Iterate over requests without an answer; ArgumentError for a line that is no request."""
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            at = f"{path}: line {number}"
            try:
                request = json.loads(line)
                body = json.dumps(request.get("body") if isinstance(request, dict) else None).encode()
            except (ValueError, RecursionError) as error:
                raise ArgumentError(f"{at}: not JSON ({error})") from error
            custom_id = request.get("custom_id") if isinstance(request, dict) else None
            if not isinstance(custom_id, str) or not custom_id:
                raise ArgumentError(f"{at}: no custom_id")
            if custom_id in seen:
                raise ArgumentError(f"{at}: custom_id {custom_id!r} occurs twice")
            seen.add(custom_id)
            url = request.get("url")
            if request.get("method", "POST") != "POST" or not isinstance(url, str) or not url.startswith("/"):
                raise ArgumentError(f"{at}: method must be POST, and url a path such as /v1/systemone")
            mark = digest(url, body.decode())
            if done.get(custom_id, mark) != mark:
                raise ArgumentError(f"--resume: {at}: {custom_id!r} asked something else when it was answered")
            if custom_id not in done:
                yield _Line(custom_id, url, body, mark, file.tell())


async def _answer(
    model: ModelOptions,
    sets: Path | None,
    first: _Line,
    rest: Iterator[_Line],
    written: _Answers,
    progress: Progress,
) -> None:
    try:
        import httpx

        from token_trie.serve.app import Server, application
        from token_trie.serve.engine import Engine
        from token_trie.serve.limits import Limits
        from token_trie.serve.sets import Sets
    except ImportError as error:
        raise ArgumentError(f"run-batch: {error.name} is missing; pip install 'token-trie[serve]'") from error
    engine = Engine(model.load(SERVED_N_CTX))
    # No other clients, so there is no need for limits.
    limits = Limits(
        1 << 30,
        questions=_NO_LIMIT,
        options=_NO_LIMIT,
        seconds=86_400,
        requests=2 * _MAX_CONCURRENT,
        memory=1 << 60,
        readings=_NO_LIMIT,
    )
    server = Server(lambda: engine, model.path.stem, limits, engine=engine, sets=Sets(sets))
    server.sets.load(engine.llm)
    transport = httpx.ASGITransport(application(server))
    under_way: set[asyncio.Task[tuple[_Line, httpx.Response]]] = set()
    try:
        headers = {"content-type": "application/json"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://batch", headers=headers, timeout=None
        ) as client:

            async def ask(line: _Line) -> tuple[_Line, httpx.Response]:
                try:
                    request = client.build_request("POST", line.url, content=line.body)
                except (httpx.InvalidURL, ValueError) as error:  # has a line break, is too long, or is not Unicode text
                    fault = {
                        "message": f"url: {error}",
                        "type": "invalid_request_error",
                        "param": "url",
                        "code": None,
                    }
                    return line, httpx.Response(400, json={"error": fault})
                return line, await client.send(request)

            line: _Line | None = first
            while line is not None or under_way:
                while line is not None and len(under_way) < _MAX_CONCURRENT:
                    under_way.add(asyncio.ensure_future(ask(line)))
                    line = next(rest, None)
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for asked, response in (task.result() for task in done):
                    is_json = response.headers.get("content-type", "").startswith("application/json")
                    body = response.json() if is_json else response.text
                    written.put(asked, response.status_code, response.headers.get("x-request-id", ""), body)
                    progress.move(written.n, asked.read)
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        engine.close()


class _Answers:
    """The file of answers; an unfinished last line is cut off."""

    def __init__(self, path: Path, resume: bool, run: str) -> None:
        if path.exists() and path.stat().st_size and not resume:
            raise ArgumentError(f"--output: {str(path)!r} exists; continue it with --resume, or remove it")
        self._file = io.FileIO(path, "a+b")
        if not lock(self._file):
            self._file.close()
            raise ArgumentError(f"--output: another run writes {str(path)!r}")
        self._run = run
        self.marks: dict[str, str] = {}
        """Mark of the request by the custom_id of each answer."""
        self.n = self.n_refused = 0
        with path.open("rb") as file:
            lines = WholeLines(file)
            for line in lines:
                try:
                    answer = json.loads(line)
                    self.marks[answer["custom_id"]] = answer["x_request"]
                    self._count(answer["response"]["status_code"])
                    _require_same_run(run, answer["x_run"])
                except (ArgumentError, ValueError, KeyError, TypeError, RecursionError) as error:
                    self._file.close()
                    why = f"answered with {error}" if isinstance(error, ArgumentError) else "not written by run-batch"
                    raise ArgumentError(f"--resume: {str(path)!r}: line {lines.n} was {why}") from error
        self._file.truncate(lines.end)

    def put(self, line: _Line, status_code: int, request_id: str, body: Any) -> None:
        """Write an answer."""
        response = {"status_code": status_code, "request_id": request_id, "body": body}
        answer = {"id": f"answer-{self.n + 1}", "custom_id": line.custom_id, "response": response, "error": None}
        answer |= {"x_request": line.mark, "x_run": self._run}
        try:
            text = json.dumps(answer, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # half a surrogate pair, which JSON can only escape
            text = json.dumps(answer).encode()
        rest = memoryview(text + b"\n")
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        self._count(status_code)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _count(self, status_code: int) -> None:
        self.n += 1
        self.n_refused += status_code != 200
