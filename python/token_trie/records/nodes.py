"""The values that a schema allows, as a tree of nodes; how they are written in a layout, and their grammar.

{"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}}, "required": ["city"]}

Object ── city (required) ── String      written: {"city":"   then free text, then   "
       └─ unit ───────────── Choice      decided: ,"unit": or } and, after the key, "C" or "F"
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias

from token_trie.records.gbnf import (
    CHAR,
    Either,
    Expression,
    Grammar,
    Repeat,
    Rule,
    Sequence,
    TextLiteral,
    read_pattern,
)


@dataclass(frozen=True, eq=False)
class ChoiceNode:
    """One of the given JSON values; a single value is forced."""

    values: tuple[Any, ...]
    by_digits: bool = False
    """Whether the values are a range of numbers, which is decided digit by digit in every mode."""


@dataclass(frozen=True, eq=False)
class String:
    """Free text in quotes, under a grammar."""

    content: Expression
    """Grammar of the text between the quotes; if it can end anywhere, without the maximum length."""
    max_length: int | None
    """Characters after which the text ends."""
    min_length: int = 0
    can_end_anywhere: bool = True
    """Whether any text of these lengths is valid, so that an unfinished text can be closed."""
    is_cut: bool = False
    """Whether the grammar allows more than the maximum length; the text then ends at the last valid position."""
    n_states: int = 0
    """The size of its pattern."""

    @cached_property
    def grammar(self) -> Grammar:
        """The printed content."""
        return Grammar(self.content)


@dataclass(frozen=True)
class VerbatimNode:
    """Text in quotes that occurs in the text of the record: words, with the signs around and between them."""

    max_words: int
    """Largest number of words and signs."""
    min_length: int
    max_length: int
    content: Expression | None
    """Grammar of the text between the quotes, if it has a pattern or format."""
    text: str | None = None
    """The text of the record; None until it is known."""


@dataclass(frozen=True, eq=False)
class Slot:
    """A number or any value, generated under a grammar."""

    value: Expression
    begins_with: str
    """Possible first characters."""
    types: frozenset[str]
    """JSON types of the values."""

    @cached_property
    def grammar(self) -> Grammar:
        """The printed value, with any white space inside."""
        return Grammar(self.value)

    @cached_property
    def compact_grammar(self) -> Grammar:
        """The printed value, without white space."""
        return Grammar(self.value, without=SPACE)


@dataclass(frozen=True, eq=False)
class Union:
    """One of several nodes, distinguished by their first characters."""

    options: tuple[Node, ...]

    @cached_property
    def n_options(self) -> int:
        """Count the options, including those of nested unions and choices."""
        return sum(map(count_options, self.options))


class Field(NamedTuple):
    """A key and value of an object."""

    name: str
    node: Node
    is_required: bool


@dataclass(frozen=True, eq=False)
class Object:
    """Fields in order; each optional field is decided at its key."""

    fields: tuple[Field, ...]

    @cached_property
    def without_null(self) -> frozenset[str]:
        """Names of the optional fields that have no null: they are left out where the model gives null."""
        return frozenset(
            field.name for field in self.fields if not field.is_required and "null" not in types_in(field.node)
        )


@dataclass(frozen=True, eq=False)
class Map:
    """An object with free keys and values of one kind."""

    key: String
    node: Node
    min_items: int
    max_items: int


@dataclass(frozen=True, eq=False)
class Array:
    """A list; its first items may have nodes of their own."""

    heads: tuple[Node, ...]
    item: Node | None
    unique: bool
    min_items: int
    max_items: int

    @cached_property
    def is_flat(self) -> bool:
        """Whether no item is an object or list."""
        nodes = (*self.heads, *([] if self.item is None else [self.item]))
        return not any(types_in(node) & {"object", "array"} for node in nodes)

    def kind(self, index: int) -> Node:
        """Return the node of an item."""
        node = self.heads[index] if index < len(self.heads) else self.item
        assert node is not None
        return node


Node: TypeAlias = ChoiceNode | String | VerbatimNode | Slot | Union | Object | Map | Array


def types_in(node: Node) -> frozenset[str]:
    """Return the JSON types of a node's values."""
    if isinstance(node, Union):
        return frozenset().union(*map(types_in, node.options))
    if isinstance(node, ChoiceNode):
        return frozenset(map(type_of, node.values))
    if isinstance(node, Slot):
        return node.types
    if isinstance(node, (String, VerbatimNode)):
        return frozenset({"string"})
    return frozenset({"array" if isinstance(node, Array) else "object"})


def type_of(value: Any) -> str:
    """Return the JSON type of a value."""
    return _TYPES.get(type(value), "object")


_TYPES = {type(None): "null", str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


def choices_of(node: Node | None) -> ChoiceNode | None:
    """Return the distinct values of a choice or a union of choices; None for another node."""
    if isinstance(node, ChoiceNode):
        return node
    parts = [choices_of(option) for option in node.options] if isinstance(node, Union) else [None]
    known = [part for part in parts if part is not None]
    return ChoiceNode(tuple(distinct(v for part in known for v in part.values))) if len(known) == len(parts) else None


def common(values: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """Return the values that are among others; 1 equals 1.0 but not true."""
    known = {*map(_identity, others)}
    return [value for value in values if _identity(value) in known]


def distinct(values: Iterable[Any]) -> Iterable[Any]:
    """Return the first of each equal values; 1 equals 1.0 but not true."""
    of_identity: dict[Any, Any] = {}
    for value in values:
        of_identity.setdefault(_identity(value), value)
    return of_identity.values()


def _identity(value: Any) -> Any:
    """Return a key that is equal exactly for values that are equal in JSON Schema."""
    if isinstance(value, dict):
        return "object", frozenset((key, _identity(v)) for key, v in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_identity, value))
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value), value


def count_options(node: Node) -> int:
    """Count the beginnings of a value."""
    if isinstance(node, Union):
        return node.n_options
    first = node.fields[0].node if isinstance(node, Object) and node.fields else node
    return len(first.values) if isinstance(first, ChoiceNode) else 1


def inside(pointer: str, key: str | int) -> str:
    """Return the JSON pointer of a field or an item of the value at a pointer."""
    key = str(key).replace("~", "~0").replace("/", "~1")
    return f"{pointer}/{key}"


def level_of(pointer: str) -> int:
    """Return how deep the value at a pointer is nested."""
    return pointer.count("/")


class Layout(NamedTuple):
    """White space of the JSON: `indent` spaces a level, each field on a line of its own; or a single line."""

    indent: int | None = None
    is_spaced: bool = False
    """Whether a single line has spaces after commas and colons."""
    has_short_lists: bool = False
    """Whether lists without lists and objects in them are on a single line, with spaces."""

    def within(self, node: Array | Map) -> Layout:
        """Return the layout of a list or map."""
        return SPACED if self.has_short_lists and isinstance(node, Array) and node.is_flat else self

    @property
    def colon(self) -> str:
        """The separator between key and value."""
        return ": " if self.is_spaced or self.indent is not None else ":"

    def line(self, level: int) -> str:
        """Return the white space before a first item or a closing bracket."""
        return "" if self.indent is None else "\n" + " " * (self.indent * level)

    def comma(self, level: int) -> str:
        """Return the separator before another item, with its white space."""
        return "," + (" " if self.is_spaced else self.line(level))

    def dumps(self, value: Any, level: int) -> str:
        """Return the JSON of a value."""
        if self.indent is None:
            comma = ", " if self.is_spaced else ","
            return json.dumps(value, ensure_ascii=False, separators=(comma, self.colon))
        return json.dumps(value, ensure_ascii=False, indent=self.indent).replace("\n", self.line(level))

    def key(self, name: str, is_first: bool, level: int) -> str:
        """Return the JSON of a key, with its separator and colon."""
        before = self.line(level + 1) if is_first else self.comma(level + 1)
        return f"{before}{json.dumps(name, ensure_ascii=False)}{self.colon}"

    def close(self, bracket: str, is_empty: bool, level: int) -> str:
        """Return the end of an object or list."""
        return bracket if is_empty else self.line(level) + bracket


class Printer:
    """Prints JSON in a layout while it is written, whatever white space it was written with."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._level, self._last = 0, ""
        self._is_in_string = self._is_escaped = False

    def add(self, text: str) -> str:
        """Return what is printed for the next part of the text, which may end anywhere."""
        return "".join(map(self._print, text))

    def _print(self, char: str) -> str:
        if self._is_in_string:
            self._is_in_string = char != '"' or self._is_escaped
            self._is_escaped = char == "\\" and not self._is_escaped
            return char
        if char in " \t\r\n":
            return ""
        last, self._last = self._last, char
        is_first = last in ("{", "[")
        self._level -= char in "}]"
        before = ""
        if char in "}]":
            before = self._layout.close("", is_first, self._level)
        elif is_first:
            before = self._layout.line(self._level)
        elif last == ",":
            before = self._layout.comma(self._level)[1:]
        elif last == ":":
            before = self._layout.colon[1:]
        self._level += char in "{["
        self._is_in_string = char == '"'
        return before + char


COMPACT, SPACED = Layout(), Layout(is_spaced=True)
LAYOUTS = (COMPACT, SPACED, Layout(2), Layout(2, has_short_lists=True))
"""The layouts that models write."""


class PendingValue(NamedTuple):
    """Pending: a value."""

    node: Node
    pointer: str = ""
    """The position of the value in the record, as a JSON pointer."""
    is_after_key: bool = False
    """Whether the colon after the key of a map's entry comes first."""

    otherwise: PendingFields | None = None
    """For a field that may be null only to be left out: what is pending then, after what was written before its key."""


class PendingString(NamedTuple):
    """Pending: a string, after its first quote."""

    node: String | VerbatimNode
    pointer: str
    key_of: PendingItems | None = None
    """The map of which it is the next key."""


class PendingFields(NamedTuple):
    """Pending: an object from field `next`, with n fields written."""

    node: Object
    pointer: str
    next: int = 0
    n: int = 0


class PendingItems(NamedTuple):
    """Pending: a list or map after n items."""

    node: Array | Map
    pointer: str
    n: int = 0
    taken: frozenset[str] = frozenset()
    """Items that must not repeat."""


PendingPart: TypeAlias = PendingValue | PendingString | PendingFields | PendingItems


class Continuation(NamedTuple):
    """A text, or a value under a grammar, and the parts that are pending after it, in order."""

    text: str
    pointer: str
    pending: tuple[PendingPart, ...] = ()
    is_value: bool = False
    """Whether the text ends with a chosen value."""
    is_whole: bool = False
    """Whether this value is decided as a whole; numbers of a range are decided digit by digit."""

    leaves_out: bool = False
    """Whether this value is null and its field is left out."""

    slot: Slot | None = None
    """The grammar value that it begins with, if any."""

    @property
    def begins_with(self) -> str:
        """The possible first characters."""
        return self.text[:1] if self.slot is None else self.slot.begins_with

    def between(self, before: str, *after: PendingPart) -> Continuation:
        """Return the continuation with a text before it and more pending after it."""
        pending = (*self.pending, *after)
        if self.slot is None or not before:
            return self._replace(text=before + self.text, pending=pending)
        return Continuation(before, self.pointer, (PendingValue(self.slot, self.pointer), *pending))


def continuations(pending: PendingPart, layout: Layout) -> list[Continuation]:
    """Return all continuations of what is pending, other than the content of a string."""
    if isinstance(pending, PendingFields):
        return _after_fields(pending, layout)
    if isinstance(pending, PendingItems):
        return _after_items(pending, layout)
    assert isinstance(pending, PendingValue)
    node, pointer = pending.node, pending.pointer
    if pending.is_after_key:
        return [each.between(layout.colon) for each in continuations(PendingValue(node, pointer), layout)]
    if (rest := pending.otherwise) is not None:
        null = Continuation("null", rest.pointer, (rest,), is_value=True, leaves_out=True)
        return [*continuations(PendingValue(node, pointer), layout), null]
    if isinstance(node, ChoiceNode):
        return [
            Continuation(
                layout.dumps(value, level_of(pointer)), pointer, (), True, value is not None and not node.by_digits
            )
            for value in node.values
        ]
    if isinstance(node, (String, VerbatimNode)):
        return [Continuation('"', pointer, (PendingString(node, pointer),))]
    if isinstance(node, Slot):
        return [Continuation("", pointer, slot=node)]
    if isinstance(node, Union):
        return [each for option in node.options for each in continuations(PendingValue(option, pointer), layout)]
    if isinstance(node, Object):
        return _openings(node, pointer, layout)
    return [Continuation("[" if isinstance(node, Array) else "{", pointer, (PendingItems(node, pointer),))]


def _openings(node: Object, pointer: str, layout: Layout) -> list[Continuation]:
    """Return how an object begins: with a forced first key, and with its value, which distinguishes objects."""
    if not node.fields or not node.fields[0].is_required:
        return [Continuation("{", pointer, (PendingFields(node, pointer),))]
    first = node.fields[0]
    key = "{" + layout.key(first.name, True, level_of(pointer))
    after = PendingFields(node, pointer, 1, 1)
    value = PendingValue(first.node, inside(pointer, first.name))
    if isinstance(first.node, (ChoiceNode, String, VerbatimNode)):
        return [each.between(key, after) for each in continuations(value, layout)]
    return [Continuation(key, pointer, (value, after))]


def _after_fields(pending: PendingFields, layout: Layout) -> list[Continuation]:
    pointer, n, level = pending.pointer, pending.n, level_of(pending.pointer)
    found = []
    for i, field in enumerate(pending.node.fields[pending.next :], pending.next):
        rest = PendingFields(pending.node, pointer, i + 1, n) if field.name in pending.node.without_null else None
        value = PendingValue(field.node, inside(pointer, field.name), otherwise=rest)
        key = layout.key(field.name, n == 0, level)
        found.append(Continuation(key, pointer, (value, PendingFields(pending.node, pointer, i + 1, n + 1))))
        if field.is_required:
            return found
    return [*found, Continuation(layout.close("}", n == 0, level), pointer)]


def _after_items(pending: PendingItems, layout: Layout) -> list[Continuation]:
    node, pointer, n = pending.node, pending.pointer, pending.n
    layout, level = layout.within(node), level_of(pointer)
    found = []
    before = layout.comma(level + 1) if n else layout.line(level + 1)
    if n < node.max_items and isinstance(node, Map):
        found = [Continuation(f'{before}"', pointer, (PendingString(node.key, pointer, pending),))]
    elif n < node.max_items and isinstance(node, Array):
        for each in continuations(PendingValue(node.kind(n), inside(pointer, n)), layout):
            if each.text not in pending.taken:
                taken = pending.taken | {each.text} if node.unique else pending.taken
                found.append(each.between(before, PendingItems(node, pointer, n + 1, taken)))
    if n >= node.min_items or not found:
        found.append(Continuation(layout.close("]" if isinstance(node, Array) else "}", n == 0, level), pointer))
    return found


_QUOTE, _COMMA, _COLON, _END_OF_OBJECT, _END_OF_LIST = map(TextLiteral, '",:}]')

# A double holds 16 digits; an exponent of two digits stays finite.
INTEGER = read_pattern("^-?(0|[1-9][0-9]{0,15})$").content
NUMBER = read_pattern(r"^-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?([eE][-+]?[0-9]{1,2})?$").content

# Characters after a value that its last token may contain; they are cut off again.
AFTER_VALUE = r"( [ \t\r\n,}\]:] [\x00-\U0010FFFF]* )?"


SPACE = Rule(
    Either((TextLiteral(""), TextLiteral(" "), Sequence((TextLiteral("\n"), Repeat(TextLiteral(" "), 0, 64)))))
)
"""White space between the parts of a generated value."""


def _spaced(*parts: Expression) -> Sequence:
    """Return parts with white space between them."""
    return Sequence(tuple(part for each in parts for part in (each, SPACE))[:-1])


def _listed(first: str, item: Expression, low: int, high: int | None, last: str) -> Expression:
    """Return the grammar of a list of items, low to high, separated by commas."""
    more = Repeat(_spaced(Sequence(()), _COMMA, item), max(low - 1, 0), None if high is None else high - 1)
    some = _spaced(TextLiteral(first), Sequence((item, more)), TextLiteral(last))
    return some if low else Either((_spaced(TextLiteral(first), TextLiteral(last)), some))


VALUE = Rule()
"""Any JSON value."""
_STRING = Rule(Sequence((_QUOTE, Repeat(CHAR, 0, None), _QUOTE)))
OBJECT = Rule(_listed("{", _spaced(_STRING, _COLON, VALUE), 0, None, "}"))
ARRAY = Rule(_listed("[", VALUE, 0, None, "]"))
VALUE.body = Either((OBJECT, ARRAY, _STRING, NUMBER, *map(TextLiteral, ("true", "false", "null"))))


@cache
def free_of(kinds: frozenset[str]) -> Slot:
    """Return any value of some types, of which "number" includes "integer"."""
    if "number" in kinds and len(kinds) == len(_FREE) + 1:
        return Slot(VALUE, '{["-0123456789tfn', kinds)
    parts = [(part, first) for kind, (part, first) in _FREE.items() if kind in kinds]
    types = kinds | {"integer"} if "number" in kinds else kinds - {"integer"}
    return Slot(Either(tuple(part for part, _ in parts)), "".join(first for _, first in parts), types)


_FREE: dict[str, tuple[Expression, str]] = {
    "object": (OBJECT, "{"),
    "array": (ARRAY, "["),
    "string": (_STRING, '"'),
    "number": (NUMBER, "-0123456789"),
    "boolean": (Either((TextLiteral("true"), TextLiteral("false"))), "tf"),
    "null": (TextLiteral("null"), "n"),
}


def grammar_of(node: Node, known: dict[Node, Rule] | None = None) -> Expression:
    """Return the grammar of a node; ValueError if no grammar expresses it. `known` has the rules of nodes within it."""
    known = {} if known is None else known
    if node not in known:
        known[node] = Rule(_make_grammar(node, known))
    return known[node]


def _make_grammar(node: Node, known: dict[Node, Rule]) -> Expression:
    if isinstance(node, ChoiceNode):
        return Either(tuple(TextLiteral(COMPACT.dumps(value, 0)) for value in node.values))
    if isinstance(node, String):
        if node.is_cut:
            raise ValueError("maxLength beside a pattern or format")
        content = Repeat(CHAR, node.min_length, node.max_length) if node.can_end_anywhere else node.content
        return Sequence((_QUOTE, content, _QUOTE))
    if isinstance(node, VerbatimNode):
        raise ValueError("which texts are verbatim")
    if isinstance(node, Slot):
        return node.value
    if isinstance(node, Union):
        return Either(tuple(grammar_of(option, known) for option in node.options))
    if isinstance(node, Map):
        entry = _spaced(grammar_of(node.key, known), _COLON, grammar_of(node.node, known))
        return _listed("{", entry, node.min_items, node.max_items, "}")
    return _object_grammar(node, known) if isinstance(node, Object) else _array_grammar(node, known)


def _object_grammar(node: Object, known: dict[Node, Rule]) -> Expression:
    # The grammar from a field on: with a field before it, and without.
    after: list[Expression] = [_END_OF_OBJECT, _END_OF_OBJECT]
    for field in reversed(node.fields):
        value = grammar_of(field.node, known)
        written_after: list[Expression] = []
        for is_first in (False, True):
            key = [TextLiteral(json.dumps(field.name, ensure_ascii=False)), _COLON, value]
            written = _spaced(*([] if is_first else [_COMMA]), *key, after[0])
            written_after.append(Rule(written if field.is_required else Either((written, after[is_first]))))
        after = written_after
    return _spaced(TextLiteral("{"), after[1])


def _array_grammar(node: Array, known: dict[Node, Rule]) -> Expression:
    if node.unique:
        raise ValueError("uniqueItems of a list")
    n = min(len(node.heads), node.max_items)
    after: Expression = _END_OF_LIST
    if node.item is not None and n < node.max_items:
        item, low, high = grammar_of(node.item, known), max(node.min_items - n, 0), node.max_items - n
        if n == 0:
            return _listed("[", item, low, high, "]")
        after = Sequence((Repeat(Sequence((_COMMA, SPACE, item, SPACE)), low, high), _END_OF_LIST))
    for i in reversed(range(n)):
        written = _spaced(*([_COMMA] if i else []), grammar_of(node.kind(i), known), after)
        after = Rule(written if i < node.min_items else Either((written, _END_OF_LIST)))
    return _spaced(TextLiteral("["), after)


def containing(item: Node | None, other: Node | None, low: int, high: int | None) -> Expression:
    """Return the grammar of lists that have `low` to `high` items among others; ValueError if there is none."""
    known: dict[Node, Rule] = {}
    others, counted = ([] if node is None else [grammar_of(node, known)] for node in (other, item))
    lists: list[Expression] = [_listed("[", each, 0, None, "]") for each in others] if low == 0 else []
    lists += [] if low or others else [_spaced(TextLiteral("["), _END_OF_LIST)]
    if high != 0:
        for each in counted:
            before = [Repeat(_spaced(rest, _COMMA, Sequence(())), 0, None) for rest in others]
            between = [Repeat(_spaced(Sequence(()), _COMMA, rest), 0, None) for rest in others]
            more = Sequence((*between, _spaced(Sequence(()), _COMMA, each)))
            n = max(low, 1) - 1
            counts = Repeat(more, n, n if high is None else high - 1)
            lists.append(_spaced(TextLiteral("["), Sequence((*before, each, counts, *between)), _END_OF_LIST))
    return Rule(Either(tuple(lists)))
