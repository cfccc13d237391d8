"""Reads the body of a request, within limits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

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
        found = error.errors(include_url=False, include_context=False, include_input=False)[:_N_FAULTS]
        faults = [Fault((*place, *fault.place), fault.message, fault.kind) for fault in _faults_of(value, found)]
        raise RefusedError("invalid_request", faults[0].message, faults) from None


def _faults_of(value: Any, errors: Sequence[ErrorDetails]) -> list[Fault]:
    """Return what is wrong with a value. Where several types may stand, pydantic has errors of each.

    The type is meant that the value fits the farthest. Where it fits several as far, all are named.
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
    """Return the place of an error, that of the first of several types on the way, and its label; else it again."""
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
