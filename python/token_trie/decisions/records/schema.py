"""Reads a JSON Schema into a plan; what it has that cannot be kept to is refused by name and place."""

from __future__ import annotations

import json
import re
from itertools import combinations, pairwise
from typing import Any

from llama_cpp.llama_grammar import RESERVED_NAMES

from token_trie.decisions.records import grammar
from token_trie.decisions.records.keywords import (
    KINDS,
    NOTES,
    OF_KIND,
    bounds,
    check_known,
    count,
    is_kind,
    kinds_of,
    refuse,
)
from token_trie.decisions.records.layout import Layout, Place, Whole, ways
from token_trie.decisions.records.plan import Array, Choice, Field, Map, Node, Object, Slot, String, Union
from token_trie.decisions.records.scalars import read_number, read_string

MAX_DEPTH = 16
"""References inside each other that are followed; what would go on deeper is left out where it may be."""
MAX_ITEMS = 64
"""Items of a list, and keys of a map, that does not say how many it has at most."""
ANYTHING = '{["-0123456789tfn'
"""Characters that JSON values begin with."""


def read_schema(schema: Any) -> Node:
    """Read a schema.

    Raises
    ------
    ArgumentError
        It is none, something in it is not supported, or nothing can be valid by it; with a JSON pointer to the place.
    """
    try:
        json.dumps(schema, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse("", f"no JSON: {error}") from error
    if isinstance(schema, dict) and not schema:
        raise refuse("", "empty: it says nothing of the record")
    try:
        node = _Reader(schema).read(schema, "", 0)
    except RecursionError as error:
        raise refuse("", "nested too deep") from error
    if node is None:
        raise refuse("", f"nothing can be written: every way leads through more than {MAX_DEPTH} references")
    return node


class _Reader:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[tuple[str, int], Node | None] = {}
        self._under_way: set[tuple[str, int]] = set()

    def read(self, schema: Any, pointer: str, depth: int) -> Node | None:
        """Read a part; None where all of it would be too deep."""
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            why = "nothing is valid" if schema is False else f"{type(schema).__name__} where a schema belongs"
            raise refuse(pointer, why)
        check_known(schema, pointer)
        if "$ref" in schema:
            return self._read_ref(schema, pointer, depth)
        if "allOf" in schema:
            parts = schema["allOf"]
            others = schema.keys() - NOTES - {"allOf"}
            if not isinstance(parts, list) or len(parts) != 1 or others:
                raise refuse(f"{pointer}/allOf", "other than around one schema alone it is not supported")
            return self.read(parts[0], f"{pointer}/allOf/0", depth)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._read_union(schema, keyword, pointer, depth)
        if "const" in schema or "enum" in schema:
            return self._read_values(schema, pointer)
        kinds = kinds_of(schema, pointer)
        if not kinds:
            return _any_value()
        nodes = [self._read_kind(schema, kind, pointer, depth) for kind in kinds]
        return self._union([node for node in nodes if node is not None], schema, pointer)

    def _read_ref(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        ref = schema["$ref"]
        if schema.keys() - NOTES - {"$ref"}:
            raise refuse(f"{pointer}/$ref", "beside other keywords it is not supported")
        if depth >= MAX_DEPTH:
            return None
        key = str(ref), depth + 1
        if key not in self._known:
            self._known[key] = self.read(self._find(ref, pointer), str(ref).removeprefix("#"), depth + 1)
        return self._known[key]

    def _find(self, ref: Any, pointer: str) -> Any:
        if not isinstance(ref, str) or not re.match(r"#(/|$)", ref):
            raise refuse(f"{pointer}/$ref", f"{ref!r} is not supported; places of the same schema (#/…) are")
        found = self._root
        for part in ref[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise refuse(f"{pointer}/$ref", f"{ref!r} leads nowhere")
        return found

    def _read_values(self, schema: dict[str, Any], pointer: str) -> Node:
        keyword = "const" if "const" in schema else "enum"
        if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
            raise refuse(f"{pointer}/enum", "no values")
        values = [schema["const"]] if keyword == "const" else schema["enum"]
        step = schema.get("multipleOf", 1)
        if not isinstance(step, (int, float)) or isinstance(step, bool) or step <= 0:
            raise refuse(f"{pointer}/multipleOf", f"{step!r} is no number above 0")
        try:
            re.compile(schema.get("pattern", ""))
        except (TypeError, re.error) as error:
            raise refuse(f"{pointer}/pattern", str(error)) from error
        kinds = kinds_of(schema, pointer) if "type" in schema else list(KINDS)
        kept = [v for v in values if any(is_kind(v, kind) for kind in kinds) and _is_within(v, schema, pointer)]
        if "const" in schema and "enum" in schema:
            kept = [v for v in kept if v in schema["enum"]]
        if not kept:
            raise refuse(f"{pointer}/{keyword}", "no value keeps to the keywords beside it")
        return Choice(tuple({json.dumps(v, sort_keys=True): v for v in kept}.values()))

    def _read_union(self, schema: dict[str, Any], keyword: str, pointer: str, depth: int) -> Node | None:
        options = schema[keyword]
        if not isinstance(options, list) or not options:
            raise refuse(f"{pointer}/{keyword}", "no schemas")
        if schema.keys() - NOTES - {keyword, "type"}:
            raise refuse(f"{pointer}/{keyword}", "beside other keywords it is not supported")
        if "type" in schema:
            kinds = set(kinds_of(schema, pointer))
            kinds |= {"integer"} if "number" in kinds else set()
            for i, option in enumerate(options):
                own = kinds_of(option, pointer) if isinstance(option, dict) else []
                if not own or not kinds.issuperset(own):
                    raise refuse(f"{pointer}/type", f"beside {keyword} it is not supported where /{i} says another")
        nodes = [self.read(option, f"{pointer}/{keyword}/{i}", depth) for i, option in enumerate(options)]
        if keyword == "oneOf":
            self._check_exclusive(options, pointer)
        return self._union([node for node in nodes if node is not None], schema, pointer)

    def _check_exclusive(self, options: list[Any], pointer: str) -> None:
        for (i, a), (j, b) in combinations(enumerate(options), 2):
            if not self._exclude(a, b, pointer, 0):
                raise refuse(f"{pointer}/oneOf/{j}", f"may be valid together with /{i}; tell them apart, or use anyOf")

    def _exclude(self, a: Any, b: Any, pointer: str, depth: int) -> bool:
        """Whether no value is valid by both, as far as kinds and constants tell."""
        for _ in range(MAX_DEPTH):
            a, b = (self._find(s["$ref"], pointer) if isinstance(s, dict) and "$ref" in s else s for s in (a, b))
        if not (isinstance(a, dict) and isinstance(b, dict)) or depth > MAX_DEPTH:
            return False
        values = [[s["const"]] if "const" in s else s.get("enum") for s in (a, b)]
        if isinstance(values[0], list) and isinstance(values[1], list):
            return not any(x == y for x in values[0] for y in values[1])
        kinds = []
        for schema, own in zip((a, b), values, strict=True):
            named = schema.get("type", [])
            named = [kind for kind in KINDS if any(is_kind(v, kind) for v in own)] if own and not named else named
            listed = [named] if isinstance(named, str) else named
            kinds.append({"number" if kind == "integer" else kind for kind in listed})
        if kinds[0] and kinds[1] and not kinds[0] & kinds[1]:
            return True
        fields = [s.get("properties", {}) if s.get("type") == "object" else {} for s in (a, b)]
        both = set(a.get("required", [])) & set(b.get("required", [])) & fields[0].keys() & fields[1].keys()
        return any(self._exclude(fields[0][name], fields[1][name], pointer, depth + 1) for name in both)

    def _union(self, nodes: list[Node], schema: dict[str, Any], pointer: str) -> Node | None:
        if len(nodes) <= 1:
            return nodes[0] if nodes else None
        clash = _clash(nodes)
        if clash is None:
            return Union(tuple(nodes))
        definitions = self._root.get("$defs", {})
        if "anyOf" in schema and _is_converted({"anyOf": schema["anyOf"]}, definitions, set()):
            return grammar.any_of({"anyOf": schema["anyOf"], "$defs": definitions}, ANYTHING)
        raise refuse(pointer, f"two ways to go on begin alike, with {clash}; let the first field tell them apart")

    def _read_kind(self, schema: dict[str, Any], kind: str, pointer: str, depth: int) -> Node | None:
        if kind == "null":
            return Choice((None,))
        if kind == "boolean":
            return Choice((True, False))
        if kind == "string":
            return read_string(schema, pointer)
        if kind == "array":
            return self._read_array(schema, pointer, depth)
        if kind == "object":
            return self._read_object(schema, pointer, depth)
        return read_number(schema, pointer, is_integer=kind == "integer")

    def _read_object(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        properties, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(properties, (dict, type(None))):
            raise refuse(f"{pointer}/properties", f"{type(properties).__name__} where an object belongs")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise refuse(f"{pointer}/required", "no list of names")
        more = schema.get("additionalProperties", True)
        if properties is None and not required:
            return self._read_map(schema, more, pointer, depth)
        if more is False and set(required) - set(properties or {}):
            raise refuse(f"{pointer}/required", f"{sorted(set(required) - set(properties or {}))[0]!r} is no property")
        places = {name: f"{pointer}/properties/{_escape(name)}" for name in properties or {}}
        parts = dict(properties or {}) | {name: more for name in required if name not in (properties or {})}
        fields = []
        for name, part in parts.items():
            is_required = name in required
            if part is False and not is_required:
                continue
            node = self.read(part, places.get(name, f"{pointer}/additionalProperties"), depth)
            if node is None and is_required:
                return None
            if node is not None:
                fields.append(Field(name, node, is_required))
        n_required = sum(field.is_required for field in fields)
        if count(schema, "minProperties", pointer, 0) > n_required:
            raise refuse(f"{pointer}/minProperties", "above the number of required properties it is not supported")
        if count(schema, "maxProperties", pointer, len(fields)) < len(fields):
            raise refuse(f"{pointer}/maxProperties", "below the number of properties it is not supported")
        return Object(tuple(fields))

    def _read_map(self, schema: dict[str, Any], more: Any, pointer: str, depth: int) -> Node | None:
        low = count(schema, "minProperties", pointer, 0)
        high = count(schema, "maxProperties", pointer, MAX_ITEMS)
        if low > 1:
            raise refuse(f"{pointer}/minProperties", "more than 1 of free keys is not supported, as one may come again")
        if low > high or (more is False and low):
            raise refuse(f"{pointer}/minProperties", f"{low} at least, and fewer at most")
        if more is True and not low and "maxProperties" not in schema:
            return grammar.any_of({"type": "object"}, "{")
        node = None if more is False or high == 0 else self.read(more, f"{pointer}/additionalProperties", depth)
        if node is None:
            return None if low else Object(())
        key = read_string({"type": "string", "maxLength": MAX_ITEMS}, pointer)
        assert isinstance(key, String)
        return Map(key, node, low, high)

    def _read_array(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        low = count(schema, "minItems", pointer, 0)
        heads, place, items = schema.get("prefixItems", []), f"{pointer}/items", schema.get("items", True)
        if isinstance(items, list):
            raise refuse(place, "a list of schemas is not supported; prefixItems is")
        if not isinstance(heads, list):
            raise refuse(f"{pointer}/prefixItems", "no list of schemas")
        is_free = not heads and "items" not in schema and not low and "maxItems" not in schema
        if is_free and not schema.get("uniqueItems"):
            return grammar.any_of({"type": "array"}, "[")
        nodes = [self.read(head, f"{pointer}/prefixItems/{i}", depth) for i, head in enumerate(heads)]
        deep = next((i for i, node in enumerate(nodes) if node is None), None)
        item = None if items is False or deep is not None else self.read(items, place, depth)
        kinds = [node for node in nodes[:deep] if node is not None]
        most = len(kinds) if item is None else max(low, MAX_ITEMS)
        given = count(schema, "maxItems", pointer, most)
        high = min(most, given)
        if low > given:
            raise refuse(f"{pointer}/minItems", f"{low} at least and {given} at most")
        if low > high:
            return None
        unique = schema.get("uniqueItems") is True and high > 1
        if unique:
            n = _n_different(kinds, item, pointer)
            if low > n:
                raise refuse(f"{pointer}/minItems", f"{low} different ones of {n}")
            high = min(high, n)
        return Array(tuple(kinds), item, low, high, unique)


def _n_different(heads: list[Node], item: Node | None, pointer: str) -> int:
    options = item.options if isinstance(item, Union) else (item,)
    if heads or not all(isinstance(option, Choice) for option in options):
        raise refuse(f"{pointer}/uniqueItems", "of items that are no choice among values it is not supported")
    return sum(len(option.values) for option in options if isinstance(option, Choice))


def _clash(options: list[Node]) -> str | None:
    """Return the beginning that two of the ways have, by which they cannot be told apart."""
    found = [(i, way) for i, node in enumerate(options) for way in ways(Whole(node, Place()), Layout())]
    slots = {i: way.slot for i, way in found if way.slot is not None}
    texts = sorted((way.text, i, bool(way.rests)) for i, way in found if way.slot is None)
    if len(slots) > 1:
        return "free values"
    for slot in slots.values():
        for text, _, _ in texts:
            if text[0] in slot.begins_with:
                return text
    for (a, i, goes_on), (b, j, goes_on_too) in pairwise(texts):
        if i != j and b.startswith(a) and (goes_on or (a == b and goes_on_too)):
            return a
    return None


_PLAIN = {"type", "enum", "const", "anyOf", "$ref", "properties", "required", "items", "minItems", "maxItems"}


def _is_converted(schema: Any, definitions: Any, seen: set[str]) -> bool:
    """Whether the converter of llama-cpp-python keeps to all that a schema says, which is one that could be read."""
    if not isinstance(schema, dict) or not schema.keys() - NOTES:
        return False
    more = {"additionalProperties"} if schema.get("additionalProperties") is False else set()
    if schema.keys() - NOTES - _PLAIN - more or not isinstance(schema.get("type", ""), str):
        return False
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        is_new = name not in seen
        seen.add(name)
        return name not in RESERVED_NAMES and not (
            is_new and not _is_converted(definitions.get(name), definitions, seen)
        )
    if max(schema.get("minItems", 0), schema.get("maxItems", 0)) > MAX_ITEMS:
        return False
    values = schema.get("enum", [schema.get("const")])
    if not all(isinstance(v, (str, int, type(None))) and "\\" not in json.dumps(v, ensure_ascii=False) for v in values):
        return False
    if schema.get("type") == "object" and not schema.get("properties"):
        return False
    if not set(schema.get("required", [])) <= set(schema.get("properties", {})):
        return False
    parts = [*schema.get("anyOf", []), *schema.get("properties", {}).values()]
    parts += [schema["items"]] if "items" in schema else []
    return all(_is_converted(part, definitions, seen) for part in parts)


def _any_value() -> Slot:
    return Slot("value", grammar.any_of({}, "").rules, ANYTHING)


def _is_within(value: Any, schema: dict[str, Any], pointer: str) -> bool:
    """Whether a value keeps to what its schema says beside it."""
    if isinstance(value, str):
        high = count(schema, "maxLength", pointer, len(value))
        within = count(schema, "minLength", pointer, 0) <= len(value) <= high
        return within and ("pattern" not in schema or re.search(schema["pattern"], value) is not None)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high_, open_low, open_high = bounds(schema, pointer)
        over = low is None or value > low or (value == low and not open_low)
        under = high_ is None or value < high_ or (value == high_ and not open_high)
        step = schema.get("multipleOf")
        return over and under and (step is None or value % step == 0)
    rest = OF_KIND["object"] | OF_KIND["array"]
    if isinstance(value, (dict, list)) and schema.keys() & rest:
        raise refuse(pointer, f"{', '.join(sorted(schema.keys() & rest))}: beside enum or const not supported")
    return True


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
