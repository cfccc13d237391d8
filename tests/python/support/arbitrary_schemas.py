"""Random JSON Schemas of all keywords, in mixes that make sense and in mixes that do not."""

from __future__ import annotations

import random
from typing import Any

WORDS = [
    "red",
    "grün",
    "a b",
    "x/y",
    "A",
    "",
    "-",
    '"',
    "\\",
    "a\\nb",
    "\n",
    "\x00",
    "\x7f",
    "\u2028",
    "😀",
    "日本",
    "true",
]
KEYS = [
    "a",
    "b c",
    'qu"ote',
    "back\\slash",
    "😀",
    "ä/~",
    "$id",
    "",
    "line\nbreak",
    "\x01",
    "value",
    "root",
    "r0",
    "%41",
]
PATTERNS = [
    "^[a-c]{2,4}$",
    "^(yes|no)$",
    r"^\w{1,3}$",
    r"^\W{1,3}$",
    r"^\s{2}$",
    r"^\S{1,4}$",
    r"^\D{1,2}\d$",
    r"[^\d]",
]
PATTERNS += [
    r"^[^\w\s]{1,2}$",
    "^.{1,3}$",
    r"^\x00$",
    r'^"\\$',
    "a",
    "x$",
    "^(a|b|)*$",
    "^(a?){3}b$",
    "(?=a)",
    r"\bx",
    "[",
]
PATTERNS += [
    "^[^a]{2}$",
    "^😀{1,2}$",
    "^[\ud7ff-\ue000]$",
    "^$",
    "^((a|bc){2}|d){3}$",
    "^a{3000}$",
    "^[\x00-\x1f]$",
    "^\n$",
]
SCALARS = [0, 1, 1.0, True, False, None, -2, 1.5, 10, 10.0, 10**20, 10**400, "", "1", "a", 'q"', "😀", "\\", "\n", -0.0]
BOUNDS = [
    -(10**20),
    -(2 * 10**9),
    -1000,
    -1,
    -0.25,
    0,
    1e-7,
    0.1,
    0.5,
    1,
    3,
    7.0,
    12,
    5000,
    10**9,
    1_600_000_000,
    10**12,
    10**400,
]
COUNTS = [0, 1, 1.0, 2, 2.0, 3, 3, 5, 70]
NAMES = ["item", "value", "string", "root", "r0", "object", "a b", "a/b", "😀", "%41"]
KEYWORDS_OF_KINDS: list[tuple[str, dict[str, Any]]] = [
    ("integer", {"minimum": 1, "maximum": 9}),
    ("number", {"minimum": 5, "maximum": 20}),
    ("number", {"exclusiveMinimum": 9}),
    ("string", {"minLength": 3, "maxLength": 5}),
    ("string", {"maxLength": 2}),
    ("string", {"pattern": "^[a-c]{2,4}$"}),
    ("string", {"format": "date"}),
    ("array", {"maxItems": 1, "items": {"type": "null"}}),
    ("array", {"minItems": 1, "items": {"enum": [1, "a"]}, "maxItems": 2}),
    ("object", {"properties": {"k": {"const": 1}}, "required": ["k"]}),
    ("object", {"properties": {"k": {"const": 2}, "a": {"type": "null"}}, "required": ["k"]}),
    ("object", {"additionalProperties": {"type": "null"}, "maxProperties": 1}),
    ("object", {"properties": {"b": {"type": "boolean"}}, "unevaluatedProperties": False}),
    ("array", {"prefixItems": [{"type": "null"}, {"const": 1}], "unevaluatedItems": False}),
    ("null", {}),
    ("boolean", {}),
]


class ArbitrarySchema:
    """One schema, drawn from a source of chance."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names = rng.sample(NAMES, rng.choice([0, 0, 1, 2]))

    def make(self) -> Any:
        """Return it."""
        schema = self._any(3)
        if self._names:
            schema = {**schema, "$defs": {name: self._any(2) for name in self._names}}
        if self._chance(0.03):
            schema["$schema"] = self._rng.choice(
                ["https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"]
            )
        if self._chance(0.03):
            schema["$id"] = "https://example.org/root"
        return schema

    def make_union(self) -> dict[str, Any]:
        """Return a union of branches with and without a type, several of which are often valid together."""
        schema: dict[str, Any] = self._branches(2)
        names, self._names = self._names, []  # jsonschema follows references in a circle for ever
        return {**schema, "$defs": {name: self._branch(1) for name in names}}

    def _branches(self, depth: int) -> dict[str, Any]:
        n = self._rng.choice([2, 2, 2, 3])
        schema: dict[str, Any] = {
            self._rng.choice(["oneOf", "oneOf", "anyOf"]): [self._branch(depth) for _ in range(n)]
        }
        if self._chance(0.2):
            schema["type"] = self._rng.choice(["integer", "string", "object", ["number", "string"]])
        return schema

    def _branch(self, depth: int) -> dict[str, Any]:
        kind, keywords = self._rng.choice(KEYWORDS_OF_KINDS)
        schema = {key: value for key, value in keywords.items() if self._chance(0.8)}
        if self._chance(0.7):
            schema["type"] = kind if self._chance(0.8) else [kind, self._rng.choice(["null", "boolean"])]
        if self._chance(0.2):
            schema = {"enum": self._rng.sample([0, 1, 5, 5.0, True, None, "", "a", "abc", [], [None], {"k": 1}], 3)}
        if depth and self._chance(0.3):
            names = self._rng.sample("abk", 2)
            schema = {"properties": {name: self._branch(depth - 1) for name in names}, "required": names[:1]}
            schema |= self._rng.choice([{}, {"type": "object"}, {"additionalProperties": False}])
        if depth and self._chance(0.2):
            schema = self._rng.choice([self._branches(depth - 1), {"allOf": [self._branch(depth - 1)]}])
        if self._chance(0.1):
            schema["not"] = self._rng.choice([False, {}, {"type": "null"}])
        return self._ref(0) if self._names and self._chance(0.2) else schema

    def _chance(self, share: float) -> bool:
        return self._rng.random() < share

    def _any(self, depth: int) -> dict[str, Any]:
        kinds = [self._values, self._string, self._number, self._number, self._simple]
        if depth:
            kinds += 2 * [self._object, self._array, self._union] + [self._map, self._type_list]
        if self._names:
            kinds += [self._ref]
        schema: dict[str, Any] = self._rng.choice(kinds)(depth)
        if self._chance(0.04):
            schema.pop("type", None)
        if self._chance(0.04):
            # Keywords of another kind, or beside nothing at all.
            schema |= self._rng.choice([self._string, self._number, self._array, self._values])(0)
        if self._chance(0.01):
            schema["$id"] = "https://example.org/below"
        if self._chance(0.05):
            schema |= {"title": "T", "description": "d", "default": None, "x-more": [1]}
        return schema

    def _simple(self, depth: int) -> dict[str, Any]:
        kinds = ["boolean", "null", "integer", "number", "string", *(["object", "array"] if depth else [])]
        return self._rng.choice([*({"type": kind} for kind in kinds), {}])

    def _values(self, _: int) -> dict[str, Any]:
        known = [*SCALARS, *WORDS, [], {}, [1, "a"], {"k": [True]}, {'q"': "😀"}]
        schema: dict[str, Any] = {"enum": self._rng.sample(known, self._rng.randint(1, 5))}
        if self._chance(0.2):
            schema = {"const": self._rng.choice(known)}
        if self._chance(0.1):
            schema["const"] = self._rng.choice(SCALARS)
        if self._chance(0.2):
            schema["type"] = self._rng.choice(["integer", "number", "string", "boolean", ["string", "null"]])
        if self._chance(0.1):
            schema |= self._rng.choice([{"minimum": 1}, {"maxLength": 1}, {"pattern": r"^\W"}, {"multipleOf": 3}])
        return schema

    def _string(self, _: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        choice = self._rng.random()
        if choice < 0.4:
            schema["pattern"] = self._rng.choice(PATTERNS)
        elif choice < 0.5:
            schema["format"] = self._rng.choice(["date", "time", "date-time", "uuid", "email"])
        if choice > 0.35 and self._chance(0.8):
            low = self._rng.choice(COUNTS[:7])
            schema |= {"minLength": low, "maxLength": low + self._rng.randint(-1, 6)}
        return schema

    def _number(self, _: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self._rng.choice(["integer", "integer", "number"])}
        at = self._rng.randrange(len(BOUNDS))
        if self._chance(0.7):
            schema[self._rng.choice(["minimum", "exclusiveMinimum"])] = BOUNDS[at]
        if self._chance(0.6):
            schema[self._rng.choice(["maximum", "exclusiveMaximum"])] = self._rng.choice(BOUNDS[at:])
        if self._chance(0.1):
            schema["multipleOf"] = self._rng.choice([1, 2, 2.0, 3, 0.5, 10**30])
        return schema

    def _type_list(self, depth: int) -> dict[str, Any]:
        both = self._rng.choice([self._string, self._number, self._array, self._object])(depth - 1)
        kinds = self._rng.sample(["null", "integer", "number", "string", "boolean", "array"], 2)
        return both | {"type": list(dict.fromkeys([both["type"], *kinds]))}

    def _ref(self, _: int) -> dict[str, Any]:
        name = self._rng.choice(self._names)
        escaped = name.replace("/", "~1")
        if self._chance(0.5):
            escaped = escaped.replace("%", "%25")
        return {"$ref": f"#/$defs/{escaped}"}

    def _union(self, depth: int) -> dict[str, Any]:
        options = [self._any(depth - 1) for _ in range(self._rng.randint(1, 3))]
        if self._chance(0.3):
            tags = self._rng.sample(WORDS, len(options))
            options = [
                {"type": "object", "properties": {"k": {"const": tag}, "v": option}, "required": ["k", "v"]}
                for tag, option in zip(tags, options, strict=True)
            ]
        schema: dict[str, Any] = {self._rng.choice(["anyOf", "anyOf", "anyOf", "oneOf", "allOf"]): options}
        if self._chance(0.1):
            schema["type"] = self._rng.choice(["integer", "string", "object", ["number", "string"]])
        return schema

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._rng.sample(KEYS, self._rng.randint(0, 4))
        required = [name for name in names if self._chance(0.6)]
        schema: dict[str, Any] = {"type": "object", "properties": {name: self._any(depth - 1) for name in names}}
        if required or self._chance(0.5):
            schema["required"] = required
        if self._chance(0.5):
            schema["additionalProperties"] = self._rng.choice([True, False, {"type": "null"}])
        if self._chance(0.1):
            schema["required"] = [*required, "more"]
        if self._chance(0.1):
            schema[self._rng.choice(["minProperties", "maxProperties"])] = self._rng.choice(COUNTS)
        return schema

    def _map(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object", "additionalProperties": self._any(depth - 1)}
        if self._chance(0.7):
            schema["maxProperties"] = self._rng.choice(COUNTS[:7])
        if self._chance(0.3):
            schema["minProperties"] = self._rng.choice([0, 1, 1, 2])
        return schema

    def _array(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        if self._chance(0.8):
            schema["items"] = self._any(max(depth - 1, 0))
        if self._chance(0.2):
            schema["prefixItems"] = [self._any(0) for _ in range(self._rng.randint(1, 3))]
        if self._chance(0.1):
            schema["items"] = self._rng.choice([False, True])
        if self._chance(0.35):
            parts = [self._values(0) for _ in range(self._rng.randint(1, 2))]
            schema |= {"uniqueItems": True, "items": {"anyOf": parts} if len(parts) > 1 else parts[0]}
        low = self._rng.choice(COUNTS[:6])
        if self._chance(0.5):
            schema["minItems"] = low
        if self._chance(0.7):
            schema["maxItems"] = low + self._rng.randint(0, 2)
        return schema
