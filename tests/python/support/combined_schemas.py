"""Random JSON Schemas that combine others in all ways, over few names and values, and the values to try them with."""

from __future__ import annotations

import random
from typing import Any

NAMES = "abc"
SCALARS = [None, True, False, 0, 1, 2, 3, 1.5, -1, "", "a", "b", "abc"]
VALUES: list[Any] = [
    *SCALARS,
    *([], [1], [1, 2], ["a"], ["a", 1], [1, 1], [None], {}),
    *({name: value} for name in "ab" for value in (1, 2, "a", "b", None, {"a": 1}, [1])),
    *({"a": a, "b": b} for a in (1, 2, "a", "b") for b in (1, True, "a")),
    *({"a": 1, "b": 2, "c": 3}, {"c": 1}, {"c": "a"}, {"a": "a", "c": 1}),
]
_LEAVES: list[Any] = [True, False, {}, {"const": 1}, {"enum": ["a", "b"]}, {"type": "string"}, {"minimum": 2}]
_LEAVES += [{"type": "integer", "minimum": 1, "maximum": 3}, {"enum": [1, 2, "a"]}, {"required": ["b"]}]
_LEAVES += [{"properties": {"a": {"enum": ["a", 1]}}, "required": ["a"]}, {"items": {"enum": [1, "a"]}}]
_OF_ONE = ["additionalProperties", "items", "not", "contains", "unevaluatedProperties", "unevaluatedItems"]
_OF_NAMES = ["properties", "properties", "dependentSchemas", "dependencies"]
_OF_SEVERAL = ["prefixItems", "allOf", "allOf", "anyOf", "oneOf"]
_COUNTS = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]
_TYPES: list[Any] = ["object", "object", "string", "integer", "number", "array", "null", ["string", "null"]]


def combined_schema(rng: random.Random) -> dict[str, Any]:
    """Return a schema with definitions that it may refer to, by pointer and anchor."""
    definitions = {"x": _make(rng, 1), "y": _make(rng, 1), "z": {"$anchor": "z", **_make(rng, 1)}}
    return {**_make(rng, 3), "$defs": definitions}


def _make(rng: random.Random, depth: int) -> dict[str, Any]:
    def part() -> Any:
        return _make(rng, depth - 1) if depth and rng.random() < 0.7 else rng.choice(_LEAVES)

    def some_names() -> list[str]:
        return rng.sample(NAMES, rng.choice([1, 1, 2]))

    schema: dict[str, Any] = {}
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        more: dict[str, Any] = rng.choice(
            [
                lambda: {"type": rng.choice(_TYPES)},
                lambda: {"enum": rng.sample([1, 2, "a", "b", None, True, 1.5, [1], {"a": 1}], 3)},
                lambda: {"const": rng.choice([1, "a", None, {"a": 1}])},
                lambda: {rng.choice(["minimum", "maximum", "exclusiveMinimum", "multipleOf"]): rng.randint(1, 3)},
                lambda: {rng.choice(_COUNTS): rng.randint(0, 2)},
                lambda: {"required": some_names()},
                lambda: {rng.choice(_OF_NAMES): {name: part() for name in some_names()}},
                lambda: {rng.choice(_OF_ONE): part()},
                lambda: {rng.choice(_OF_SEVERAL): [part() for _ in range(rng.randint(1, 3))]},
                lambda: {"patternProperties": {rng.choice(["^a", "b", "^[ac]"]): part()}},
                lambda: {"propertyNames": rng.choice([{"enum": ["a", "b"]}, {"maxLength": 1}, part()])},
                lambda: {"if": part(), rng.choice(["then", "else"]): part()},
                lambda: {"dependentRequired": {rng.choice(NAMES): some_names()}},
                lambda: {"contains": part(), rng.choice(["minContains", "maxContains"]): rng.randint(0, 2)},
                lambda: {"$ref": rng.choice(["#/$defs/x", "#/$defs/y", "#z"])},
                lambda: {rng.choice(["pattern", "format"]): rng.choice(["^a", "b$", "^[ab]*$"])},
                lambda: {"uniqueItems": True},
            ]
        )()
        schema |= more
    return schema
