"""Keywords of JSON Schema: those that say which values are valid, and which kind of value each is about."""

from __future__ import annotations

from typing import Any

from token_trie.errors import ArgumentError

OF_KIND = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"})
    | {"propertyNames", "patternProperties", "unevaluatedProperties", "dependentRequired"},
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"})
    | {"additionalItems", "unevaluatedItems"},
}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
SAYING = frozenset({"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "not"}).union(*OF_KIND.values())
"""Keywords that say which values are valid; all others are annotations, those of `UNKEPT` apart."""
UNKEPT = frozenset(
    {"if", "contains", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef", "disallow", "extends"}
)
"""Keywords that say so too, and that no answer is kept to."""
KINDS = ("string", "number", "integer", "boolean", "null", "object", "array")


def refuse(pointer: str, why: str) -> ArgumentError:
    """Make the error for a place of a schema."""
    return ArgumentError(f"schema#{pointer}: {why}")


class UnkeptError(ArgumentError):
    """A keyword that says which values are valid, and that no answer is kept to."""

    def __init__(self, pointer: str, why: str) -> None:
        super().__init__(f"schema#{pointer}: {why}")
        self.pointer = pointer


def check_known(schema: dict[str, Any], pointer: str) -> None:
    """Raise ArgumentError for a keyword that is not kept to, or a count or pattern that is none."""
    for keyword in schema:
        if not isinstance(keyword, str):
            raise refuse(pointer, f"a keyword is {type(keyword).__name__}, not str")
    for keyword in sorted(UNKEPT & schema.keys()):
        if keyword != "if" or schema.keys() & {"then", "else"}:
            raise UnkeptError(f"{pointer}/{keyword}", f"{keyword!r} is not supported")
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
            if value is None or (value is False and is_open):
                continue
            if value is True and is_open:  # as in draft 4, of the bound beside it
                value = schema.get(keyword)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
                raise refuse(f"{pointer}/{name}", f"{value!r} is not a number")
            if nearest is None or (sign * value, is_open) > (sign * nearest[0], nearest[1]):
                nearest = value, is_open
        found.append(nearest or (None, False))
    (low, open_low), (high, open_high) = found
    return low, high, open_low, open_high
