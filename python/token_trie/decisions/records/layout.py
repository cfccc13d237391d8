"""How JSON is laid out, and how what a plan lets be written begins."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from token_trie.decisions.records.plan import Array, Choice, Map, Node, Object, Slot, String, Union


@dataclass(frozen=True)
class Place:
    """Where a value stands."""

    pointer: str = ""
    """JSON pointer."""
    level: int = 0

    def inside(self, key: str | int) -> Place:
        """Return the place of a field or an item."""
        name = str(key).replace("~", "~0").replace("/", "~1")
        return Place(f"{self.pointer}/{name}", self.level + 1)


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
    place: Place


@dataclass(frozen=True)
class Content:
    """Left to write: a string, from behind its first quote."""

    node: String
    place: Place


@dataclass(frozen=True)
class Fields:
    """Left to write: an object, from a field on; n of its fields are there."""

    node: Object
    place: Place
    next: int = 0
    n: int = 0


@dataclass(frozen=True)
class Items:
    """Left to write: a list or map, from an item on."""

    node: Array | Map
    place: Place
    n: int = 0
    taken: frozenset[str] = frozenset()
    """Items that are not to come again."""


@dataclass(frozen=True)
class Entry:
    """Left to write: a map, from within its next key on."""

    node: Map
    place: Place
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
    node, place = rest.node, rest.place
    at = place.pointer
    if isinstance(node, Choice):
        return [Way(layout.dumps(value, place.level), at, (), node.by_digits) for value in node.values]
    if isinstance(node, String):
        return [Way('"', at, (Content(node, place),))]
    if isinstance(node, Slot):
        return [Way("", at, (rest,))]
    if isinstance(node, Union):
        return [way for option in node.options for way in ways(Whole(option, place), layout)]
    if isinstance(node, Object):
        return _openings(node, place, layout)
    return [Way("[" if isinstance(node, Array) else "{", at, (Items(node, place),))]


def _openings(node: Object, place: Place, layout: Layout) -> list[Way]:
    """Return an object's: its first key where that is forced, and, as this tells objects apart, a plain value there."""
    if not node.fields or not node.fields[0].is_required:
        return [Way("{", place.pointer, (Fields(node, place),))]
    first = node.fields[0]
    key = "{" + layout.key(first.name, True, place.level)
    behind = Fields(node, place, 1, 1)
    value = Whole(first.node, place.inside(first.name))
    if isinstance(first.node, (Choice, String)):
        return [way.between(key, behind) for way in ways(value, layout)]
    return [Way(key, place.pointer, (value, behind))]


def _field_ways(rest: Fields, layout: Layout) -> list[Way]:
    place, n = rest.place, rest.n
    found = []
    for i, field in enumerate(rest.node.fields[rest.next :], rest.next):
        value = Whole(field.node, place.inside(field.name))
        key = layout.key(field.name, n == 0, place.level)
        found.append(Way(key, place.pointer, (value, Fields(rest.node, place, i + 1, n + 1))))
        if field.is_required:
            return found
    return [*found, Way(layout.close("}", n == 0, place.level), place.pointer)]


def _item_ways(rest: Items, layout: Layout) -> list[Way]:
    node, place, n = rest.node, rest.place, rest.n
    found = []
    before = ("," if n else "") + layout.line(place.level + 1)
    if n < node.max_items and isinstance(node, Map):
        found = [Way(f'{before}"', place.pointer, (Entry(node, place, n),))]
    elif n < node.max_items and isinstance(node, Array):
        for way in ways(Whole(node.kind(n), place.inside(n)), layout):
            if way.text not in rest.taken:
                taken = rest.taken | {way.text} if node.unique else rest.taken
                found.append(way.between(before, Items(node, place, n + 1, taken)))
    if n >= node.min_items or not found:
        found.append(Way(layout.close("]" if isinstance(node, Array) else "}", n == 0, place.level), place.pointer))
    return found


def beginnings(rest: Items, layout: Layout) -> tuple[str, ...]:
    """Return the characters that the ways on behind an item begin with, where another may follow."""
    end = () if rest.n < rest.node.min_items else (layout.close("]", False, rest.place.level)[0],)
    return (",", *end)
