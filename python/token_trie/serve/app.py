"""The server: routes, API keys, slots and time limits of requests, metrics, the page; and uvicorn, which runs it.

Interrupts finish what is in progress.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import math
import re
import signal
import socket
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from token_trie.errors import ArgumentError
from token_trie.serve.bodies import parse, read_body, value_of
from token_trie.serve.completions import EventStream, chat_completion, completion, in_parts, wait_gone
from token_trie.serve.decisions import decisions, systemone
from token_trie.serve.errors import ErrorFormat, RefusedError, openai_error, refused, refusing, systemone_error
from token_trie.serve.limits import Budget, Claim
from token_trie.serve.origins import SameOrigin
from token_trie.serve.service import ServerConfig, Service
from token_trie.serve.shapes import ChatRequest, CompletionRequest, DecisionRequest, SystemOneRequest

_log = logging.getLogger("token_trie.serve")

_GONE = 499
"""Status in the metrics of a request whose client has left."""
_GRACE_S = 0.5
"""Time after the limit in which a stream may send its timeout error."""

Handler: TypeAlias = Callable[[Service, Any, Claim], Awaitable[Any]]
"""Takes the service, a parsed body and the memory of the request; returns a Response or a JSON value."""


class Server:
    """State that the routes share."""

    def __init__(self, config: ServerConfig, say: Callable[[str], object] = lambda _: None) -> None:
        self.config = config
        self.say = say
        """Takes lines for whoever has started the server."""
        self.service: Service | None = None
        self.failure: Exception | None = None
        """Error of starting the service."""
        self.n_under_way = 0
        self.budget = Budget(config.limits.memory)
        self.json = ThreadPoolExecutor(1, "token-trie JSON")
        """Reads and writes one body after the other, while the loop goes on."""
        self.registry = CollectorRegistry()
        self.answered = Counter("token_trie_requests", "Requests answered.", ["path", "status"], registry=self.registry)
        self.seconds = Histogram(
            "token_trie_request_seconds", "Time from a request to its answer.", ["path"], registry=self.registry
        )
        Gauge("token_trie_requests_under_way", "Requests under way.", registry=self.registry).set_function(
            lambda: self.n_under_way
        )

    def require_service(self) -> Service:
        """Return the service; RefusedError where there is none yet."""
        if self.service is None:
            raise RefusedError("busy", "the model is being loaded", status=503)
        return self.service

    @contextlib.contextmanager
    def slot(self) -> Iterator[Claim]:
        """Hold a slot and memory while a request is under way; RefusedError where there is no slot."""
        if self.n_under_way >= self.config.limits.requests:
            raise RefusedError("busy", f"{self.n_under_way} requests are under way; come again")
        self.n_under_way += 1
        claim = self.budget.claim()
        try:
            yield claim
        finally:
            claim.release()
            self.n_under_way -= 1

    def require_key(self, request: Request) -> None:
        """Check the API key; RefusedError without a valid one."""
        own = self.config.api_key
        if own is None:
            return
        scheme, _, key = request.headers.get("authorization", "").encode("latin-1").partition(b" ")
        is_known = any(hmac.compare_digest(key.strip(), one) for one in _spellings(own))
        if scheme.lower() != b"bearer" or not is_known:
            raise RefusedError("authentication", "no valid API key: send it as Authorization: Bearer")


def _spellings(key: str) -> list[bytes]:
    """Return a key in UTF-8 and, if it can be encoded, in Latin-1, which many clients send."""
    utf8 = key.encode()
    try:
        return [utf8, key.encode("latin-1")]
    except UnicodeEncodeError:
        return [utf8]


class Endpoint:
    """The application of a route: each request gets a slot, memory and a time limit, and ends if its client leaves.

    The limit counts from the head of the request to the last byte of the answer, so a client that stops sending or
    reading cannot hold its slot.
    """

    def __init__(self, path: str, error_format: ErrorFormat, shape: type[BaseModel], handler: Handler) -> None:
        self._path, self._error_format = path, error_format
        self._shape, self._handler = shape, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        server: Server = request.app.state.server
        started = perf_counter()
        with contextlib.ExitStack() as held:
            response, claim, why = await self._respond(server, request, held)
            response.headers["x-typesafe-request-id"] = response.headers["x-request-id"] = uuid.uuid4().hex
            took = perf_counter() - started
            server.answered.labels(self._path, str(response.status_code)).inc()
            server.seconds.labels(self._path).observe(took)
            left = max(server.config.limits.seconds - took, 0)
            try:
                if isinstance(response, EventStream):
                    response.seconds = left
                await asyncio.wait_for(response(scope, receive, in_parts(send)), left + _GRACE_S)
            except asyncio.TimeoutError:
                scope.get("state", {}).get("abort", lambda: None)()
                await asyncio.sleep(0)
            finally:
                if isinstance(response, EventStream):
                    await response.close()
                    why = response.failure.told if response.failure is not None else why
                server.say(_line_of(self._path, response.status_code, perf_counter() - started, claim, why))

    async def _respond(
        self, server: Server, request: Request, held: contextlib.ExitStack
    ) -> tuple[Response, Claim | None, str]:
        """Return the response, the claim of the request if it has a slot, and why it is refused."""
        seconds, claim = server.config.limits.seconds, None
        try:
            server.require_key(request)
            claim = held.enter_context(server.slot())
            response = await asyncio.wait_for(self._read_and_answer(server, request, claim), seconds)
            return response, claim, "the client has left" if response.status_code == _GONE else ""
        except asyncio.TimeoutError:
            refusal = RefusedError("timeout", f"not read and answered within {seconds:g} s")
        except RefusedError as error:
            refusal = error
        except ClientDisconnect:
            return Response(status_code=_GONE), claim, "the client has left"
        except Exception as error:
            _log.error(_traceback_of(self._path, error))
            refusal = RefusedError("internal", "a defect of the server")
        return refused(refusal, self._error_format), claim, refusal.told

    async def _read_and_answer(self, server: Server, request: Request, claim: Claim) -> Response:
        limits = server.config.limits
        data = await read_body(request, limits, claim)

        async def answer() -> Response:
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(server.json, lambda: parse(self._shape, value_of(data, limits, claim)))
            with refusing():
                found = await self._handler(server.require_service(), body, claim)
            return (
                found if isinstance(found, Response) else await loop.run_in_executor(server.json, JSONResponse, found)
            )

        working = asyncio.ensure_future(answer())
        gone = asyncio.ensure_future(wait_gone(request.receive))
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else Response(status_code=_GONE)
        finally:
            gone.cancel()
            working.cancel()
            await asyncio.gather(working, gone, return_exceptions=True)


def _line_of(path: str, status: int, seconds: float, claim: Claim | None, why: str) -> str:
    """Return the line about a request, without anything that the request says."""
    parts = [f"POST {path} {status} in {seconds:.2f} s"]
    if claim is not None and claim.usage is not None:
        read, cached, written = claim.usage
        parts.append(f"{read:,} tokens read, {cached:,} cached, {written:,} answered")
    return ": ".join([*parts, *([why] if why else [])])


def _traceback_of(path: str, error: Exception) -> str:
    """Return the traceback without the message, which may contain text of the request."""
    return f"{path}: {type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"


async def _sets(request: Request) -> Response:
    server: Server = request.app.state.server
    try:
        server.require_key(request)
        return JSONResponse({"object": "list", "data": server.require_service().sets.summaries()})
    except RefusedError as refusal:
        return refused(refusal)


async def _models(request: Request) -> Response:
    server: Server = request.app.state.server
    names = [server.config.name, "jev-latest"]
    asked = request.path_params.get("name")
    try:
        server.require_key(request)
        if asked is not None and asked not in names:
            raise RefusedError("not_found", f"there is no such model; this one is {server.config.name!r}")
    except RefusedError as refusal:
        return refused(refusal)
    about: dict[str, Any] = {"object": "model", "created": 0, "owned_by": "token-trie"}
    if server.service is not None:  # where programs look: those of llama.cpp's server, and those of vLLM
        n_ctx = server.service.engine.n_prompt_max
        about |= {"max_model_len": n_ctx, "meta": {"n_ctx": n_ctx}}
    models = [{"id": name, **about} for name in names]
    if asked is not None:
        return JSONResponse(models[names.index(asked)])
    told = {"description": "Answers with one of a known set.", "release_date": "2026-11-23"}
    return JSONResponse({"object": "list", "data": models, "models": [{"name": name, **told} for name in names]})


async def _health(request: Request) -> Response:
    if request.app.state.server.service is None:
        return JSONResponse({"status": "loading"}, 503, {"retry-after": "1"})
    return JSONResponse({"status": "ok"})


async def _metrics(request: Request) -> Response:
    return Response(generate_latest(request.app.state.server.registry), media_type=CONTENT_TYPE_LATEST)


async def _page(_: Request) -> Response:
    text, headers = _read_page()
    return HTMLResponse(text, headers=headers)


_PAGE = ("html", "css", "js")
_POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Allows the page its own script, its own style and requests to this server."""


@cache
def _read_page() -> tuple[str, dict[str, str]]:
    """Return the page and its headers."""
    text, style, script = (Path(__file__).with_name(f"page.{kind}").read_text("utf-8") for kind in _PAGE)
    headers = {
        "content-security-policy": _POLICY.format(script=_hash(script), style=_hash(style)),
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return text.replace("<style>", f"<style>{style}").replace("<script>", f"<script>{script}"), headers


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _post(path: str, error_format: ErrorFormat, shape: type[BaseModel], handler: Handler) -> Route:
    return Route(path, Endpoint(path, error_format, shape, handler), methods=["POST"])


ROUTES = [
    _post("/v1/systemone", systemone_error, SystemOneRequest, systemone),
    _post("/v1/decisions", openai_error, DecisionRequest, decisions),
    _post("/v1/chat/completions", openai_error, ChatRequest, chat_completion),
    _post("/v1/completions", openai_error, CompletionRequest, completion),
    Route("/v1/sets", _sets),
    Route("/v1/models", _models),
    Route("/v1/models/{name}", _models),
    Route("/health", _health),
    Route("/metrics", _metrics),
    Route("/", _page),
]


def application(server: Server, on_start: Callable[[], object] = lambda: None) -> Starlette:
    """Return the ASGI application of a server; `on_start` is called when its service has started, or failed to."""
    config = server.config

    async def start() -> None:
        try:
            server.service = await asyncio.to_thread(Service.start, config)
        except Exception as error:
            server.failure = error
        on_start()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        starting = asyncio.ensure_future(start())
        try:
            yield
        finally:
            await starting
            if server.service is not None:
                await asyncio.to_thread(server.service.engine.close)
            server.json.shutdown(wait=False, cancel_futures=True)

    hosts = None if config.api_key is not None else {config.host, *config.allow_host}
    middleware = [Middleware(SameOrigin, hosts=hosts, origins=config.allow_host)]
    if config.allow_host:
        names = "|".join(re.escape(name) for name in config.allow_host)
        origins = rf"(?i:https?://({names})(:\d+)?)"
        # `SameOrigin` has checked the origin; browsers need the headers.
        middleware.append(
            Middleware(CORSMiddleware, allow_origin_regex=origins, allow_methods=["*"], allow_headers=["*"])
        )
    app = Starlette(
        routes=ROUTES, middleware=middleware, lifespan=lifespan, exception_handlers={HTTPException: _no_such_route}
    )
    app.state.server = server
    return app


_INSTEAD = {
    "/v1/chat/completions": r"responses|messages|chat|chat/completions|completions/chat",
    "/v1/completions": r"completions?|generate|infill|engines/.*",
    "/v1/models": r"models|tags|ps|show|props|slots",
}
"""Routes, and those of other servers in whose place they are."""


async def _no_such_route(request: Request, error: Exception) -> Response:
    """Refuse a route that is not there, or a method; a route of another server gets the name of the one to use."""
    assert isinstance(error, HTTPException)
    server: Server = request.app.state.server
    headers, message, path = dict(error.headers or {}), error.detail, request.url.path
    if error.status_code == 404:
        asked = re.sub(r"^/(v1/|api/|openai/)*|/$", "", path)
        found = next((route for route, others in _INSTEAD.items() if re.fullmatch(others, asked)), None)
        posted = [route.path for route in ROUTES if "POST" in (route.methods or ())]
        message = f"there is no such route; use {found or ', '.join(posted)}"
        if not found and asked.startswith("embed"):
            message = "there is no such route: this server makes no embeddings"
        server.say(f"{request.method} {path if found else 'another route'} 404: {message}")
    return refused(RefusedError("not_found", message, status=error.status_code, headers=headers))


# On a port


def run(config: ServerConfig, say: Callable[[str], object]) -> None:
    """Serve until a signal ends it.

    Parameters
    ----------
    config : ServerConfig
        The options of the server.
    say : callable
        Takes lines for whoever has started the server.

    Raises
    ------
    ArgumentError
        No server can listen on the port, or a file of the configuration cannot be used.
    CalibrationError
        A calibration belongs to another model.
    OSError
        A file cannot be read.
    """
    server, seconds = Server(config, say), config.limits.seconds

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

    def started() -> None:
        if server.failure is None:
            say(f"{config.name} is ready")
        else:
            http.should_exit = True

    options = uvicorn.Config(
        application(server, started),
        host=config.host,
        port=config.port,
        access_log=False,
        log_level="error",  # anything that is not HTTP would be a line each
        http=connections(seconds),
        ws="none",
        timeout_graceful_shutdown=math.ceil(seconds) + 1,  # after the last request has reached its limit
        # Longer than clients keep idle connections: a request on a connection that just closed gets no answer.
        timeout_keep_alive=75,
    )
    try:
        bound = options.bind_socket()
    except SystemExit as error:  # it has logged why
        where = f"{config.host}:{config.port}"
        raise ArgumentError(f"--port: no server can listen on {where}; use another port or --host") from error
    # Name the TCP protocol: only then does asyncio send small parts at once.
    listening = socket.socket(bound.family, bound.type, socket.IPPROTO_TCP, bound.detach())
    host = f"[{config.host}]" if ":" in config.host else config.host
    say(f"loading {config.name}, to be served at http://{host}:{listening.getsockname()[1]}")
    http = Http(options)
    http.run(sockets=[listening])
    if server.failure is not None:
        raise server.failure


def connections(seconds: float) -> type[asyncio.Protocol]:
    """Return a protocol that closes connections on which something is unfinished for too long.

    While a request is answered, its endpoint enforces the limit. This one covers the rest: heads that never end,
    bodies that nobody waits for, answers that stay unread. It is uvicorn's protocol on h11, which limits the size of
    heads; the one on httptools, which uvicorn takes where that is installed, keeps whatever is sent.
    """

    class Connection(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.app_state: dict[str, Any] = {**self.app_state, "abort": transport.abort}
            self._seen: object = None
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def _watch(self) -> None:
            self._timer = self.loop.call_later(seconds, self._look)

        def _look(self) -> None:
            is_answered = self.cycle is None or self.cycle.response_complete
            n_unread = self.transport.get_write_buffer_size()
            is_idle = self.timeout_keep_alive_task is not None and not n_unread
            seen = (self.cycle, n_unread) if is_answered and not is_idle else None
            if seen is not None and seen == self._seen:
                self.transport.abort()
            else:
                self._seen = seen
                self._watch()

    return Connection
