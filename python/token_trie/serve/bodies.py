"""Bodies of requests: read within limits, and validated by shapes with the place of each fault."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError, WrapValidator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from token_trie.serve.errors import Fault, Place, RefusedError, invalid
from token_trie.serve.limits import Claim, Limits, check_depth

if TYPE_CHECKING:
    from starlette.requests import Request

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")

_VALUE_BYTES = 64
"""Memory of a JSON value."""
_MAX_FAULTS = 16
_MAX_FAULT_CHARS = 400
_MISSPELT = 0.85
"""Similarity, as difflib's ratio, from which an unknown key seems to be a misspelt one."""
_MAX_KEYS, _MAX_KEY = 8, 32


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


def parse(shape: type[B], value: Any) -> B:
    """Validate a value; RefusedError names each place that does not fit the shape."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_FAULTS]
        faults = _faults_of(value, found)
        raise RefusedError("invalid_request", faults[0].message, faults) from None


def _faults_of(value: Any, errors: Sequence[ErrorDetails]) -> list[Fault]:
    """Return the faults of a value: of a union, those of the types that the value fits farthest, as one."""
    at: dict[Place, list[ErrorDetails]] = {}
    for error in errors:
        at.setdefault(_place_of(value, error), []).append(error)
    faults = []
    for place, found in at.items():
        if not any(_is_after(other, place) for other in at):
            found = [error for error in found if not error["type"].endswith("_type")] or found
            first, *others = dict.fromkeys(error["msg"] for error in found)
            message = " or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
            faults.append(Fault(tuple(map(_short, place)), _short(message), found[0]["type"]))
    return faults


def _is_after(place: Place, other: Place) -> bool:
    """Return whether a place is inside another, or comes after it in a list, whose first fault alone is told."""
    for step, others in zip(place, other, strict=False):
        if step != others:
            return isinstance(step, int) and isinstance(others, int) and step > others
    return len(place) > len(other)


def _place_of(value: Any, error: ErrorDetails) -> Place:
    """Return the place of an error, without the names of types in a union."""
    place: list[str | int] = []
    for step in error["loc"]:
        if _has(value, step):
            place.append(step)
            value = value[step]
    return (*place, error["loc"][-1]) if error["type"] == "missing" else tuple(place)


def _has(value: Any, step: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, dict) and step in value


def _short(text: T) -> T:
    return text[:_MAX_FAULT_CHARS] if isinstance(text, str) else text  # type: ignore[return-value]
