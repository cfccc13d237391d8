"""Keywords of JSON Schema: what says nothing about a value, and which kind of value each of the others is about."""

from __future__ import annotations

from typing import Any

from token_trie.errors import ArgumentError

NOTES = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator"}
    | {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "contentEncoding", "contentMediaType"}
)
OF_KIND = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}),
}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
KNOWN = frozenset({"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"}).union(NOTES, *OF_KIND.values())
KINDS = ("string", "number", "integer", "boolean", "null", "object", "array")


def refuse(pointer: str, why: str) -> ArgumentError:
    """Make the error for a place of a schema."""
    return ArgumentError(f"schema#{pointer}: {why}")


def check_known(schema: dict[str, Any], pointer: str) -> None:
    """Raise ArgumentError for a keyword that is not supported, or a count or pattern that is none."""
    for keyword in schema:
        if not isinstance(keyword, str):
            raise refuse(pointer, f"a keyword is {type(keyword).__name__}, not str")
        if keyword not in KNOWN and not keyword.startswith("x-"):
            raise refuse(f"{pointer}/{keyword}", f"{keyword!r} is not supported")
    for keyword in _COUNTS:
        count(schema, keyword, pointer, 0)
    if not isinstance(schema.get("pattern", ""), str):
        raise refuse(f"{pointer}/pattern", f"{schema['pattern']!r} is no text")


def kinds_of(schema: dict[str, Any], pointer: str) -> list[str]:
    """Return the kinds of value that a schema lets be written; none where it does not say."""
    given = schema.get("type")
    if given is None:
        return [kind for kind, keywords in OF_KIND.items() if keywords & schema.keys()]
    kinds = [given] if isinstance(given, str) else given
    if not isinstance(kinds, list) or not kinds or not all(kind in KINDS for kind in kinds):
        raise refuse(f"{pointer}/type", f"{given!r} is none of {', '.join(KINDS)}")
    return [kind for kind in dict.fromkeys(kinds) if kind != "integer" or "number" not in kinds]


def count(schema: dict[str, Any], keyword: str, pointer: str, default: int) -> int:
    """Read a count; ArgumentError where it is none."""
    value = schema.get(keyword, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise refuse(f"{pointer}/{keyword}", f"{value!r} is not a count")
    return value


def is_kind(value: Any, kind: str) -> bool:
    """Whether a JSON value is of a kind."""
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    if isinstance(value, (int, float)):
        return kind == "number" or (kind == "integer" and value == value // 1)
    names: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return names.get(type(value)) == kind


def bounds(schema: dict[str, Any], pointer: str) -> tuple[float | None, float | None, bool, bool]:
    """Return the bounds of a number, the nearest, and whether each is left out."""
    found: list[tuple[float | None, bool]] = []
    for keyword, open_keyword, sign in (
        ("minimum", "exclusiveMinimum", 1),
        ("maximum", "exclusiveMaximum", -1),
    ):
        nearest: tuple[float, bool] | None = None
        for name, is_open in ((keyword, False), (open_keyword, True)):
            value = schema.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
                raise refuse(f"{pointer}/{name}", f"{value!r} is not a number")
            if nearest is None or (sign * value, is_open) > (sign * nearest[0], nearest[1]):
                nearest = value, is_open
        found.append(nearest or (None, False))
    (low, open_low), (high, open_high) = found
    return low, high, open_low, open_high
