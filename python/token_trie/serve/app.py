"""The ASGI application: routes, API keys, errors, metrics, the page, and loading of the model."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import re
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from token_trie.serve.completions.requests import ChatRequest, CompletionRequest, GenerationRequest
from token_trie.serve.completions.responses import EventStream, chat_completion, completion, in_parts, wait_gone
from token_trie.serve.decisions import QuestionsRequest
from token_trie.serve.engine import Engine, Working
from token_trie.serve.limits import (
    Budget,
    Claim,
    ErrorFormat,
    Limits,
    RefusedError,
    SameOrigin,
    openai_error,
    parse,
    read_body,
    refused,
    refusing,
    systemone_error,
    value_of,
)
from token_trie.serve.openai_decisions import DecisionRequest, decisions
from token_trie.serve.sets import Sets
from token_trie.serve.systemone import SystemOneRequest, systemone


class Metrics:
    """Prometheus metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "token_trie_requests", "Requests answered.", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "token_trie_request_seconds", "Time from a request to its answer.", ["path"], registry=self._registry
        )
        self._under_way = Gauge("token_trie_requests_under_way", "Requests under way.", registry=self._registry)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self, n_under_way: int) -> tuple[bytes, str]:
        """Return all metrics and their media type."""
        self._under_way.set(n_under_way)
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


async def page(request: Request) -> Response:
    """Answer with the page."""
    text, headers = _page()
    return HTMLResponse(text, headers=headers)


@cache
def _page() -> tuple[str, dict[str, str]]:
    """Return the page and its headers, which allow own script, own style and requests to this server."""
    style, script = _read("page.css"), _read("page.js")
    text = _read("page.html").replace("<style>", f"<style>{style}").replace("<script>", f"<script>{script}")
    policy = [
        "default-src 'none'",
        f"script-src {_hash(script)}",
        f"style-src {_hash(style)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    headers = {
        "content-security-policy": "; ".join(policy),
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return text, headers


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_log = logging.getLogger("token_trie.serve")

_GONE = 499
"""Status in the metrics of a request whose client has left."""

_GRACE_S = 0.5
"""Time after the limit in which a stream may send its timeout error."""

Load: TypeAlias = Callable[[], Engine]


@dataclass
class Server:
    """State shared by the routes: sets and engine on the working loop, the rest on the server's."""

    load: Load
    """Loads the model on a worker thread; until then `/health` answers 503."""
    name: str
    """Name of the model in answers."""
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    hosts: Collection[str] | None = None
    origins: Collection[str] = ()
    """See `SameOrigin`."""
    engine: Engine | None = None
    failure: Exception | None = None
    """Error of loading the engine."""
    on_failure: Callable[[], object] = lambda: None
    on_ready: Callable[[], object] = lambda: None
    """Called when the engine is loaded."""
    n_under_way: int = 0
    budget: Budget = field(init=False)
    working: Working = field(default_factory=Working)
    metrics: Metrics = field(default_factory=Metrics)
    sets: Sets = field(default_factory=Sets)

    def __post_init__(self) -> None:
        self.budget = Budget(self.limits.memory)

    def require_engine(self) -> Engine:
        """Return the engine; RefusedError where there is none yet."""
        if self.engine is None:
            raise RefusedError("busy", "the model is being loaded", status=503)
        return self.engine

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold a slot while a request is under way; RefusedError where there is none."""
        if self.n_under_way >= self.limits.requests:
            raise RefusedError("busy", f"{self.n_under_way} requests are under way; come again")
        self.n_under_way += 1
        try:
            yield
        finally:
            self.n_under_way -= 1

    def require_key(self, request: Request) -> None:
        """Check the API key; RefusedError without a valid one."""
        if self.api_key is None:
            return
        scheme, _, key = request.headers.get("authorization", "").encode("latin-1").partition(b" ")
        is_known = any(hmac.compare_digest(key.strip(), one) for one in _spellings(self.api_key))
        if scheme.lower() != b"bearer" or not is_known:
            raise RefusedError("authentication", "no valid API key: send it as Authorization: Bearer")


def _spellings(key: str) -> list[bytes]:
    """Return a key in UTF-8 and, if it can be encoded, in Latin-1, which many clients send."""
    utf8 = key.encode()
    try:
        return [utf8, key.encode("latin-1")]
    except UnicodeEncodeError:
        return [utf8]


BodyShape: TypeAlias = type[QuestionsRequest] | type[GenerationRequest]
"""The shape of a body, which estimates the memory of its answer."""

Handler: TypeAlias = Callable[[Engine, Any, Sets, Limits, str], Awaitable[Any]]
"""Takes the engine, a parsed body, the sets, limits and name of the model; returns a Response or a JSON value."""

Responder: TypeAlias = Callable[[Server, Request, Any, Claim], Awaitable[Response]]
"""Takes the JSON value of the body, None without one; returns the response. Runs on the working loop."""


class Endpoint:
    """The application of a route: each request gets a slot, memory and a time limit, and ends if its client leaves.

    The limit counts from the head of the request to the last byte of the answer, so a client that stops sending or
    reading cannot hold its slot.
    """

    def __init__(
        self, path: str, answer: Responder, error_format: ErrorFormat = openai_error, *, reads: bool = False
    ) -> None:
        self._path, self._error_format, self._answer, self._reads = path, error_format, answer, reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        server: Server = request.app.state.server
        started = perf_counter()
        with contextlib.ExitStack() as held:
            response = await self._respond(server, request, held)
            response.headers["x-typesafe-request-id"] = response.headers["x-request-id"] = uuid.uuid4().hex
            server.metrics.observe(self._path, response.status_code, perf_counter() - started)
            left = max(server.limits.seconds - (perf_counter() - started), 0)
            try:
                if isinstance(response, EventStream):
                    response.send_by(server.working.iterate(response.events), left)
                await asyncio.wait_for(response(scope, receive, in_parts(send)), left + _GRACE_S)
            except asyncio.TimeoutError:
                scope.get("state", {}).get("abort", lambda: None)()
                await asyncio.sleep(0)
            finally:
                if isinstance(response, EventStream):
                    await server.working.do(response.close())

    async def _respond(self, server: Server, request: Request, held: contextlib.ExitStack) -> Response:
        try:
            server.require_key(request)
            held.enter_context(server.turn())
            claim = server.budget.claim()
            held.callback(claim.release)
            return await asyncio.wait_for(self._read_and_answer(server, request, claim), server.limits.seconds)
        except asyncio.TimeoutError:
            refusal = RefusedError("timeout", f"not read and answered within {server.limits.seconds:g} s")
        except RefusedError as error:
            refusal = error
        except ClientDisconnect:
            return Response(status_code=_GONE)
        except Exception as error:
            _log.error(_traceback_of(self._path, error))
            refusal = RefusedError("internal", "a defect of the server")
        return refused(refusal, self._error_format)

    async def _read_and_answer(self, server: Server, request: Request, claim: Claim) -> Response:
        data = await read_body(request, server.limits, claim) if self._reads else None

        async def work() -> Response:
            with refusing():
                value = None if data is None else value_of(data, server.limits, claim)
                return await self._answer(server, request, value, claim)

        working = asyncio.ensure_future(server.working.do(work()))
        gone = asyncio.ensure_future(wait_gone(request.receive))
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else Response(status_code=_GONE)
        finally:
            gone.cancel()
            working.cancel()
            await asyncio.gather(working, gone, return_exceptions=True)


def _traceback_of(path: str, error: Exception) -> str:
    """Return the traceback without the message, which may contain text of the request."""
    return f"{path}: {type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"


class Post(Route):
    """The route of a handler, with the format of its errors and the shape of its body."""

    def __init__(self, path: str, error_format: ErrorFormat, handler: Handler, shape: BodyShape) -> None:
        async def answer(server: Server, _request: Request, value: Any, claim: Claim) -> Response:
            engine = server.require_engine()
            body = parse(shape, value)
            body.claim(server.limits, claim)
            result = await handler(engine, body, server.sets, server.limits, server.name)
            return result if isinstance(result, Response) else JSONResponse(result)

        super().__init__(path, Endpoint(path, answer, error_format, reads=True), methods=["POST"])
        self.error_format, self.shape = error_format, shape


async def _list_sets(server: Server, _request: Request, _given: Any, _: Claim) -> Response:
    server.require_engine()
    return JSONResponse({"object": "list", "data": server.sets.summaries()})


async def _health(request: Request) -> Response:
    server: Server = request.app.state.server
    if server.engine is None:
        return JSONResponse({"status": "loading"}, 503, {"retry-after": "1"})
    return JSONResponse({"status": "ok"})


async def _models(request: Request) -> Response:
    server: Server = request.app.state.server
    names = [server.name, "jev-latest"]
    asked = request.path_params.get("name")
    try:
        server.require_key(request)
        if asked is not None and asked not in names:
            raise RefusedError("not_found", f"there is no such model; this one is {server.name!r}")
    except RefusedError as refusal:
        return refused(refusal)
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "token-trie"} for name in names]
    if asked is not None:
        return JSONResponse(models[names.index(asked)])
    return JSONResponse(
        {
            "object": "list",
            "data": models,
            "models": [
                {"name": name, "description": "Answers with one of a known set.", "release_date": "2026-11-23"}
                for name in names
            ],
        }
    )


async def _metrics(request: Request) -> Response:
    server: Server = request.app.state.server
    text, kind = server.metrics.text(server.n_under_way)
    return Response(text, media_type=kind)


ROUTES: list[Route] = [
    Post("/v1/systemone", systemone_error, systemone, SystemOneRequest),
    Post("/v1/decisions", openai_error, decisions, DecisionRequest),
    Route("/", page, methods=["GET"], name="A page to ask at."),
    Post("/v1/chat/completions", openai_error, chat_completion, ChatRequest),
    Post("/v1/completions", openai_error, completion, CompletionRequest),
    Route("/v1/sets", Endpoint("/v1/sets", _list_sets), methods=["GET"], name="The sets, without members."),
    Route("/v1/models", _models, methods=["GET"], name="The model, as both formats tell of it."),
    Route("/v1/models/{name}", _models, methods=["GET"], name="The model, as OpenAI's clients retrieve it."),
    Route("/health", _health, methods=["GET"], name="Whether the model is loaded."),
    Route("/metrics", _metrics, methods=["GET"], name="Counts, for Prometheus."),
]


def application(server: Server) -> Starlette:
    """Return the ASGI application of a server."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loading = asyncio.ensure_future(_load(server))
        try:
            yield
        finally:
            await asyncio.gather(loading, return_exceptions=True)
            if server.engine is not None:
                await asyncio.to_thread(server.engine.close)
            server.working.close()

    middleware = [Middleware(SameOrigin, hosts=server.hosts, origins=server.origins)]
    if server.origins:
        names = "|".join(re.escape(name) for name in server.origins)
        origins = rf"(?i:https?://({names})(:\d+)?)"
        # What it allows, `SameOrigin` has checked; browsers need the headers.
        middleware.append(
            Middleware(CORSMiddleware, allow_origin_regex=origins, allow_methods=["*"], allow_headers=["*"])
        )
    app = Starlette(
        routes=ROUTES,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_such_route},
    )
    app.state.server = server
    return app


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    return refused(RefusedError("not_found", error.detail, status=error.status_code, headers=headers))


async def _load(server: Server) -> None:
    try:
        server.engine = await asyncio.to_thread(server.load)
        server.on_ready()
    except Exception as error:
        server.failure = error
        server.on_failure()
