"""Refusals of requests, and the error shapes of both formats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from starlette.responses import JSONResponse

from token_trie.errors import BusyError, CancelledError, NativeMemoryError, TokenTrieError, is_too_long

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
    code: str | None = None
    """Code of the error in OpenAI's format."""

    def __post_init__(self) -> None:
        self.status = self.status or _STATUS[self.kind]
        if self.kind == "busy":
            self.headers.setdefault("retry-after", "1")
        if self.kind in ("timeout", "internal"):  # which OpenAI's clients repeat by themselves
            self.headers.setdefault("x-should-retry", "false")

    @property
    def placed(self) -> str:
        """The message, after the place of the fault."""
        place = dotted(self.faults[0].place) if self.faults else ""
        return f"{place}: {self.message}" if place else self.message

    @property
    def told(self) -> str:
        """The reason without the message, which may contain text of the request."""
        return " at ".join([self.code or self.kind, *(str(fault.place[0]) for fault in self.faults[:1] if fault.place)])


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
    if not is_too_long(error):
        return invalid(str(error), place)
    refusal = invalid(f"{error}; --n-ctx of the server sets its size", place)
    return replace(refusal, code="context_length_exceeded")


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
    error = {"message": refusal.placed, "type": f"{refusal.kind}_error", "param": param, "code": refusal.code}
    return 400 if refusal.status == 422 else refusal.status, {"error": error}


def refused(refusal: RefusedError, error_format: ErrorFormat = openai_error) -> JSONResponse:
    """Return the response that refuses a request."""
    status, body = error_format(refusal)
    return JSONResponse(body, status, refusal.headers)


def dotted(place: Place) -> str:
    """Return a place as text: ``questions[0].choices``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
