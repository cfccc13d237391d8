"""Reads the body of a request, within limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from token_trie.serve.refusal import Fault, Place, RefusedError, invalid

if TYPE_CHECKING:
    from starlette.requests import Request

B = TypeVar("B", bound=BaseModel)

_N_FAULTS = 16
_DEPTH = 64


@dataclass(frozen=True)
class Limits:
    """What a stranger may send, and how long that may take."""

    body: int = 8 << 20
    """Bytes of a body."""
    depth: int = _DEPTH
    """Levels of JSON."""
    questions: int = 400
    options: int = 255
    """Of a choice."""
    levels: int = 10
    """Of a score."""
    requests: int = 256
    """That are under way or wait."""
    seconds: float = 120.0
    """Of a request."""
    grammars: bool = True
    """Whether there may be any, of which no limit bounds the time that one takes."""


async def read_json(request: Request, limits: Limits) -> Any:
    """Return the JSON value that a body is.

    Raises
    ------
    RefusedError
        It is too large, or none.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limits.body:
            raise RefusedError("too_large", f"the body has more than {limits.body:,} bytes")
    try:
        value = from_json(bytes(data), allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"no JSON: {error}", kind="json_invalid") from None
    check_depth(value, limits.depth)
    return value


def check_depth(value: Any, depth: int, place: Place = ()) -> None:
    """Refuse a JSON value of more levels."""
    level = [value]
    for _ in range(depth + 1):
        level = [v for each in level for v in _values(each)]
        if not level:
            return
    raise invalid(f"more than {depth} levels of JSON", place, "json_depth")


def count_values(value: Any) -> int:
    """Return how many values a JSON value has, itself among them."""
    n, level = 0, [value]
    while level:
        n += len(level)
        level = [v for each in level for v in _values(each)]
    return n


def _values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def parse(shape: type[B], value: Any, place: Place = ()) -> B:
    """Return a value in its shape; RefusedError tells each place where it does not fit."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        faults = [
            Fault((*place, *fault["loc"]), fault["msg"], fault["type"])
            for fault in error.errors(include_url=False, include_context=False, include_input=False)
        ][:_N_FAULTS]
        raise RefusedError("invalid_request", faults[0].message, faults) from None
