"""What a request is refused with, in each format's own shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from token_trie.errors import BusyError, CancelledError, NativeMemoryError, TokenTrieError

Kind: TypeAlias = Literal[
    "invalid_request", "authentication", "forbidden", "not_found", "too_large", "timeout", "busy", "internal"
]

_STATUS: dict[Kind, int] = {
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
    """Why there is no answer."""

    kind: Kind
    message: str
    faults: Sequence[Fault] = ()
    """Of a body; the message is that of the first."""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.status = self.status or _STATUS[self.kind]
        if self.kind == "busy":
            self.headers.setdefault("retry-after", "1")

    @property
    def placed(self) -> str:
        """The message, behind the place of the fault."""
        place = dotted(self.faults[0].place) if self.faults else ""
        return f"{place}: {self.message}" if place else self.message


def invalid(message: str, place: Place = (), kind: str = "value_error") -> RefusedError:
    """Return what a body is refused with that has one fault."""
    return RefusedError("invalid_request", message, (Fault(place, message, kind),))


def refusal_of(error: TokenTrieError, place: Place = ()) -> RefusedError:
    """Return what an error of this package means for who asked."""
    if isinstance(error, BusyError):
        return RefusedError("busy", "the model is busy")
    if isinstance(error, CancelledError):
        return RefusedError("busy", "the server is being stopped", status=503)
    if isinstance(error, NativeMemoryError):
        return RefusedError("busy", "no memory left for this request", status=503)
    return invalid(str(error), place)


class Format(Protocol):
    """How a wire format tells what is wrong."""

    schema: ClassVar[dict[str, Any]]
    """JSON Schema of such a body."""

    def tell(self, refusal: RefusedError) -> tuple[int, Any]:
        """Return the status, and the body."""


class SystemOneFormat:
    """``{"detail": [{"loc", "msg", "type"}]}`` of bodies, else ``{"detail": {"error_type", "message"}}``."""

    schema: ClassVar[dict[str, Any]] = {"type": "object", "required": ["detail"]}

    def tell(self, refusal: RefusedError) -> tuple[int, Any]:
        """Return the status, and the body."""
        if refusal.faults:
            faults = [{"loc": ["body", *f.place], "msg": f.message, "type": f.kind} for f in refusal.faults]
            return refusal.status, {"detail": faults}
        return refusal.status, {"detail": {"error_type": f"{refusal.kind}_error", "message": refusal.message}}


class OpenAIFormat:
    """``{"error": {"message", "type", "param", "code"}}``."""

    schema: ClassVar[dict[str, Any]] = {"type": "object", "required": ["error"]}

    def tell(self, refusal: RefusedError) -> tuple[int, Any]:
        """Return the status, and the body."""
        param = (dotted(refusal.faults[0].place) or None) if refusal.faults else None
        status = 400 if refusal.status == 422 else refusal.status
        return status, {
            "error": {"message": refusal.placed, "type": f"{refusal.kind}_error", "param": param, "code": None}
        }


def dotted(place: Place) -> str:
    """Return a place as one writes it: ``questions[0].choices``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")


SYSTEM_ONE = SystemOneFormat()
OPENAI = OpenAIFormat()
