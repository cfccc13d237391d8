"""Several schemas of which one holds: whether they exclude each other, and how they are told apart in writing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

from token_trie.decisions.records.grammar import grammar_of
from token_trie.decisions.records.keywords import KINDS, UnkeptError, is_kind, refuse
from token_trie.decisions.records.layout import Layout, Position, Way, Whole, ways
from token_trie.decisions.records.plan import Node, Slot, Union
from token_trie.decisions.records.values import share_a_value

_MOST_NESTED = 16
_MOST_OPTIONS = 100_000


def make_union(nodes: list[Node], pointer: str) -> Node:
    """Return one node for several: a union whose ways are told apart as they begin, or one grammar of all of them."""
    if len(nodes) == 1:
        return nodes[0]
    union = Union(tuple(nodes))
    if union.n_options > _MOST_OPTIONS:
        raise refuse(pointer, f"{union.n_options:,} alternatives, more than {_MOST_OPTIONS:,}")
    found = [(i, way) for i, node in enumerate(nodes) for way in ways(Whole(node, Position()), Layout())]
    clash = _clash(found)
    if clash is None:
        return union
    try:
        return Slot(grammar_of(union), "".join(sorted(set("".join(_first(way) for _, way in found)))))
    except ValueError as error:
        why = f"two ways to go on begin alike, with {clash}, and no grammar says {error}"
        raise refuse(pointer, f"{why}; let the first field tell them apart") from error


def _first(way: Way) -> str:
    """Return the characters that a way may begin with."""
    return way.text[0] if way.slot is None else way.slot.begins_with


def _clash(found: list[tuple[int, Way]]) -> str | None:
    """Return the beginning that two of the ways have, by which they cannot be told apart."""
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


def check_exclusive(options: list[Any], pointer: str, find: Callable[[Any, str], Any]) -> None:
    """Raise ArgumentError where a value may be valid by two of some schemas, which could all be read."""
    for (i, a), (j, b) in combinations(enumerate(options), 2):
        try:
            exclude = _exclude(a, b, pointer, find, 0)
        except (TypeError, AttributeError):  # behind more references than are read, something is no schema
            exclude = False
        if not exclude:
            raise UnkeptError(f"{pointer}/oneOf/{j}", f"may be valid together with /{i}; tell them apart, or use anyOf")


def _exclude(a: Any, b: Any, pointer: str, find: Callable[[Any, str], Any], depth: int) -> bool:
    """Whether no value is valid by both, as far as kinds and constants tell."""
    for _ in range(_MOST_NESTED):
        a, b = (find(s["$ref"], pointer) if isinstance(s, dict) and "$ref" in s else s for s in (a, b))
    if not (isinstance(a, dict) and isinstance(b, dict)) or depth > _MOST_NESTED:
        return False
    values, others = ([s["const"]] if "const" in s else s.get("enum") for s in (a, b))
    if isinstance(values, list) and isinstance(others, list):
        return not share_a_value(values, others)
    kinds = []
    for schema, own in ((a, values), (b, others)):
        named = schema.get("type", [])
        named = [kind for kind in KINDS if any(is_kind(v, kind) for v in own)] if own and not named else named
        listed = [named] if isinstance(named, str) else named
        kinds.append({"number" if kind == "integer" else kind for kind in listed})
    if kinds[0] and kinds[1] and not kinds[0] & kinds[1]:
        return True
    fields = [s.get("properties", {}) if s.get("type") == "object" else {} for s in (a, b)]
    both = set(a.get("required", [])) & set(b.get("required", [])) & fields[0].keys() & fields[1].keys()
    return any(_exclude(fields[0][name], fields[1][name], pointer, find, depth + 1) for name in both)
