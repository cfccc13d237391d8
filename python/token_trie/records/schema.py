"""Read a JSON Schema into nodes; unsupported keywords are refused by name and position."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial, reduce
from itertools import combinations, pairwise
from typing import Any, TypeVar

from token_trie.records.expand import PARTS, Both, Expander, References, both, combining, means_object
from token_trie.records.gbnf import MAX_STATES, too_many
from token_trie.records.keywords import (
    EXCEPT,
    KINDS,
    VALIDATING,
    KeywordError,
    NothingError,
    allowed_values,
    but,
    check_known,
    check_no_example,
    count,
    is_false,
    kinds_like,
    kinds_of,
    matched_names,
    normal,
    read_number,
    read_string,
    read_values,
    refuse,
)
from token_trie.records.nodes import (
    ARRAY,
    OBJECT,
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
    VerbatimNode,
    choices_of,
    containing,
    continuations,
    free_of,
    grammar_of,
    inside,
    type_of,
    types_in,
)
from token_trie.records.verbatim import MAX_LENGTH, MAX_WORDS

T = TypeVar("T")

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
ANYTHING = free_of(frozenset(KINDS))
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
    try:
        schema = json.loads(written)  # no part of it stands twice
        reader = _SchemaReader(schema, ignored)
        node = reader.read(schema, "", 0)
    except RecursionError as error:
        raise refuse("", "nested too deep") from error
    if node is None:
        raise refuse("", f"nothing can be written: every way leads through more than {MAX_DEPTH} references")
    return node, reader.n_states


class _SchemaReader:
    def __init__(self, root: Any, ignored: list[str] | None) -> None:
        self._ignored = ignored
        self._draft = str(root.get("$schema", "2020-12")) if isinstance(root, dict) else "2020-12"
        self._known: dict[tuple[Any, int], Node | None] = {}
        self._alive: list[Any] = []  # whose ids are known
        self._unread: set[int] = set()
        self._references = References(root)
        self._expander = Expander(self._references, self._kept)
        self._exclusion = Exclusion(self._references.find, self._unread)
        self.n_states = 0
        self._followed: tuple[str, ...] = ()  # references followed to the current value

    def read(self, schema: Any, pointer: str, depth: int) -> Node | None:
        """Read a subschema; None if every value is nested too deep. What is not supported is left out where it may."""
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            if schema is False:
                raise NothingError(pointer, "nothing is valid")
            raise refuse(pointer, f"must be a schema, not {type(schema).__name__}")
        at = self._references.pointer_to(schema, pointer)
        return self._kept(lambda kept: self._read_one(kept, at, depth), schema, at)

    def _kept(
        self,
        read: Callable[[dict[str, Any]], T],
        schema: dict[str, Any],
        pointer: str,
        places: dict[str, str] | None = None,
    ) -> T:
        """Return what is read of a schema, without the keywords that are not supported if they may be left out.

        `places` has the pointers of the schemas that keywords come from.
        """
        while True:
            try:
                return read(schema)
            except KeywordError as given:
                keyword, *rest, error = "$ref", given  # which leads to it
                if given.pointer.startswith(f"{pointer}/"):
                    keyword, *rest = given.pointer.removeprefix(f"{pointer}/").split("/")
                    at = "/".join([(places or {}).get(keyword, pointer), keyword, *rest])
                    error = KeywordError(at, given.why)
                if self._ignored is None:
                    raise error from given
                if keyword not in schema or len(self._ignored) >= _MAX_IGNORED:
                    raise
                if rest and keyword in PARTS:
                    raise refuse(error.pointer, error.why) from error
                options = schema.pop(keyword)
                if keyword == "oneOf":
                    schema.setdefault("anyOf", options)
                if str(error) not in self._ignored:
                    self._ignored.append(str(error))

    def _read_one(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        check_known(schema, pointer)
        if "prefixItems" in schema and "2020-12" not in self._draft:
            raise KeywordError(f"{pointer}/prefixItems", f"{self._draft} does not know it")
        if is_false(schema):
            raise NothingError(pointer, "nothing is valid")
        if self._ignored is None:
            check_no_example(schema, pointer)
        combined = schema.keys() & VALIDATING - {"not"}
        if schema.get("not", False) is False:
            if combined == {"$ref"}:
                return self._read_ref(schema, pointer, depth)
            if combined == {"allOf"} and isinstance(schema["allOf"], list) and len(schema["allOf"]) == 1:
                return self.read(schema["allOf"][0], f"{pointer}/allOf/0", depth)
            for keyword in ("anyOf", "oneOf"):
                if combined - {"type"} == {keyword}:
                    return self._read_union(schema, keyword, pointer, depth)
        return self._read_expanded(schema, pointer, depth)

    def _read_expanded(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        """Read the alternatives of a schema, of which one that combines no others has one."""
        parts = schema.get("allOf", [schema]) if isinstance(schema, Both) else [schema]
        key = tuple(map(id, parts)), depth
        if key not in self._known:
            self._alive.append(schema)
            self._known[key] = self._read_alternatives(schema, pointer, depth)
        return self._known[key]

    def _read_alternatives(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        nodes: list[Node | None] = []
        combined = combining(schema)
        if not combined and "x_verbatim" in schema and "string" not in kinds_of(schema, pointer):
            raise KeywordError(f"{pointer}/x_verbatim", "of another value than a text it is not supported")
        for each in self._expander.expand(schema, pointer, self._followed):
            with suppress(NothingError) if combined else nullcontext():
                read, node = partial(self._read_flat, pointer=pointer, depth=depth + each.n_references), None
                if depth + each.n_references <= MAX_DEPTH:
                    node = self._kept(read, each.schema, pointer, each.places)
                nodes.append(reduce(lambda node, other: self._apart(node, *other), each.excluded, node))
        if not nodes:
            is_own = self._ignored is not None and not isinstance(schema, Both)
            raise (KeywordError if is_own else NothingError)("/".join([pointer, *combined[:1]]), "nothing is valid")
        return make_union(nodes, pointer)

    def _apart(self, node: Node | None, pointer: str, other: Any, name: str = "another") -> Node | None:
        """Return the part of a node, of whose values none is valid by another schema of a ``oneOf``."""
        if node is None or self._exclusion.is_proven(node, other):
            return node
        options = node.options if isinstance(node, Union) else ()
        kept = [option for option in options if self._exclusion.is_proven(option, other)]
        if not kept:
            raise KeywordError(pointer, f"may be valid together with {name}; tell them apart, or use anyOf")
        return make_union([*kept], pointer)

    def _read_flat(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        """Read a schema that combines no others."""
        excepted, nodes = schema.get(EXCEPT, []), []
        if "enum" in schema:
            values = read_values(schema, pointer)
            if "x_verbatim" in schema and "string" in types_in(values):
                raise KeywordError(f"{pointer}/x_verbatim", "of a chosen text it is not supported")
            return but(values, excepted, pointer)
        kinds, is_typed = kinds_of(schema, pointer), "type" in schema or "x_verbatim" in schema
        if not kinds and not excepted:
            return ANYTHING
        for kind in kinds:
            with suppress(NothingError) if len(kinds) > 1 and excepted else nullcontext():
                nodes.append(but(self._read_kind(schema, kind, pointer, depth), excepted, pointer))
        if not is_typed and not means_object(schema):
            others = frozenset(KINDS) - {*kinds}
            nodes.append(free_of(others.difference(*map(kinds_like, excepted))))
            if any(isinstance(value, bool) for value in excepted):
                with suppress(NothingError):
                    nodes.append(but(ChoiceNode((True, False)), excepted, pointer))
        if not nodes:
            raise NothingError(pointer, "nothing is valid")
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
        found, at = self._references.find(schema, pointer)
        if at in self._followed:
            raise refuse(f"{pointer}/$ref", f"{schema['$ref']!r} leads back to itself")
        if depth >= MAX_DEPTH:
            return None
        key = at, depth + 1
        if key not in self._known:
            with self._following((*self._followed, at)):
                self._known[key] = self.read(found, at, depth + 1)
        return self._known[key]

    def _read_union(self, schema: dict[str, Any], keyword: str, pointer: str, depth: int) -> Node | None:
        options = schema[keyword]
        if not isinstance(options, list) or not options:
            raise refuse(f"{pointer}/{keyword}", "no schemas")
        nodes, unsupported = {}, None
        for i, option in enumerate(options):
            if is_false(option) and not all(map(is_false, options)):
                continue
            try:
                nodes[i] = self.read(option, f"{pointer}/{keyword}/{i}", depth)
            except KeywordError as error:
                if keyword == "oneOf" or self._ignored is not None:
                    raise
                unsupported = error  # all that the others write is valid
                self._unread.add(id(option))
        if unsupported is not None and all(node is None or types_in(node) == {"null"} for node in nodes.values()):
            raise unsupported
        allowed = {*kinds_of(schema, pointer)} if "type" in schema else {*KINDS}
        allowed |= {"integer"} if "number" in allowed else set()
        if not all(node is None or types_in(node) <= allowed for node in nodes.values()):
            return self._read_expanded(schema, pointer, depth)
        for i, j in combinations(nodes, 2) if keyword == "oneOf" else ():
            for a, b in ((i, j), (j, i)):
                nodes[a] = self._apart(nodes[a], f"{pointer}/oneOf/{j}", options[b], f"/{i}")
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
        return _read_verbatim(schema, node, pointer) if schema.get("x_verbatim", False) is not False else node

    def _read_object(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        properties, required = schema.get("properties"), schema.get("required", [])
        more, low = schema.get("additionalProperties", True), schema.get("minProperties", 0)
        names = self._read_names(schema, pointer)
        if names is None:
            if required or low:
                raise NothingError(f"{pointer}/propertyNames", "no name is allowed, and properties are required")
            return Object(())
        if not properties and "enum" in names:
            properties = {name: more for name in names["enum"] if isinstance(name, str)}
        # Without properties a tool has no parameters, unless the schema says what others may be.
        if not required and (properties is None or (not properties and isinstance(more, dict))):
            return self._read_map(schema, names, more, pointer, depth)
        parts = dict(properties or {})
        own = [*dict.fromkeys([*parts, *required])]
        for name in own if names else ():
            read_values(names | {"const": name}, f"{pointer}/propertyNames")
        patterns_of = matched_names(own, schema, pointer)
        for name in own:
            patterns = patterns_of.get(name, [])
            if name not in parts and not patterns and more is False:
                raise NothingError(f"{pointer}/required", f"{name!r} is no property")
            given = [parts[name]] if name in parts else [] if patterns else [more]
            parts[name] = both(*given, *(schema["patternProperties"][pattern] for pattern in patterns))
        fields, is_deep = [], False
        for name, part in parts.items():
            is_required = name in required
            if is_false(part) and not is_required:
                continue
            try:
                node = self._read_inner(part, inside(f"{pointer}/properties", name), depth)
            except NothingError:
                if is_required or not isinstance(part, Both):
                    raise
                continue
            is_deep = is_deep or (node is None and is_required)
            if node is not None:
                fields.append(Field(name, node, is_required))
        if is_deep:
            return None
        n_required = sum(field.is_required for field in fields)
        if low > n_required:
            raise KeywordError(
                f"{pointer}/minProperties", "above the number of required properties it is not supported"
            )
        if schema.get("maxProperties", len(fields)) < len(fields):
            raise KeywordError(f"{pointer}/maxProperties", "below the number of properties it is not supported")
        return Object(tuple(fields))

    def _read_names(self, schema: dict[str, Any], pointer: str) -> dict[str, Any] | None:
        """Return the keywords about names; None if no name is valid."""
        at, given = f"{pointer}/propertyNames", schema.get("propertyNames", True)
        for _ in range(MAX_DEPTH):
            if isinstance(given, dict) and given.keys() & VALIDATING == {"$ref"}:
                given, _ = self._references.find(given, at)
        if is_false(given):
            return None
        given = {k: v for k, v in given.items() if k in VALIDATING} if isinstance(given, dict) else {}
        if given.keys() - _NAME_KEYWORDS:
            raise KeywordError(at, "other than pattern, lengths and enum is not supported")
        names = normal(given, at)
        if "string" not in names.get("type", ["string"]):
            raise KeywordError(at, "no name is allowed, as names are text and its type is not")
        return None if names.get("enum") == [] else names

    def _read_map(
        self, schema: dict[str, Any], names: dict[str, Any], more: Any, pointer: str, depth: int
    ) -> Node | None:
        low, high = schema.get("minProperties", 0), schema.get("maxProperties", MAX_ITEMS)
        if low > 1:
            raise KeywordError(f"{pointer}/minProperties", "more than 1 of free keys is not supported; one may repeat")
        patterns = schema.get("patternProperties", {})
        if low > high or (more is False and low and not patterns):
            raise refuse(f"{pointer}/minProperties", f"{low} at least, and fewer at most")
        if len(patterns) > 1 or (patterns and "pattern" in names):
            raise KeywordError(
                f"{pointer}/patternProperties", "other than one pattern for all keys it is not supported"
            )
        for pattern, part in patterns.items():
            names, more = {**names, "pattern": pattern}, part
        if more is True and not low and "maxProperties" not in schema and not names.keys() - {"type"}:
            return Slot(OBJECT, "{", frozenset({"object"}))
        node = None if is_false(more) or high == 0 else self._read_inner(more, f"{pointer}/additionalProperties", depth)
        if node is None:
            return None if low else Object(())
        length = min(names.get("maxLength", MAX_ITEMS), MAX_ITEMS)
        key = self._read_string({**names, "maxLength": length}, f"{pointer}/propertyNames")
        if not isinstance(key, String):
            raise refuse(f"{pointer}/propertyNames", "no key is of no character")
        return Map(key, node, min_items=low, max_items=high)

    def _read_array(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        low, heads, items = schema.get("minItems", 0), schema.get("prefixItems", []), schema.get("items", True)
        n_valid = next((i for i, head in enumerate(heads) if is_false(head)), len(heads))
        if n_valid < len(heads):  # the list ends before what nothing is valid for
            heads, items = heads[:n_valid], False
        is_free = not heads and items is True and "contains" not in schema and not low and "maxItems" not in schema
        if is_free and not schema.get("uniqueItems"):
            return Slot(ARRAY, "[", frozenset({"array"}))
        nodes = [self._read_inner(head, f"{pointer}/prefixItems/{i}", depth) for i, head in enumerate(heads)]
        deep = next((i for i, node in enumerate(nodes) if node is None), None)
        item = None if is_false(items) or deep is not None else self._read_inner(items, f"{pointer}/items", depth)
        kinds = [node for node in nodes[:deep] if node is not None]
        most = len(kinds) if item is None else max(low, MAX_ITEMS)
        given = schema.get("maxItems", most)
        high = min(most, given)
        if low > given or (low > high and is_false(items) and deep is None):
            raise NothingError(f"{pointer}/minItems", f"{low} at least and {min(given, high)} at most")
        if low > high:
            return None
        if "contains" in schema:
            return self._read_containing(schema, items, pointer, depth)
        if not schema.get("uniqueItems") or high <= 1:
            return Array(tuple(kinds), item, False, min_items=low, max_items=high)
        choices = None if kinds else choices_of(item)
        if choices is None:
            raise KeywordError(f"{pointer}/uniqueItems", "of items that are no choice among values it is not supported")
        n = len(choices.values)
        if low > n:
            raise refuse(f"{pointer}/minItems", f"{low} different ones of {n}")
        return Array((), choices, True, min_items=low, max_items=min(high, n))

    def _read_containing(self, schema: dict[str, Any], items: Any, pointer: str, depth: int) -> Node | None:
        """Read a list that contains items of a schema: it is generated under one grammar."""
        at, is_old = f"{pointer}/contains", "/draft-0" in self._draft
        low = 1 if is_old else schema.get("minContains", 1)
        high = None if is_old else schema.get("maxContains")
        if {"prefixItems", "maxItems"} & schema.keys() or schema.get("minItems", 0) > max(low, 1):
            raise KeywordError(at, "beside other keywords of lists than items it is not supported")
        if schema.get("uniqueItems"):
            raise KeywordError(at, "beside uniqueItems it is not supported")
        if high is not None and low > high:
            raise NothingError(at, f"{low} at least and {high} at most")
        nodes = []
        rest = items if high is None else both(items, {"not": schema["contains"]})
        for part in (both(items, schema["contains"]), rest):
            try:
                nodes.append(self._read_inner(part, at, depth))
            except NothingError:
                nodes.append(None)
        is_empty_one = low == 0 and not schema.get("minItems", 0)
        if nodes[0] is None and not is_empty_one:
            raise NothingError(at, "no item is valid by it")
        try:
            value = containing(nodes[0], nodes[1], low, high)
        except ValueError as error:
            raise KeywordError(at, f"it is not supported: no grammar says {error}") from error
        return Slot(value, "[", frozenset({"array"}))


def _read_verbatim(schema: dict[str, Any], node: Node, pointer: str) -> Node:
    given = schema["x_verbatim"]
    words = MAX_WORDS if given is True else count(schema, "x_verbatim", pointer, 0)
    if words < 1 or not isinstance(node, String):
        raise refuse(f"{pointer}/x_verbatim", "no value has a word")
    content = None if node.can_end_anywhere else node.content
    high = MAX_LENGTH if node.max_length is None else min(node.max_length, MAX_LENGTH)
    return VerbatimNode(words, node.min_length, high, content)


_MAX_COMPARED = 50_000
"""Values that are compared for a schema; more are not proven."""


class Exclusion:
    """Proves, for ``oneOf``, that no value that is written by one schema is valid by another.

    The proofs are by types, constants and properties. A node may hold less than its schema allows: for {"minLength": 3}
    texts are written, but every number is valid by it. So a node is held against the other schema itself, whose
    keywords restrain their own types alone. `find` returns the schema of a ``$ref``; `unread` has the ids of schemas
    that were left out, of which nothing is known.
    """

    def __init__(self, find: Callable[[Any, str], tuple[Any, str]], unread: Container[int]) -> None:
        self._find, self._unread = find, unread
        self._n_compared = 0
        self._known: dict[tuple[Node, int], bool] = {}

    def is_proven(self, node: Node, schema: Any) -> bool:
        """Return whether no value of a node is valid by a schema."""
        if id(schema) in self._unread:
            return False
        key = node, id(schema)
        if key not in self._known:
            self._known[key] = False  # a pair that is met again inside itself proves nothing
            self._known[key] = is_false(schema) or (isinstance(schema, dict) and self._prove(node, schema))
        return self._known[key]

    def _prove(self, node: Node, schema: dict[str, Any]) -> bool:
        if isinstance(node, Union):
            return all(self.is_proven(option, schema) for option in node.options)
        parts = [*schema.get("allOf", []), *([self._find(schema, "")[0]] if "$ref" in schema else [])]
        if any(self.is_proven(node, part) for part in parts):
            return True
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema and all(self.is_proven(node, option) for option in schema[keyword]):
                return True
        if isinstance(node, ChoiceNode):
            self._n_compared += len(node.values) + len(schema.get("enum", ()))
            return self._n_compared <= _MAX_COMPARED and not allowed_values(node.values, schema, "")
        if types_in(node).isdisjoint(_types_of(schema)):
            return True
        return isinstance(node, Object) and self._differ_in_a_property(node, schema)

    def _differ_in_a_property(self, node: Object, schema: dict[str, Any]) -> bool:
        required, properties = schema.get("required", []), schema.get("properties") or {}
        if not {*required} <= {field.name for field in node.fields}:
            return True
        is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        return any(
            self.is_proven(field.node, properties[field.name]) if field.name in properties else is_closed
            for field in node.fields
            if field.is_required or field.name in required
        )


def _types_of(schema: dict[str, Any]) -> set[str]:
    """Return the types of the values that may be valid by a schema; a number may be an integer."""
    types = {*(kinds_of(schema, "") if "type" in schema else KINDS)}
    if "const" in schema or "enum" in schema:
        types &= {*map(type_of, [schema["const"]] if "const" in schema else schema["enum"])}
    return types | {"number", "integer"} if types & {"number", "integer"} else types
