"""Values of a schema: enums and constants, and which values are the same."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from token_trie.decisions.records.gbnf import Matcher
from token_trie.decisions.records.keywords import KINDS, OF_KIND, UnkeptError, bounds, count, is_kind, kinds_of, refuse
from token_trie.decisions.records.pattern import read_pattern
from token_trie.decisions.records.plan import Choice, Node, Union


def read_values(schema: dict[str, Any], pointer: str) -> Choice:
    """Read an enum or a constant, with the keywords beside it."""
    keyword = "const" if "const" in schema else "enum"
    if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
        raise refuse(f"{pointer}/enum", "no values")
    values = [schema["const"]] if keyword == "const" else schema["enum"]
    step = schema.get("multipleOf", 1)
    if not isinstance(step, (int, float)) or isinstance(step, bool) or step <= 0:
        raise refuse(f"{pointer}/multipleOf", f"{step!r} is no number above 0")
    kinds = kinds_of(schema, pointer) if "type" in schema else list(KINDS)
    kept = [v for v in values if any(is_kind(v, kind) for kind in kinds) and _is_within(v, schema, pointer)]
    if "pattern" in schema and any(isinstance(v, str) for v in kept):
        kept = matching(kept, schema["pattern"], pointer)
    if "const" in schema and "enum" in schema:
        kept = [v for v in kept if share_a_value([v], schema["enum"])]
    if not kept:
        raise refuse(f"{pointer}/{keyword}", "no value keeps to the keywords beside it")
    return Choice(tuple(_different(kept)))


def choices_of(node: Node | None) -> Choice | None:
    """Return all values of what is a choice among values and nothing else, each once; None for another node."""
    if isinstance(node, Choice):
        return node
    parts = [choices_of(option) for option in node.options] if isinstance(node, Union) else [None]
    known = [part for part in parts if part is not None]
    return Choice(tuple(_different(v for part in known for v in part.values))) if len(known) == len(parts) else None


def share_a_value(some: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether a value is among both: 1 is 1.0, and not true."""
    return not {_identity(v) for v in some}.isdisjoint(map(_identity, others))


def _different(values: Iterable[Any]) -> Iterable[Any]:
    of_identity: dict[Any, Any] = {}
    for value in values:
        of_identity.setdefault(_identity(value), value)
    return of_identity.values()


def _identity(value: Any) -> Any:
    """Return what is equal for values that JSON Schema takes for equal, and for no others."""
    if isinstance(value, dict):
        return "object", frozenset((key, _identity(v)) for key, v in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_identity, value))
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value), value


def matching(values: list[Any], pattern: str, pointer: str) -> list[Any]:
    """Return the values other than texts that a pattern is not found in."""
    try:
        matcher = Matcher(read_pattern(pattern).content)
        written = [json.dumps(v, ensure_ascii=False)[1:-1] if isinstance(v, str) else None for v in values]
        return [v for v, text in zip(values, written, strict=True) if text is None or matcher.ends(text) >> len(text)]
    except ValueError as error:
        raise UnkeptError(f"{pointer}/pattern", f"{pattern!r} is not supported: {error}") from error


def _is_within(value: Any, schema: dict[str, Any], pointer: str) -> bool:
    """Whether a value keeps to what its schema says beside it."""
    if isinstance(value, str):
        high = count(schema, "maxLength", pointer, len(value))
        return count(schema, "minLength", pointer, 0) <= len(value) <= high
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high_, open_low, open_high = bounds(schema, pointer)
        over = low is None or value > low or (value == low and not open_low)
        under = high_ is None or value < high_ or (value == high_ and not open_high)
        return over and under and Fraction(value) % Fraction(schema.get("multipleOf", value or 1)) == 0
    rest = OF_KIND["object"] | OF_KIND["array"]
    if isinstance(value, (dict, list)) and schema.keys() & rest:
        raise UnkeptError(f"{pointer}/{min(schema.keys() & rest)}", "beside enum or const it is not supported")
    return True
