"""Read a JSON Schema into nodes; unsupported keywords are refused by name and position."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, pairwise
from typing import Any
from urllib.parse import unquote

from token_trie.records.gbnf import MAX_STATES, too_many
from token_trie.records.keywords import (
    KINDS,
    VALIDATING,
    KeywordError,
    check_known,
    check_no_example,
    count,
    is_false,
    kinds_of,
    matching,
    read_number,
    read_string,
    read_values,
    refuse,
)
from token_trie.records.nodes import (
    ARRAY,
    OBJECT,
    VALUE,
    Array,
    ChoiceNode,
    Continuation,
    Field,
    Layout,
    Map,
    Node,
    Object,
    PendingValue,
    Slot,
    String,
    Union,
    choices_of,
    continuations,
    grammar_of,
    inside,
    types_in,
)
from token_trie.records.one_of import Exclusion

_MAX_OPTIONS = 100_000


def make_union(given: list[Node | None], pointer: str) -> Node | None:
    """Return one node for several: a union if its first characters distinguish them, else one grammar.

    Nodes that are nested too deep are None; so is the result if all are.
    """
    nodes = [node for node in given if node is not None]
    if len(nodes) < 2:
        return nodes[0] if nodes else None
    union = Union(tuple(nodes))
    if union.n_options > _MAX_OPTIONS:
        raise refuse(pointer, f"{union.n_options:,} alternatives, more than {_MAX_OPTIONS:,}")
    found = [(i, each) for i, node in enumerate(nodes) for each in continuations(PendingValue(node), Layout())]
    clash = _clash(found)
    if clash is None:
        return union
    try:
        firsts = sorted(set("".join(each.begins_with for _, each in found)))
        return Slot(grammar_of(union), "".join(firsts), types_in(union))
    except ValueError as error:
        why = f"two ways to go on begin alike, with {clash}, and no grammar says {error}"
        raise refuse(pointer, f"{why}; let the first field tell them apart") from error


def _clash(found: list[tuple[int, Continuation]]) -> str | None:
    """Return a common beginning of two continuations that makes them indistinguishable, or None."""
    slots = {i: each.slot for i, each in found if each.slot is not None}
    texts = sorted((each.text, i, bool(each.pending)) for i, each in found if each.slot is None)
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


MAX_DEPTH = 16
"""Maximum depth of nested references; deeper optional parts are left out."""
MAX_ITEMS = 64
"""Maximum size of a list or map that does not declare one."""
ANYTHING = Slot(VALUE, '{["-0123456789tfn', frozenset(KINDS))
"""Any JSON value."""
_MAX_IGNORED = 100
_NAME_KEYWORDS = {"type", "enum", "const", "pattern", "minLength", "maxLength", "format"}


def read_schema(schema: Any, ignored: list[str] | None = None) -> Node:
    """Read a schema. With a list `ignored`, unsupported keywords are left out and reported there.

    ArgumentError, with a JSON pointer to the position, if it is invalid, not supported, or allows no value.
    """
    return read_measured(schema, ignored)[0]


def read_measured(schema: Any, ignored: list[str] | None = None) -> tuple[Node, int]:
    """Read a schema as `read_schema` does; return also the states of its patterns."""
    try:
        written = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        written.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse("", f"no JSON: {error}") from error
    if isinstance(schema, dict) and not schema:
        raise refuse("", "empty: it says nothing of the record")
    while True:
        reader = _SchemaReader(schema, ignored is None)
        try:
            node = reader.read(schema, "", 0)
        except RecursionError as error:
            raise refuse("", "nested too deep") from error
        except KeywordError as error:
            if ignored is None or len(ignored) == _MAX_IGNORED:
                raise
            schema = json.loads(written) if not ignored else schema
            if not _leave_out(schema, error.pointer):
                raise
            ignored.append(str(error))
            continue
        if node is None:
            raise refuse("", f"nothing can be written: every way leads through more than {MAX_DEPTH} references")
        return node, reader.n_states


def _leave_out(schema: Any, pointer: str) -> bool:
    """Remove a keyword; return whether it existed. A oneOf becomes an anyOf."""
    path = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    if path[-2:-1] == ["oneOf"] and path[-1].isdecimal():
        path.pop()
    for part in path[:-1]:
        schema = schema[int(part)] if isinstance(schema, list) else schema.get(part, {})
    if not isinstance(schema, dict) or path[-1] not in schema:
        return False
    options = schema.pop(path[-1])
    if path[-1] == "oneOf":
        schema["anyOf"] = options
    return True


class _SchemaReader:
    def __init__(self, root: Any, is_strict: bool) -> None:
        self._root, self._is_strict = root, is_strict
        self._draft = str(root.get("$schema", "2020-12")) if isinstance(root, dict) else "2020-12"
        self._known: dict[tuple[str, int], Node | None] = {}
        self._unread: set[int] = set()
        self._exclusion = Exclusion(lambda ref: self._find(ref, ""), self._unread)
        self.n_states = 0
        self._followed: tuple[str, ...] = ()  # references followed to the current value

    def read(self, schema: Any, pointer: str, depth: int) -> Node | None:
        """Read a subschema; None if every value is nested too deep."""
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            why = "nothing is valid" if schema is False else f"must be a schema, not {type(schema).__name__}"
            raise refuse(pointer, why)
        check_known(schema, pointer)
        if is_false(schema):
            raise refuse(pointer, "nothing is valid")
        if schema.get("not", False) is not False and not is_false(schema["not"]):
            raise KeywordError(f"{pointer}/not", "'not' is not supported")
        if pointer and "$id" in schema:
            raise refuse(f"{pointer}/$id", "below the root it is not supported, as references begin at it")
        if "$ref" in schema:
            return self._read_ref(schema, pointer, depth)
        if "allOf" in schema:
            parts = schema["allOf"]
            others = schema.keys() & VALIDATING - {"allOf", "not"}
            if not isinstance(parts, list) or len(parts) != 1 or others:
                raise KeywordError(f"{pointer}/allOf", "other than around one schema alone it is not supported")
            return self.read(parts[0], f"{pointer}/allOf/0", depth)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._read_union(schema, keyword, pointer, depth)
        if "const" in schema or "enum" in schema:
            return read_values(schema, pointer)
        kinds = kinds_of(schema, pointer)
        if not kinds:
            if self._is_strict:
                check_no_example(schema, pointer)
            return ANYTHING
        nodes = [self._read_kind(schema, kind, pointer, depth) for kind in kinds]
        return make_union(nodes, pointer)

    @contextmanager
    def _following(self, references: tuple[str, ...]) -> Iterator[None]:
        before, self._followed = self._followed, references
        try:
            yield
        finally:
            self._followed = before

    def _read_inner(self, schema: Any, pointer: str, depth: int) -> Node | None:
        """Read the schema of a nested value."""
        with self._following(()):
            return self.read(schema, pointer, depth)

    def _read_ref(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        ref = schema["$ref"]
        if others := schema.keys() & VALIDATING - {"$ref", "not"}:
            raise KeywordError(f"{pointer}/{min(others)}", "beside $ref it is not supported")
        found = self._find(ref, pointer)
        if ref in self._followed:
            raise refuse(f"{pointer}/$ref", f"{ref!r} leads back to itself")
        if depth >= MAX_DEPTH:
            return None
        key = ref, depth + 1
        if key not in self._known:
            with self._following((*self._followed, ref)):
                self._known[key] = self.read(found, unquote(ref.removeprefix("#")), depth + 1)
        return self._known[key]

    def _find(self, ref: Any, pointer: str) -> Any:
        """Return the part of the schema that a ``$ref`` at `pointer` names; ArgumentError if it names none."""
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
        if schema.keys() & VALIDATING - {keyword, "type", "not"}:
            raise KeywordError(f"{pointer}/{keyword}", "beside other keywords it is not supported")
        nodes, unsupported = {}, None
        for i, option in enumerate(options):
            if is_false(option) and not all(map(is_false, options)):
                continue
            try:
                nodes[i] = self.read(option, f"{pointer}/{keyword}/{i}", depth)
            except KeywordError as error:
                if keyword == "oneOf" or not self._is_strict:
                    raise
                unsupported = error  # all that the others write is valid
                self._unread.add(id(option))
        if unsupported is not None and all(node is None or types_in(node) == {"null"} for node in nodes.values()):
            raise unsupported
        allowed = {*kinds_of(schema, pointer)} if "type" in schema else {*KINDS}
        allowed |= {"integer"} if "number" in allowed else set()
        for i, node in nodes.items():
            if node is not None and not types_in(node) <= allowed:
                raise KeywordError(f"{pointer}/type", f"beside {keyword} it is not supported where /{i} says another")
        for i, j in combinations(nodes, 2) if keyword == "oneOf" else ():
            for node, other in ((nodes[i], options[j]), (nodes[j], options[i])):
                if node is not None and not self._exclusion.is_proven(node, other):
                    raise KeywordError(
                        f"{pointer}/oneOf/{j}", f"may be valid together with /{i}; tell them apart, or use anyOf"
                    )
        return make_union(list(nodes.values()), pointer)

    def _read_kind(self, schema: dict[str, Any], kind: str, pointer: str, depth: int) -> Node | None:
        if kind in ("null", "boolean"):
            return ChoiceNode((None,) if kind == "null" else (True, False))
        if kind == "string":
            return self._read_string(schema, pointer)
        if kind == "array":
            return self._read_array(schema, pointer, depth)
        if kind == "object":
            return self._read_object(schema, pointer, depth)
        return read_number(schema, pointer, is_integer=kind == "integer")

    def _read_string(self, schema: dict[str, Any], pointer: str) -> Node:
        node = read_string(schema, pointer)
        self.n_states += node.n_states if isinstance(node, String) else 0
        if self.n_states > MAX_STATES:
            keyword = "pattern" if "pattern" in schema else "format"
            raise KeywordError(f"{pointer}/{keyword}", f"the patterns up to here have {too_many(self.n_states)}")
        return node

    def _read_object(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        properties, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(properties, (dict, type(None))):
            raise refuse(f"{pointer}/properties", f"must be an object, not {type(properties).__name__}")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise refuse(f"{pointer}/required", "must be a list of names")
        needed = set(required)
        more = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        names = self._read_names(schema, pointer)
        if names is None:
            if required or count(schema, "minProperties", pointer, 0):
                raise refuse(f"{pointer}/propertyNames", "no name is allowed, and properties are required")
            return Object(())
        if not properties and isinstance(names.get("enum"), list):
            properties = {name: more for name in names["enum"] if isinstance(name, str)}
        # Without properties a tool has no parameters, unless the schema says what others may be.
        if not required and (properties is None or (not properties and isinstance(more, dict))):
            _check_names(schema, names, {}, needed, pointer)
            if schema.get("dependentRequired"):
                raise KeywordError(f"{pointer}/dependentRequired", "of free keys it is not supported")
            return self._read_map(schema, names, more, pointer, depth)
        parts = dict(properties or {})
        pointers = {name: inside(f"{pointer}/properties", name) for name in parts}
        _check_names(schema, names, parts, needed, pointer)
        for name in required:
            if name not in parts:
                pattern = _pattern_of(name, schema, pointer)
                if pattern is None and more is False:
                    raise refuse(f"{pointer}/required", f"{name!r} is no property")
                parts[name] = more if pattern is None else schema["patternProperties"][pattern]
                if pattern is not None:
                    pointers[name] = inside(f"{pointer}/patternProperties", pattern)
        fields, is_deep = [], False
        for name, part in parts.items():
            is_required = name in needed
            if is_false(part) and not is_required:
                continue
            node = self._read_inner(part, pointers.get(name, f"{pointer}/additionalProperties"), depth)
            is_deep = is_deep or (node is None and is_required)
            if node is not None:
                fields.append(Field(name, node, is_required))
        if is_deep:
            return None
        n_required = sum(field.is_required for field in fields)
        if count(schema, "minProperties", pointer, 0) > n_required:
            raise KeywordError(
                f"{pointer}/minProperties", "above the number of required properties it is not supported"
            )
        if count(schema, "maxProperties", pointer, len(fields)) < len(fields):
            raise KeywordError(f"{pointer}/maxProperties", "below the number of properties it is not supported")
        return Object(tuple(fields))

    def _read_names(self, schema: dict[str, Any], pointer: str) -> dict[str, Any] | None:
        """Return the keywords about names, a constant as an enum of one; None if no name is valid."""
        given = schema.get("propertyNames", True)
        for _ in range(MAX_DEPTH):
            if isinstance(given, dict) and given.keys() & VALIDATING == {"$ref"}:
                given = self._find(given["$ref"], f"{pointer}/propertyNames")
        if is_false(given):
            return None
        names = {k: v for k, v in given.items() if k in VALIDATING} if isinstance(given, dict) else {}
        if "type" in names and "string" not in kinds_of(names, f"{pointer}/propertyNames"):
            raise KeywordError(f"{pointer}/propertyNames", "no name is allowed, as names are text and its type is not")
        if "const" in names:
            const = names.pop("const")
            allowed = names.get("enum", [const])
            if not isinstance(allowed, list) or const not in allowed:
                return None
            names["enum"] = [const]
        return names

    def _read_map(
        self, schema: dict[str, Any], names: dict[str, Any], more: Any, pointer: str, depth: int
    ) -> Node | None:
        low = count(schema, "minProperties", pointer, 0)
        high = count(schema, "maxProperties", pointer, MAX_ITEMS)
        if low > 1:
            raise KeywordError(f"{pointer}/minProperties", "more than 1 of free keys is not supported; one may repeat")
        patterns = schema.get("patternProperties", {})
        if low > high or (more is False and low and not patterns):
            raise refuse(f"{pointer}/minProperties", f"{low} at least, and fewer at most")
        if names.keys() - _NAME_KEYWORDS or len(patterns) > 1 or (patterns and "pattern" in names):
            keyword = "patternProperties" if patterns else "propertyNames"
            raise KeywordError(f"{pointer}/{keyword}", "other than one pattern for all keys it is not supported")
        at = "additionalProperties"
        for pattern, part in patterns.items():
            names, more, at = {**names, "pattern": pattern}, part, inside("patternProperties", pattern)
        if more is True and not low and "maxProperties" not in schema and not names.keys() - {"type"}:
            return Slot(OBJECT, "{", frozenset({"object"}))
        node = None if is_false(more) or high == 0 else self._read_inner(more, f"{pointer}/{at}", depth)
        if node is None:
            return None if low else Object(())
        length = min(count(names, "maxLength", pointer, MAX_ITEMS), MAX_ITEMS)
        key = self._read_string({**names, "maxLength": length}, f"{pointer}/propertyNames")
        if not isinstance(key, String):
            raise refuse(f"{pointer}/propertyNames", "no key is of no character")
        return Map(key, node, min_items=low, max_items=high)

    def _read_array(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        low = count(schema, "minItems", pointer, 0)
        heads, pointer_to_items = schema.get("prefixItems", []), f"{pointer}/items"
        more = schema.get("unevaluatedItems", True)
        pointer_to_heads, items = f"{pointer}/prefixItems", schema.get("items", more)
        if not isinstance(schema.get("uniqueItems", False), bool):
            raise refuse(f"{pointer}/uniqueItems", f"{schema['uniqueItems']!r} is neither true nor false")
        if "prefixItems" in schema and "2020-12" not in self._draft:
            raise KeywordError(f"{pointer}/prefixItems", f"{self._draft} does not know it")
        if isinstance(items, list):  # before draft 2020-12
            heads, pointer_to_heads, items = items, pointer_to_items, schema.get("additionalItems", more)
            pointer_to_items = f"{pointer}/additionalItems"
        if not isinstance(heads, list) or ("prefixItems" in schema and not heads):
            raise refuse(f"{pointer}/prefixItems", "no list of schemas")
        is_free = not heads and items is True and not low and "maxItems" not in schema
        if is_free and not schema.get("uniqueItems"):
            return Slot(ARRAY, "[", frozenset({"array"}))
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
            raise KeywordError(f"{pointer}/uniqueItems", "of items that are no choice among values it is not supported")
        n = len(choices.values)
        if low > n:
            raise refuse(f"{pointer}/minItems", f"{low} different ones of {n}")
        return Array((), choices, True, min_items=low, max_items=min(high, n))


def _pattern_of(name: str, schema: dict[str, Any], pointer: str) -> str | None:
    """Return the pattern whose schema a property without one of its own has; None if none matches its name."""
    found = [p for p in schema.get("patternProperties", {}) if matching([name], p, f"{pointer}/patternProperties")]
    if len(found) > 1:
        raise KeywordError(f"{pointer}/patternProperties", f"two patterns of one property, {name!r}, are not supported")
    return found[0] if found else None


def _check_names(
    schema: dict[str, Any], names: dict[str, Any], parts: dict[str, Any], needed: set[str], pointer: str
) -> None:
    """Raise ArgumentError if a property, which has a part or is needed, violates the keywords about names."""
    own = dict.fromkeys([*parts, *sorted(needed)])
    if names and own:
        if names.keys() - _NAME_KEYWORDS:
            raise KeywordError(f"{pointer}/propertyNames", "other than pattern, lengths and enum is not supported")
        for name in own:
            read_values(names | {"const": name}, f"{pointer}/propertyNames")
    for keyword in ("patternProperties", "dependentRequired"):
        if not isinstance(schema.get(keyword, {}), dict):
            raise refuse(f"{pointer}/{keyword}", f"must be an object, not {type(schema[keyword]).__name__}")
    for pattern in schema.get("patternProperties", {}):
        if matching(list(parts), pattern, f"{pointer}/patternProperties"):
            raise KeywordError(f"{pointer}/patternProperties", f"{pattern!r} of listed properties is not supported")
    for name, others in schema.get("dependentRequired", {}).items():
        if name in own and not (isinstance(others, list) and all(other in needed for other in others)):
            raise KeywordError(f"{pointer}/dependentRequired", "of properties that are optional it is not supported")
