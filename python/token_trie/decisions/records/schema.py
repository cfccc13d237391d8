"""Reads a JSON Schema into a plan; what it has that cannot be kept to is refused by name and place."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

from token_trie.decisions.records.grammar import ARRAY, OBJECT, VALUE
from token_trie.decisions.records.keywords import SAYING, UnkeptError, check_known, count, kinds_of, refuse
from token_trie.decisions.records.plan import Array, Choice, Field, Map, Node, Object, Slot, String
from token_trie.decisions.records.scalars import read_number, read_string
from token_trie.decisions.records.unions import check_exclusive, make_union
from token_trie.decisions.records.values import choices_of, matching, read_values

MAX_DEPTH = 16
"""References inside each other that are followed; what would go on deeper is left out where it may be."""
MAX_ITEMS = 64
"""Items of a list, and keys of a map, that does not say how many it has at most."""
ANYTHING = Slot(VALUE, '{["-0123456789tfn')
"""A value of any kind."""
_MOST_IGNORED = 100
_OF_NAMES = {"type", "enum", "const", "pattern", "minLength", "maxLength", "format"}


def read_schema(schema: Any, ignored: list[str] | None = None) -> Node:
    """Read a schema. What no answer can be kept to is left out where there is a list for it, and added to that.

    Raises
    ------
    ArgumentError
        It is none, something in it is not supported, or nothing can be valid by it; with a JSON pointer to the place.
    """
    try:
        written = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        written.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse("", f"no JSON: {error}") from error
    if isinstance(schema, dict) and not schema:
        raise refuse("", "empty: it says nothing of the record")
    while True:
        try:
            node = _Reader(schema).read(schema, "", 0)
        except RecursionError as error:
            raise refuse("", "nested too deep") from error
        except UnkeptError as error:
            if ignored is None or len(ignored) == _MOST_IGNORED:
                raise
            schema = json.loads(written) if not ignored else schema
            if not _leave_out(schema, error.pointer):
                raise
            ignored.append(str(error))
            continue
        if node is None:
            raise refuse("", f"nothing can be written: every way leads through more than {MAX_DEPTH} references")
        return node


def _leave_out(schema: Any, pointer: str) -> bool:
    """Leave a keyword out, whether there is one; schemas of which just one may hold become some of which any may."""
    path = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    if path[-2:-1] == ["oneOf"]:
        path.pop()
    for part in path[:-1]:
        schema = schema[int(part)] if isinstance(schema, list) else schema.get(part, {})
    if not isinstance(schema, dict) or path[-1] not in schema:
        return False
    options = schema.pop(path[-1])
    if path[-1] == "oneOf":
        schema["anyOf"] = options
    return True


def is_false(schema: Any) -> bool:
    """Whether a schema says plainly that nothing is valid."""
    return schema is False or (isinstance(schema, dict) and "not" in schema and schema["not"] in (True, {}))


class _Reader:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._draft = str(root.get("$schema", "2020-12")) if isinstance(root, dict) else "2020-12"
        self._known: dict[tuple[str, int], Node | None] = {}
        self._followed: tuple[str, ...] = ()  # references that led to the value that is read

    def read(self, schema: Any, pointer: str, depth: int) -> Node | None:
        """Read a part; None where all of it would be too deep."""
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            why = "nothing is valid" if schema is False else f"{type(schema).__name__} where a schema belongs"
            raise refuse(pointer, why)
        check_known(schema, pointer)
        if is_false(schema):
            raise refuse(pointer, "nothing is valid")
        if schema.get("not", False) is not False and not is_false(schema["not"]):
            raise UnkeptError(f"{pointer}/not", "'not' is not supported")
        if pointer and "$id" in schema:
            raise refuse(f"{pointer}/$id", "below the root it is not supported, as references begin at it")
        if "$ref" in schema:
            return self._read_ref(schema, pointer, depth)
        if "allOf" in schema:
            parts = schema["allOf"]
            others = schema.keys() & SAYING - {"allOf", "not"}
            if not isinstance(parts, list) or len(parts) != 1 or others:
                raise UnkeptError(f"{pointer}/allOf", "other than around one schema alone it is not supported")
            return self.read(parts[0], f"{pointer}/allOf/0", depth)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._read_union(schema, keyword, pointer, depth)
        if "const" in schema or "enum" in schema:
            return read_values(schema, pointer)
        kinds = kinds_of(schema, pointer)
        if not kinds:
            return ANYTHING
        nodes = [self._read_kind(schema, kind, pointer, depth) for kind in kinds]
        return _union(nodes, pointer)

    def _read_inner(self, schema: Any, pointer: str, depth: int) -> Node | None:
        """Read the schema of a value inside the one that is read."""
        followed, self._followed = self._followed, ()
        node = self.read(schema, pointer, depth)
        self._followed = followed
        return node

    def _read_ref(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        ref = schema["$ref"]
        if others := schema.keys() & SAYING - {"$ref", "not"}:
            raise UnkeptError(f"{pointer}/{min(others)}", "beside $ref it is not supported")
        found = self._find(ref, pointer)
        if ref in self._followed:
            raise refuse(f"{pointer}/$ref", f"{ref!r} leads back to itself")
        if depth >= MAX_DEPTH:
            return None
        key = ref, depth + 1
        if key not in self._known:
            followed, self._followed = self._followed, (*self._followed, ref)
            self._known[key] = self.read(found, unquote(ref.removeprefix("#")), depth + 1)
            self._followed = followed
        return self._known[key]

    def _find(self, ref: Any, pointer: str) -> Any:
        if not isinstance(ref, str) or not re.match(r"#(/|$)", ref):
            raise refuse(f"{pointer}/$ref", f"{ref!r} is not supported; places of the same schema (#/…) are")
        found = self._root
        for part in unquote(ref[1:]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and re.fullmatch("[0-9]{1,9}", name) and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise refuse(f"{pointer}/$ref", f"{ref!r} leads nowhere")
            if isinstance(found, dict) and isinstance(found.get("$id"), str):
                raise refuse(f"{pointer}/$ref", f"{ref!r} leads to an $id, where references begin")
        return found

    def _read_union(self, schema: dict[str, Any], keyword: str, pointer: str, depth: int) -> Node | None:
        options = schema[keyword]
        if not isinstance(options, list) or not options:
            raise refuse(f"{pointer}/{keyword}", "no schemas")
        if schema.keys() & SAYING - {keyword, "type", "not"}:
            raise UnkeptError(f"{pointer}/{keyword}", "beside other keywords it is not supported")
        if "type" in schema:
            kinds = set(kinds_of(schema, pointer))
            kinds |= {"integer"} if "number" in kinds else set()
            for i, option in enumerate(options):
                if is_false(option):
                    continue
                says_kinds = isinstance(option, dict) and ("type" in option or not option.keys() & {"enum", "const"})
                own = kinds_of(option, f"{pointer}/{keyword}/{i}") if says_kinds else []
                if not own or not kinds.issuperset(own):
                    raise UnkeptError(
                        f"{pointer}/type", f"beside {keyword} it is not supported where /{i} says another"
                    )
        nodes = [
            self.read(option, f"{pointer}/{keyword}/{i}", depth)
            for i, option in enumerate(options)
            if not is_false(option) or all(map(is_false, options))
        ]
        if keyword == "oneOf":
            check_exclusive(options, pointer, self._find)
        return _union(nodes, pointer)

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
        needed = set(required)
        more = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        names = schema.get("propertyNames", True)
        if not properties and isinstance(names, dict) and isinstance(names.get("enum"), list):
            properties = {name: more for name in names["enum"] if isinstance(name, str)}
        if properties is None and not required:
            _check_names(schema, {}, needed, pointer)
            return self._read_map(schema, more, pointer, depth)
        if more is False and needed - set(properties or {}):
            raise refuse(f"{pointer}/required", f"{min(needed - set(properties or {}))!r} is no property")
        pointers = {name: f"{pointer}/properties/{_escape(name)}" for name in properties or {}}
        parts = dict(properties or {}) | {name: more for name in required if name not in (properties or {})}
        _check_names(schema, parts, needed, pointer)
        fields = []
        for name, part in parts.items():
            is_required = name in needed
            if is_false(part) and not is_required:
                continue
            node = self._read_inner(part, pointers.get(name, f"{pointer}/additionalProperties"), depth)
            if node is None and is_required:
                return None
            if node is not None:
                fields.append(Field(name, node, is_required))
        n_required = sum(field.is_required for field in fields)
        if count(schema, "minProperties", pointer, 0) > n_required:
            raise UnkeptError(f"{pointer}/minProperties", "above the number of required properties it is not supported")
        if count(schema, "maxProperties", pointer, len(fields)) < len(fields):
            raise UnkeptError(f"{pointer}/maxProperties", "below the number of properties it is not supported")
        return Object(tuple(fields))

    def _read_map(self, schema: dict[str, Any], more: Any, pointer: str, depth: int) -> Node | None:
        low = count(schema, "minProperties", pointer, 0)
        high = count(schema, "maxProperties", pointer, MAX_ITEMS)
        if low > 1:
            raise UnkeptError(f"{pointer}/minProperties", "more than 1 of free keys is not supported; one may repeat")
        if low > high or (more is False and low):
            raise refuse(f"{pointer}/minProperties", f"{low} at least, and fewer at most")
        names, patterns = schema.get("propertyNames", True), schema.get("patternProperties", {})
        said = {k: v for k, v in names.items() if k in SAYING} if isinstance(names, dict) else {}
        if said.keys() - _OF_NAMES or len(patterns) > 1 or (patterns and "pattern" in said):
            keyword = "patternProperties" if patterns else "propertyNames"
            raise UnkeptError(f"{pointer}/{keyword}", "other than one pattern for all keys it is not supported")
        at = "additionalProperties"
        for pattern, part in patterns.items():
            said, more, at = {**said, "pattern": pattern}, part, f"patternProperties/{_escape(pattern)}"
        if more is True and not low and "maxProperties" not in schema and not said.keys() - {"type"}:
            return Slot(OBJECT, "{")
        node = None if is_false(more) or high == 0 else self._read_inner(more, f"{pointer}/{at}", depth)
        if node is None:
            return None if low else Object(())
        length = min(count(said, "maxLength", pointer, MAX_ITEMS), MAX_ITEMS)
        key = read_string({**said, "maxLength": length}, f"{pointer}/propertyNames")
        if not isinstance(key, String):
            raise refuse(f"{pointer}/propertyNames", "no key is of no character")
        return Map(key, node, min_items=low, max_items=high)

    def _read_array(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        low = count(schema, "minItems", pointer, 0)
        heads, pointer_to_items = schema.get("prefixItems", []), f"{pointer}/items"
        pointer_to_heads, items = f"{pointer}/prefixItems", schema.get("items", schema.get("unevaluatedItems", True))
        if not isinstance(schema.get("uniqueItems", False), bool):
            raise refuse(f"{pointer}/uniqueItems", f"{schema['uniqueItems']!r} is neither true nor false")
        if "prefixItems" in schema and "2020-12" not in self._draft:
            raise UnkeptError(f"{pointer}/prefixItems", f"{self._draft} does not know it")
        if isinstance(items, list):  # as before draft 2020-12
            heads, pointer_to_heads, items = items, pointer_to_items, schema.get("additionalItems", True)
            pointer_to_items = f"{pointer}/additionalItems"
        if not isinstance(heads, list) or ("prefixItems" in schema and not heads):
            raise refuse(f"{pointer}/prefixItems", "no list of schemas")
        is_free = not heads and items is True and not low and "maxItems" not in schema
        if is_free and not schema.get("uniqueItems"):
            return Slot(ARRAY, "[")
        nodes = [self._read_inner(head, f"{pointer_to_heads}/{i}", depth) for i, head in enumerate(heads)]
        deep = next((i for i, node in enumerate(nodes) if node is None), None)
        item = None if items is False or deep is not None else self._read_inner(items, pointer_to_items, depth)
        kinds = [node for node in nodes[:deep] if node is not None]
        most = len(kinds) if item is None else max(low, MAX_ITEMS)
        given = count(schema, "maxItems", pointer, most)
        high = min(most, given)
        if low > given:
            raise refuse(f"{pointer}/minItems", f"{low} at least and {given} at most")
        if low > high:
            return None
        if schema.get("uniqueItems") is not True or high <= 1:
            return Array(tuple(kinds), item, False, min_items=low, max_items=high)
        choices = None if kinds else choices_of(item)
        if choices is None:
            raise UnkeptError(f"{pointer}/uniqueItems", "of items that are no choice among values it is not supported")
        n = len(choices.values)
        if low > n:
            raise refuse(f"{pointer}/minItems", f"{low} different ones of {n}")
        return Array((), choices, True, min_items=low, max_items=min(high, n))


def _check_names(schema: dict[str, Any], parts: dict[str, Any], needed: set[str], pointer: str) -> None:
    """Raise ArgumentError where keys that may be written do not keep to what is said of all, or of each other."""
    names = schema.get("propertyNames", True)
    if isinstance(names, dict) and names.keys() & SAYING and parts:
        if names.keys() & SAYING - _OF_NAMES:
            raise UnkeptError(f"{pointer}/propertyNames", "other than pattern, lengths and enum is not supported")
        for name in parts:
            read_values(names | {"const": name}, f"{pointer}/propertyNames")
    for keyword in ("patternProperties", "dependentRequired"):
        if not isinstance(schema.get(keyword, {}), dict):
            raise refuse(f"{pointer}/{keyword}", f"{type(schema[keyword]).__name__} where an object belongs")
    for pattern in schema.get("patternProperties", {}):
        if matching(list(parts), pattern, f"{pointer}/patternProperties"):
            raise UnkeptError(f"{pointer}/patternProperties", f"{pattern!r} of listed properties is not supported")
    for name, others in schema.get("dependentRequired", {}).items():
        if name in parts and not (isinstance(others, list) and all(other in needed for other in others)):
            raise UnkeptError(f"{pointer}/dependentRequired", "of properties that are optional it is not supported")


def _union(nodes: list[Node | None], pointer: str) -> Node | None:
    """Return one node for those that are not too deep."""
    some = [node for node in nodes if node is not None]
    return make_union(some, pointer) if some else None


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
