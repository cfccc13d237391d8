"""Limits of requests: bodies, connections and origins, and the errors that refuse a request."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import ipaddress
import itertools
import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import mul
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError, WrapValidator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError, from_json
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from token_trie.errors import BusyError, CancelledError, NativeMemoryError, TokenTrieError, is_too_long

if TYPE_CHECKING:
    from starlette.requests import Request

Refusal: TypeAlias = Literal[
    "invalid_request", "authentication", "forbidden", "not_found", "too_large", "timeout", "busy", "internal"
]

_STATUS: dict[Refusal, int] = {
    "invalid_request": 422,
    "authentication": 401,
    "forbidden": 403,
    "not_found": 404,
    "too_large": 413,
    "timeout": 408,
    "busy": 429,
    "internal": 500,
}
Place: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a body."""

    place: Place
    message: str
    kind: str = "value_error"


@dataclass
class RefusedError(Exception):
    """A request is refused."""

    kind: Refusal
    message: str
    faults: Sequence[Fault] = ()
    """Faults of the body; `message` is that of the first."""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.status = self.status or _STATUS[self.kind]
        if self.kind == "busy":
            self.headers.setdefault("retry-after", "1")

    @property
    def placed(self) -> str:
        """The message, after the place of the fault."""
        place = dotted(self.faults[0].place) if self.faults else ""
        return f"{place}: {self.message}" if place else self.message


def invalid(message: str, place: Place = (), kind: str = "value_error") -> RefusedError:
    """Return the refusal of a body with one fault."""
    return RefusedError("invalid_request", message, (Fault(place, message, kind),))


def refusal_of(error: TokenTrieError, place: Place = ()) -> RefusedError:
    """Return the refusal that an error of this package becomes."""
    if isinstance(error, BusyError):
        return RefusedError("busy", "the model is busy")
    if isinstance(error, CancelledError):
        return RefusedError("busy", "the server is being stopped", status=503)
    if isinstance(error, NativeMemoryError):
        return RefusedError("busy", "no memory left for this request", status=503)
    more = "; --n-ctx of the server sets its size" if is_too_long(error) else ""
    return invalid(f"{error}{more}", place)


@contextlib.contextmanager
def refusing(place: Place = ()) -> Iterator[None]:
    """Refuse the request, at a place of its body, for an error of this package that is raised inside."""
    try:
        yield
    except TokenTrieError as error:
        raise refusal_of(error, place) from error


ErrorFormat: TypeAlias = Callable[[RefusedError], tuple[int, dict[str, Any]]]
"""Returns the status and the body of the response that refuses a request."""


def systemone_error(refusal: RefusedError) -> tuple[int, dict[str, Any]]:
    """Return a refusal in TypeSafe's format."""
    if refusal.faults:
        faults = [{"loc": ["body", *f.place], "msg": f.message, "type": f.kind} for f in refusal.faults]
        return refusal.status, {"detail": faults}
    return refusal.status, {"detail": {"error_type": f"{refusal.kind}_error", "message": refusal.message}}


def openai_error(refusal: RefusedError) -> tuple[int, dict[str, Any]]:
    """Return a refusal in OpenAI's format."""
    param = (dotted(refusal.faults[0].place) or None) if refusal.faults else None
    error = {"message": refusal.placed, "type": f"{refusal.kind}_error", "param": param, "code": None}
    return 400 if refusal.status == 422 else refusal.status, {"error": error}


def refused(refusal: RefusedError, error_format: ErrorFormat = openai_error) -> JSONResponse:
    """Return the response that refuses a request."""
    status, body = error_format(refusal)
    return JSONResponse(body, status, refusal.headers)


def dotted(place: Place) -> str:
    """Return a place as text: ``questions[0].choices``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")


B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")

_MAX_FAULTS = 16
_MAX_FAULT_CHARS = 400
_MAX_DEPTH = 64
_FREE_BYTES = 64 << 10
"""Bytes that each request may take without a claim."""
_VALUE_BYTES, _READING_BYTES, _TEXT_BYTES = 64, 8 << 10, 1 << 10
"""Memory of a JSON value, of a reading of a question, and of a text that it scores."""


@dataclass(frozen=True)
class Limits:
    """Limits of the size and time of requests."""

    body: int = 8 << 20
    """Maximum size of a body, in bytes."""
    depth: int = _MAX_DEPTH
    """Maximum nesting of JSON."""
    questions: int = 400
    options: int = 255
    """Maximum number of options of a choice."""
    levels: int = 10
    """Maximum number of levels of a score."""
    requests: int = 256
    """Maximum number of requests in progress."""
    seconds: float = 120.0
    """Maximum time of a request, from its head to the last byte of its answer."""
    memory: int = 192 << 20
    """Bytes that all requests in progress may take together, estimated from their bodies."""
    readings: int = 4096
    """Maximum number of readings of a request: each question counts once per order."""

    def claim_readings(self, sizes: Sequence[int], orders: int, claim: Claim) -> None:
        """Claim the memory of the readings of questions with so many options; RefusedError if they are too many."""
        n_orders = [min(n, orders) for n in sizes]
        n_readings, n_texts = sum(n_orders), sum(map(mul, sizes, n_orders))
        n_max = self.questions * self.options
        if n_readings > self.readings or n_texts > n_max:
            raise invalid(
                f"{len(sizes):,} questions in up to {max(n_orders)} orders are {n_readings:,} readings of {n_texts:,} "
                f"options, where {self.readings:,} readings of {n_max:,} options are the most; ask in several requests",
                ("questions",),
                "too_long",
            )
        claim.add(_READING_BYTES * n_readings + _TEXT_BYTES * n_texts)


class Budget:
    """Memory shared by the requests in progress. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._taken = 0
        self._changing = threading.Lock()

    def take(self, n_bytes: int) -> None:
        """Take memory, or give it back if negative; RefusedError if not enough is left."""
        with self._changing:
            if n_bytes > 0 and self._taken + n_bytes > self._max_bytes:
                raise RefusedError("busy", "the requests in progress take all memory for requests; come again")
            self._taken += n_bytes

    def claim(self) -> Claim:
        """Return the claim of a request."""
        return Claim(self, self._max_bytes)


class Claim:
    """Memory of one request until its end."""

    def __init__(self, budget: Budget, max_bytes: int) -> None:
        self._budget, self._max_bytes = budget, max_bytes
        self._n = self._taken = 0

    def add(self, n_bytes: int) -> None:
        """Claim more; RefusedError if it exceeds the total, or what is left now."""
        more = max(self._n + n_bytes - _FREE_BYTES, 0) - self._taken
        if self._taken + more > self._max_bytes:
            raise RefusedError("too_large", f"the request would take more than {self._max_bytes:,} bytes of memory")
        self._budget.take(more)
        self._n += n_bytes
        self._taken += more

    def release(self) -> None:
        """Give everything back."""
        self._budget.take(-self._taken)
        self._n = self._taken = 0


_MISSPELT = 0.85
"""Similarity, as difflib's ratio, from which an unknown key seems to be a misspelt one."""
_MAX_KEYS, _MAX_KEY = 8, 32


@cache
def _keys_of(shape: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in shape.model_fields.items())


@cache
def _extensions() -> frozenset[str]:
    """Return the names of all options that the formats do not have."""
    shapes: list[type[BaseModel]] = [Shape]
    for shape in shapes:
        shapes += shape.__subclasses__()
    return frozenset(name for shape in shapes for name in shape.model_fields if name.startswith("x_"))


class Shape(BaseModel):
    """Part of a request. Unknown keys are ignored, as the formats want it.

    Refused are misspelt ones, and options of other parts, such as that of a request in a question.
    """

    @model_validator(mode="before")
    @classmethod
    def _refuse_misspelt(cls, given: Any) -> Any:
        known = _keys_of(cls)
        if isinstance(given, dict) and not given.keys() <= known:
            unknown = (key for key in given if key not in known and len(key) <= _MAX_KEY)
            for key in itertools.islice(unknown, _MAX_KEYS):
                for near in difflib.get_close_matches(key, known - given.keys(), 1, _MISSPELT):
                    names = {"key": key, "near": near}
                    raise PydanticCustomError("unknown_key", "unknown key {key}; is {near} meant?", names)
            for key in sorted(given.keys() & (_extensions() - known)):
                raise PydanticCustomError("unknown_key", "{key} has no effect here", {"key": key})
        return given


async def read_body(request: Request, limits: Limits, claim: Claim) -> bytes:
    """Return the bytes of a JSON body; RefusedError if it is too large or of another media type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError("invalid_request", "send JSON, with the header Content-Type: application/json", status=415)
    data = bytearray()
    async for chunk in request.stream():
        if len(data) + len(chunk) > limits.body:
            raise RefusedError("too_large", f"the body has more than {limits.body:,} bytes")
        claim.add(len(chunk))
        data += chunk
    return bytes(data)


def value_of(data: bytes, limits: Limits, claim: Claim) -> Any:
    """Parse a body; RefusedError if it is not JSON or too large."""
    claim.add(_VALUE_BYTES * sum(map(data.count, (b",", b":", b"[", b"{"))))
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"no JSON: {error}", kind="json_invalid") from None
    check_depth(value, limits.depth)
    return value


def check_count(n: int, most: int, place: Place) -> None:
    """Refuse more of something than a request may have."""
    if n > most:
        raise invalid(f"{n:,}, where {most:,} are the most", place, "too_long")


def check_depth(value: Any, depth: int, place: Place = ()) -> None:
    """Refuse a JSON value with deeper nesting, or with a number too large for a float, which JSON has no word for."""
    for n, level in enumerate(levels_of(value)):
        if n > depth:
            raise invalid(f"more than {depth} levels of JSON", place, "json_depth")
        if math.inf in level or -math.inf in level:
            raise invalid("a number is larger than 1.8e308", place, "finite_number")


def levels_of(value: Any) -> Iterator[list[Any]]:
    """Yield a JSON value, the values in it, the values in these, and so on."""
    level = [value]
    while level:
        yield level
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list)))
        level = list(itertools.chain.from_iterable(inner))


def parse(shape: type[B], value: Any) -> B:
    """Validate a value; RefusedError names each place that does not fit the shape."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_FAULTS]
        faults = [
            Fault(tuple(map(_short, fault.place)), _short(fault.message), fault.kind)
            for fault in _faults_of(value, found)
        ]
        raise RefusedError("invalid_request", faults[0].message, faults) from None


def _faults_of(value: Any, errors: Sequence[ErrorDetails]) -> list[Fault]:
    """Return the faults of a value. For a union, pydantic reports errors of each type.

    Keep those of the type that the value fits farthest; if several types tie, name all of them.
    """
    types: dict[Place, dict[str | int, list[Fault]]] = {}
    for error in errors:
        place, at, label = _place_of(value, error)
        types.setdefault(at, {}).setdefault(label, []).append(Fault(place, error["msg"], error["type"]))
    faults: list[Fault] = []
    for at, of_types in types.items():

        def how_far(found: list[Fault], n: int = len(at)) -> list[int]:
            return [step if isinstance(step, int) else 0 for step in found[0].place[n:]]

        farthest = max(map(how_far, of_types.values()))
        best = [found for found in of_types.values() if how_far(found) == farthest]
        best = [found for found in best if not found[0].kind.endswith("_type")] or best
        first, *others = (found[0] for found in best)
        if others:
            more = dict.fromkeys(fault.message.removeprefix("Input should be ") for fault in others)
            faults.append(replace(first, message=" or ".join([first.message, *more])))
        else:
            faults += best[0]
    return faults


def _place_of(value: Any, error: ErrorDetails) -> tuple[Place, Place, str | int]:
    """Return the place of an error, the place of the first union on its path, and the label of the union's type.

    Without a union, the second is the place again and the label is empty.
    """
    place: list[str | int] = []
    label: tuple[Place, str | int] | None = None
    steps = error["loc"]
    for step, after in itertools.zip_longest(steps, steps[1:]):
        is_label = not _has(value, step)
        if not is_label and after is not None:
            is_label = _has(value, after) and not _has(value[step], after)
        if not is_label or (after is None and error["type"] == "missing"):
            place.append(step)
            value = None if is_label else value[step]
        else:
            label = label or (tuple(place), step)
    return (tuple(place), *(label or (tuple(place), "")))


def _has(value: Any, step: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, dict) and step in value


def _short(text: T) -> T:
    return text[:_MAX_FAULT_CHARS] if isinstance(text, str) else text  # type: ignore[return-value]


def _in_pieces(value: Any, validate: Callable[[Any], Any]) -> Any:
    """Validate the members of an object in parts, because pydantic makes all errors of a value before it raises."""
    if not isinstance(value, dict) or len(value) <= _MAX_FAULTS:
        return validate(value)
    members, n = list(value.items()), len(value) // _MAX_FAULTS
    read: dict[str, Any] = {}
    for i in range(n):
        read |= validate(dict(members[i::n]))
    return {name: read[name] for name in value}


IN_PIECES = WrapValidator(_in_pieces)
"""For objects with any number of members; lists use pydantic's `fail_fast`."""


_PRIVATE = (".localhost", ".internal")


class SameOrigin:
    """Refuses requests that pages of other origins make.

    `hosts` are names of the server, besides addresses and names that no web site can have; None: any name. `origins`
    are other hosts whose pages may send requests.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None, origins: Collection[str]) -> None:
        self._app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._origins = {host.lower() for host in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        why = self._why_not(Headers(scope=scope), scope["path"]) if scope["type"] == "http" else None
        if why is None:
            await self._app(scope, receive, send)
            return
        await refused(RefusedError("forbidden", why))(scope, receive, send)

    def _why_not(self, headers: Headers, path: str) -> str | None:
        host = headers.get("host", "")
        if not self._is_own(host):
            return f"Host: {host[:100]!r} is no name of this server; if it is, start it with --allow-host"
        origin = headers.get("origin")
        if origin is not None:
            if self._is_same(origin, host):
                return None
            name = name_of(origin) or "NAME"
            return (
                f"Origin: {origin[:100]!r} is another; to let its pages ask, start the server with --allow-host {name}"
            )
        site = headers.get("sec-fetch-site", "none")
        is_visit = path == "/" and headers.get("sec-fetch-mode") == "navigate"  # a link to the page
        return None if site in ("none", "same-origin") or is_visit else "Sec-Fetch-Site: a page of another origin asks"

    def _is_own(self, host: str) -> bool:
        if self._hosts is None:
            return True
        name = name_of(f"//{host}")
        return _is_private(name) or name in self._hosts

    def _is_same(self, origin: str, host: str) -> bool:
        own, _, other = origin.partition("://")
        if own in ("http", "https") and other.lower() == host.lower():
            return True
        return name_of(origin) in self._origins


def name_of(url: str) -> str:
    """Return the host of a URL, in lower case; empty if there is none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_private(name: str) -> bool:
    """Whether no web site can have a name: addresses, names without a dot, and names reserved for private use."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and ("." not in name or name.endswith(_PRIVATE))
    return True


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
