"""``token-trie run-batch``: a file of requests, answered by the server's application without a network."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from token_trie.cli.options import SERVED_N_CTX, ModelOptions, command, say
from token_trie.cli.rows import OutputFile, digest, require_same_run
from token_trie.errors import ArgumentError
from token_trie.native.loaded import File, digest_of_model
from token_trie.progress import Progress

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
        for number, line in enumerate(file, 1):
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
