"""What a schema lets be written, as a tree of nodes.

{"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}}, "required": ["city"]}

Object ── city (required) ── String      written: {"city":"   then free text, then   "
└─ unit ───────────── Choice      decided: ,"unit": or } and, behind the key, "C" or "F"
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from token_trie.decisions.records.gbnf import Expression, Grammar, print_grammar


@dataclass(frozen=True, eq=False)
class Choice:
    """One of some JSON values; the only one, where there is one."""

    values: tuple[Any, ...]
    by_digits: bool = False
    """Whether they are numbers between bounds, which are decided digit by digit in every mode."""


@dataclass(frozen=True, eq=False)
class String:
    """Free text in quotes, under a grammar."""

    content: Expression
    """Of what stands between the quotes; where it can end anywhere, without the most characters."""
    max_length: int | None
    """Characters after which it ends."""
    min_length: int = 0
    can_end_anywhere: bool = True
    """Whether any text of these lengths will do, so that one that does not end can be closed."""
    is_cut: bool = False
    """Whether the content may go on after the most characters; it then ends where it last could."""

    @cached_property
    def grammar(self) -> Grammar:
        """The content, printed."""
        return print_grammar(self.content)


@dataclass(frozen=True, eq=False)
class Slot:
    """A number, or a value of any kind, under a grammar."""

    value: Expression
    begins_with: str
    """Characters that it may begin with."""

    @cached_property
    def grammar(self) -> Grammar:
        """The value, printed."""
        return print_grammar(self.value)


@dataclass(frozen=True, eq=False)
class Union:
    """One of several, told apart by how they begin."""

    options: tuple[Node, ...]

    @cached_property
    def n_options(self) -> int:
        """Count the options, those of options that are unions or choices each by itself."""
        return sum(map(count_options, self.options))


class Field(NamedTuple):
    """A key of an object, and its value."""

    name: str
    node: Node
    is_required: bool


@dataclass(frozen=True, eq=False)
class Object:
    """Fields in their order; which of the optional ones there are is decided key by key."""

    fields: tuple[Field, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Counted:
    """What has so many items."""

    min_items: int
    max_items: int


@dataclass(frozen=True, eq=False)
class Map(Counted):
    """Free keys, and values of one kind."""

    key: String
    node: Node


@dataclass(frozen=True, eq=False)
class Array(Counted):
    """Items; the first ones may be of kinds of their own."""

    heads: tuple[Node, ...]
    item: Node | None
    unique: bool

    def kind(self, index: int) -> Node:
        """Return the kind of an item."""
        node = self.heads[index] if index < len(self.heads) else self.item
        assert node is not None
        return node


Node: TypeAlias = Choice | String | Slot | Union | Object | Map | Array


def count_options(node: Node) -> int:
    """Count the ways in which a value may begin."""
    if isinstance(node, Union):
        return node.n_options
    first = node.fields[0].node if isinstance(node, Object) and node.fields else node
    return len(first.values) if isinstance(first, Choice) else 1
