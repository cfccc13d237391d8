"""How JSON is laid out, and how what a plan lets be written begins."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from token_trie.decisions.records.plan import Array, Choice, Map, Node, Object, Slot, String, Union


@dataclass(frozen=True)
class Position:
    """Where a value stands."""

    pointer: str = ""
    """JSON pointer."""
    level: int = 0

    def inside(self, key: str | int) -> Position:
        """Return the position of a field or an item."""
        name = str(key).replace("~", "~0").replace("/", "~1")
        return Position(f"{self.pointer}/{name}", self.level + 1)


@dataclass(frozen=True)
class Layout:
    """White space: none, or so many spaces a level."""

    indent: int | None = None

    @property
    def colon(self) -> str:
        """What stands between key and value."""
        return ":" if self.indent is None else ": "

    def line(self, level: int) -> str:
        """Return what stands before an item, or the bracket behind the last."""
        return "" if self.indent is None else "\n" + " " * (self.indent * level)

    def dumps(self, value: Any, level: int) -> str:
        """Spell a value."""
        if self.indent is None:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return json.dumps(value, ensure_ascii=False, indent=self.indent).replace("\n", self.line(level))

    def key(self, name: str, is_first: bool, level: int) -> str:
        """Spell a key, from what separates it to its colon."""
        separator = "" if is_first else ","
        return f"{separator}{self.line(level + 1)}{json.dumps(name, ensure_ascii=False)}{self.colon}"

    def close(self, bracket: str, is_empty: bool, level: int) -> str:
        """Spell the end of an object or list."""
        return bracket if is_empty else self.line(level) + bracket


@dataclass(frozen=True)
class Whole:
    """Left to write: a value."""

    node: Node
    position: Position


@dataclass(frozen=True)
class Content:
    """Left to write: a string, from behind its first quote."""

    node: String
    position: Position


@dataclass(frozen=True)
class Fields:
    """Left to write: an object, from a field on; n of its fields are there."""

    node: Object
    position: Position
    next: int = 0
    n: int = 0


@dataclass(frozen=True)
class Items:
    """Left to write: a list or map, from an item on."""

    node: Array | Map
    position: Position
    n: int = 0
    taken: frozenset[str] = frozenset()
    """Items that are not to come again."""


@dataclass(frozen=True)
class Entry:
    """Left to write: a map, from within its next key on."""

    node: Map
    position: Position
    n: int


Rest: TypeAlias = Whole | Content | Fields | Items | Entry


@dataclass(frozen=True)
class Way:
    """One way to begin: a text, or what runs under a grammar; and what is left to write behind it, the next first."""

    text: str
    pointer: str
    rests: tuple[Rest, ...] = ()
    by_digits: bool = False
    """Whether it is one of the numbers of a `Choice` of such."""

    @property
    def slot(self) -> Slot | None:
        """What it begins with if that is no text."""
        first = self.rests[0] if self.rests and not self.text else None
        return first.node if isinstance(first, Whole) and isinstance(first.node, Slot) else None

    def between(self, before: str, *behind: Rest) -> Way:
        """Return it with a text before, and more left behind."""
        return replace(self, text=before + self.text, rests=(*self.rests, *behind))


def ways(rest: Rest, layout: Layout) -> list[Way]:
    """Return all ways to go on with what is left, other than a string's content."""
    if isinstance(rest, Fields):
        return _field_ways(rest, layout)
    if isinstance(rest, Items):
        return _item_ways(rest, layout)
    assert isinstance(rest, Whole)
    node, position = rest.node, rest.position
    at = position.pointer
    if isinstance(node, Choice):
        return [Way(layout.dumps(value, position.level), at, (), node.by_digits) for value in node.values]
    if isinstance(node, String):
        return [Way('"', at, (Content(node, position),))]
    if isinstance(node, Slot):
        return [Way("", at, (rest,))]
    if isinstance(node, Union):
        return [way for option in node.options for way in ways(Whole(option, position), layout)]
    if isinstance(node, Object):
        return _openings(node, position, layout)
    return [Way("[" if isinstance(node, Array) else "{", at, (Items(node, position),))]


def _openings(node: Object, position: Position, layout: Layout) -> list[Way]:
    """Return an object's: its first key where that is forced, and, as this tells objects apart, a plain value there."""
    if not node.fields or not node.fields[0].is_required:
        return [Way("{", position.pointer, (Fields(node, position),))]
    first = node.fields[0]
    key = "{" + layout.key(first.name, True, position.level)
    behind = Fields(node, position, 1, 1)
    value = Whole(first.node, position.inside(first.name))
    if isinstance(first.node, (Choice, String)):
        return [way.between(key, behind) for way in ways(value, layout)]
    return [Way(key, position.pointer, (value, behind))]


def _field_ways(rest: Fields, layout: Layout) -> list[Way]:
    position, n = rest.position, rest.n
    found = []
    for i, field in enumerate(rest.node.fields[rest.next :], rest.next):
        value = Whole(field.node, position.inside(field.name))
        key = layout.key(field.name, n == 0, position.level)
        found.append(Way(key, position.pointer, (value, Fields(rest.node, position, i + 1, n + 1))))
        if field.is_required:
            return found
    return [*found, Way(layout.close("}", n == 0, position.level), position.pointer)]


def _item_ways(rest: Items, layout: Layout) -> list[Way]:
    node, position, n = rest.node, rest.position, rest.n
    found = []
    before = ("," if n else "") + layout.line(position.level + 1)
    if n < node.max_items and isinstance(node, Map):
        found = [Way(f'{before}"', position.pointer, (Entry(node, position, n),))]
    elif n < node.max_items and isinstance(node, Array):
        for way in ways(Whole(node.kind(n), position.inside(n)), layout):
            if way.text not in rest.taken:
                taken = rest.taken | {way.text} if node.unique else rest.taken
                found.append(way.between(before, Items(node, position, n + 1, taken)))
    if n >= node.min_items or not found:
        found.append(
            Way(layout.close("]" if isinstance(node, Array) else "}", n == 0, position.level), position.pointer)
        )
    return found


def beginnings(rest: Items, layout: Layout) -> tuple[str, ...]:
    """Return the characters that the ways on behind an item begin with, where another may follow."""
    end = () if rest.n < rest.node.min_items else (layout.close("]", False, rest.position.level)[0],)
    return (",", *end)
