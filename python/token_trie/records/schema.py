"""Read a JSON Schema into nodes; unsupported keywords are refused by name and position."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import combinations, pairwise
from typing import Any, TypeVar

from token_trie.records.expand import EXCEPT, PARTS, Alternative, Both, Expander, both, combining, means_object
from token_trie.records.gbnf import MAX_STATES, too_many
from token_trie.records.keywords import (
    KINDS,
    VALIDATING,
    KeywordError,
    NothingError,
    but,
    check_known,
    check_no_example,
    count,
    is_false,
    kinds_like,
    kinds_of,
    matched_names,
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
    types_in,
)
from token_trie.records.one_of import Exclusion
from token_trie.records.references import References
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
        self._root, self._ignored = root, ignored
        self._draft = str(root.get("$schema", "2020-12")) if isinstance(root, dict) else "2020-12"
        self._known: dict[tuple[Any, int], Node | None] = {}
        self._alive: list[Any] = []  # whose ids are known
        self._unread: set[int] = set()
        self._references = References(root)
        self._expander = Expander(self._references.find, self._kept)
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
        at, _ = self._expander.places.get(id(schema), (pointer, schema))
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
                keyword, *rest = given.pointer.removeprefix(f"{pointer}/").split("/")
                place = (places or {}).get(keyword, pointer)
                error = KeywordError("/".join([place, keyword, *rest]), given.why)
                if self._ignored is None:
                    raise error from given
                keyword = keyword if keyword in schema else "$ref"  # which leads to it
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
        if is_false(schema):
            raise NothingError(pointer, "nothing is valid")
        if not combining(schema):
            if "x_verbatim" in schema and "string" not in kinds_of(schema, pointer):
                raise KeywordError(f"{pointer}/x_verbatim", "of another value than a text it is not supported")
            return self._read_flat(schema, pointer, depth)
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
        """Read the alternatives of a schema that combines others."""
        parts = schema["allOf"] if isinstance(schema, Both) else [schema]
        key = tuple(map(id, parts)), depth
        if key not in self._known:
            self._alive.append(schema)
            self._known[key] = self._read_alternatives(schema, pointer, depth)
        return self._known[key]

    def _read_alternatives(self, schema: dict[str, Any], pointer: str, depth: int) -> Node | None:
        found: list[tuple[Node | None, Alternative]] = []
        for each in self._expander.expand(schema, pointer, self._followed):
            if depth + each.n_references > MAX_DEPTH:
                found.append((None, each))
                continue
            with suppress(NothingError):
                read = partial(self._read_flat, pointer=pointer, depth=depth + each.n_references)
                found.append((self._kept(read, each.schema, pointer, each.places), each))
        if not found:
            is_own = self._ignored is not None and not isinstance(schema, Both) and combining(schema)
            at = "/".join([pointer, *combining(schema)[:1]])
            raise (KeywordError if is_own else NothingError)(at, "nothing is valid")
        nodes = []
        for node, each in found:
            for at, other in each.excluded:
                node = self._apart(node, other, at, "another")
            nodes.append(node)
        return make_union(nodes, pointer)

    def _apart(self, node: Node | None, other: Any, pointer: str, name: str) -> Node | None:
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
        if "const" in schema or "enum" in schema:
            values = read_values(schema, pointer)
            if "x_verbatim" in schema and "string" in types_in(values):
                raise KeywordError(f"{pointer}/x_verbatim", "of a chosen text it is not supported")
            return but(values, excepted, pointer)
        kinds, is_typed = kinds_of(schema, pointer), "type" in schema or "x_verbatim" in schema
        if not kinds and not excepted:
            if self._ignored is None:
                check_no_example(schema, pointer)
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
                nodes[a] = self._apart(nodes[a], options[b], f"{pointer}/oneOf/{j}", f"/{i}")
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
        if not isinstance(properties, (dict, type(None))):
            raise refuse(f"{pointer}/properties", f"must be an object, not {type(properties).__name__}")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise refuse(f"{pointer}/required", "must be a list of names")
        needed = set(required)
        more = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        names = self._read_names(schema, pointer)
        if names is None:
            if required or count(schema, "minProperties", pointer, 0):
                raise NothingError(f"{pointer}/propertyNames", "no name is allowed, and properties are required")
            return Object(())
        if not properties and isinstance(names.get("enum"), list):
            properties = {name: more for name in names["enum"] if isinstance(name, str)}
        # Without properties a tool has no parameters, unless the schema says what others may be.
        if not required and (properties is None or (not properties and isinstance(more, dict))):
            _check_names(schema, names, {}, needed, pointer)
            return self._read_map(schema, names, more, pointer, depth)
        parts = dict(properties or {})
        pointers = {name: inside(f"{pointer}/properties", name) for name in parts}
        _check_names(schema, names, parts, needed, pointer)
        patterns_of = matched_names([*parts, *required], schema, pointer)
        for name in dict.fromkeys([*parts, *required]):
            patterns = patterns_of.get(name, [])
            if name not in parts and not patterns and more is False:
                raise NothingError(f"{pointer}/required", f"{name!r} is no property")
            for pattern in patterns:
                pointers.setdefault(name, inside(f"{pointer}/patternProperties", pattern))
            given = [parts[name]] if name in parts else [] if patterns else [more]
            parts[name] = both(*given, *(schema["patternProperties"][pattern] for pattern in patterns))
        fields, is_deep = [], False
        for name, part in parts.items():
            is_required = name in needed
            if is_false(part) and not is_required:
                continue
            try:
                node = self._read_inner(part, pointers.get(name, f"{pointer}/additionalProperties"), depth)
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
                given, _ = self._references.find(given, f"{pointer}/propertyNames")
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
        n_valid = next((i for i, head in enumerate(heads) if is_false(head)), len(heads))
        if n_valid < len(heads):  # the list ends before what nothing is valid for
            heads, items = heads[:n_valid], False
        is_free = not heads and items is True and "contains" not in schema and not low and "maxItems" not in schema
        if is_free and not schema.get("uniqueItems"):
            return Slot(ARRAY, "[", frozenset({"array"}))
        nodes = [self._read_inner(head, f"{pointer_to_heads}/{i}", depth) for i, head in enumerate(heads)]
        deep = next((i for i, node in enumerate(nodes) if node is None), None)
        item = None if is_false(items) or deep is not None else self._read_inner(items, pointer_to_items, depth)
        kinds = [node for node in nodes[:deep] if node is not None]
        most = len(kinds) if item is None else max(low, MAX_ITEMS)
        given = count(schema, "maxItems", pointer, most)
        high = min(most, given)
        if low > given:
            raise NothingError(f"{pointer}/minItems", f"{low} at least and {given} at most")
        if low > high and (is_false(items) and deep is None):
            raise NothingError(f"{pointer}/minItems", f"{low} at least and {high} at most")
        if low > high:
            return None
        if "contains" in schema:
            return self._read_containing(schema, items, pointer, depth)
        if schema.get("uniqueItems") is not True or high <= 1:
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
        low = 1 if is_old else count(schema, "minContains", pointer, 1)
        high = None if is_old or "maxContains" not in schema else count(schema, "maxContains", pointer, 0)
        others = {"prefixItems", "maxItems", "unevaluatedItems", "additionalItems"} & schema.keys()
        if others or isinstance(schema.get("items"), list) or count(schema, "minItems", pointer, 0) > max(low, 1):
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
        is_empty_one = low == 0 and not count(schema, "minItems", pointer, 0)
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
    if not isinstance(schema.get("patternProperties", {}), dict):
        why = f"must be an object, not {type(schema['patternProperties']).__name__}"
        raise refuse(f"{pointer}/patternProperties", why)
