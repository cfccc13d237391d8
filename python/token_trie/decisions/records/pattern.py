"""Regular expressions of JSON Schema, as a grammar of JSON strings that they find something in.

Where ECMA 262, which JSON Schema names, and Python, whose validators read them by `re`, mean different characters by a
class, what is written is of both, and what is left out of a complement is of either.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

from token_trie.decisions.records.gbnf import MOST_REPEATED, Chars, Either, Expression, Repeat, Sequence, Text

_QUOTE, _BACKSLASH, _ALL = ord('"'), ord("\\"), 0x10FFFF
# What a JSON string holds as it is, in the ranges of characters that there are.
_PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0xD7FF), (0xE000, _ALL))
CHAR: Expression = Either((Chars(_PLAIN), Sequence((Text("\\"), Chars(tuple((ord(c), ord(c)) for c in '"\\/bfnrt'))))))
"""Any character of a JSON string."""
_PARSER = "re._parser" if sys.version_info >= (3, 11) else "sre_parse"

_MOST_EMPTY = 16
"""Parts in a row that may be empty: llama.cpp's grammar follows all ways through them at each character."""
_MOST_CHARACTERS = 5_000

_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
_Ranges = list[tuple[int, int]]
_ASCII = {"d": [(48, 57)], "w": [(48, 57), (65, 90), (95, 95), (97, 122)]}
_SPACES = [(9, 13), (32, 32), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F)]
_SPACES += [(0x205F, 0x205F), (0x3000, 0x3000)]
_BREAKS = [(10, 10), (13, 13), (0x2028, 0x2029)]


class Pattern(NamedTuple):
    """A grammar."""

    content: Expression
    min_length: int
    """Characters at least,"""
    max_length: int | None
    """and at most."""


def read_pattern(pattern: str) -> Pattern:
    """Read a pattern; ValueError: it is none, it has something that no grammar says, or nothing matches it."""
    tree = _parse(pattern)
    _merge(tree)
    body, starts, ends = _anchored(list(tree))
    if (n := _open_run(tree)) > _MOST_EMPTY:
        raise ValueError(f"{n} parts in a row that may be empty, more than {_MOST_EMPTY}")
    low, high = tree.getwidth()
    return Pattern(body, low, int(high) if starts and ends and high < 10**6 else None)


def _parse(pattern: str) -> Any:
    """Return the syntax tree of a pattern. It is never compiled: a search by `re` may take exponential time."""
    if len(pattern) > _MOST_CHARACTERS:
        raise ValueError(f"more than {_MOST_CHARACTERS:,} characters")
    parser: Any = importlib.import_module(_PARSER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = parser.parse(pattern)
        except Exception as error:
            raise ValueError(str(error)) from error
    if tree.state.flags & ~32:
        raise ValueError("flags")
    return tree


def _merge(tree: Any) -> None:
    """Make one repetition of those of the same that stand in a row: a?a? is a{0,2}."""
    merged: list[Any] = []
    for name, value in tree:
        for inner in _inner(name, value):
            _merge(inner)
        before, last = merged[-1] if merged else (None, None)
        if last is not None and before is name and str(name) in _REPEATS and repr(last[2]) == repr(value[2]):
            low, high = last[0] + value[0], value[1]
            if str(high) != "MAXREPEAT":
                high = last[1] if str(last[1]) == "MAXREPEAT" else last[1] + high
            merged[-1] = name, (low, high, value[2])
        else:
            merged.append((name, value))
    tree.data[:] = merged


def _inner(name: Any, value: Any) -> list[Any]:
    """Return the parts that an item is made of."""
    if str(name) in _REPEATS:
        return [value[2]]
    return value[1] if str(name) == "BRANCH" else [value[3]] if str(name) == "SUBPATTERN" else []


def _open_run(items: Any) -> int:
    """Return the most parts in a row that may be empty."""
    most = run = 0
    for i, item in enumerate(items):
        name, value = _name(item), item[1]
        within = max(map(_open_run, _inner(name, value)), default=0)
        if name in _REPEATS and value[2].getwidth()[0] == 0 and str(value[1]) != "MAXREPEAT":
            within *= max(1, int(value[1]))
        run = run + max(1, within) if name != "AT" and items[i : i + 1].getwidth()[0] == 0 else 0
        most = max(most, run, within)
    return most


def _anchored(items: list[Any]) -> tuple[Expression, bool, bool]:
    """Return what finds the items, and whether all of it is anchored at its start, and at its end."""
    if len(items) == 1 and _name(items[0]) == "BRANCH":
        branches = [_anchored(list(branch)) for branch in items[0][1][1]]
        body = Either(tuple(branch[0] for branch in branches))
        return body, all(branch[1] for branch in branches), all(branch[2] for branch in branches)
    starts = bool(items) and _is_at(items[0], "AT_BEGINNING")
    ends = bool(items) and _is_at(items[-1], "AT_END")
    inner = items[starts : len(items) - ends]
    any_text = Repeat(CHAR, 0, None)
    parts = [*([] if starts else [any_text]), *map(_item, inner), *([] if ends else [any_text])]
    return Sequence(tuple(parts)), starts, ends


def _name(item: Any) -> str:
    return str(item[0])


def _is_at(item: Any, where: str) -> bool:
    return _name(item) == "AT" and str(item[1]).startswith(where)


def _sequence(items: Any, times: int) -> Expression:
    return Sequence(tuple(_item(item, times) for item in items))


def _item(item: Any, times: int = 1) -> Expression:
    """Return what an item is that stands in so many repetitions of others."""
    name, value = _name(item), item[1]
    if name == "LITERAL" and not 0xD800 <= value <= 0xDFFF:
        return Text(json.dumps(chr(value), ensure_ascii=False)[1:-1])
    if name in ("NOT_LITERAL", "ANY"):
        return _class(_complement(_BREAKS if name == "ANY" else [(value, value)]))
    if name == "IN":
        return _class(_set(value))
    if name in _REPEATS:
        low, high, inner = value
        most = None if str(high) == "MAXREPEAT" else int(high)
        times *= max(int(low), most or 1, 1)
        if times > MOST_REPEATED:
            raise ValueError(f"more than {MOST_REPEATED} times")
        if inner.getwidth()[0] == 0 and most is None:
            raise ValueError("what may be empty, any number of times")
        return Repeat(_sequence(inner, times), int(low), most) if most != 0 else Sequence(())
    if name == "SUBPATTERN" and not (value[1] or value[2]):
        return _sequence(value[3], times)
    if name == "BRANCH":
        return Either(tuple(_sequence(branch, times) for branch in value[1]))
    what = {"AT": "a place inside", "ASSERT": "lookahead", "ASSERT_NOT": "lookahead", "GROUPREF": "a back reference"}
    raise ValueError(what.get(name, name.lower()))


def _set(members: Any) -> _Ranges:
    negated = _name(members[0]) == "NEGATE"
    found: _Ranges = []
    for member in members[negated:]:
        name, value = _name(member), member[1]
        if name == "LITERAL":
            found.append((value, value))
        elif name == "RANGE":
            found.append(value)
        else:
            found += _category(str(value), widely=negated)
    return _complement(found) if negated else found


def _category(name: str, *, widely: bool) -> _Ranges:
    """Return the characters of a class: those of both readings, or widely those of either."""
    kind = name.removeprefix("CATEGORY_")
    is_negated = kind.startswith("NOT_")
    letter = kind.removeprefix("NOT_")[0].lower()
    if widely != is_negated:
        ranges = [*_in_python(letter), *([(0xFEFF, 0xFEFF)] if letter == "s" else [])]
    else:
        ranges = _SPACES if letter == "s" else _ASCII[letter]
    return _complement(ranges) if is_negated else ranges


@lru_cache
def _in_python(letter: str) -> tuple[tuple[int, int], ...]:
    everything = "".join(map(chr, range(_ALL + 1)))
    return tuple((found.start(), found.end() - 1) for found in re.finditer(rf"\{letter}+", everything))


def _complement(ranges: _Ranges) -> _Ranges:
    found, begin = [], 0
    for low, high in sorted(ranges):
        if begin < low:
            found.append((begin, low - 1))
        begin = max(begin, high + 1)
    return [*found, (begin, _ALL)] if begin <= _ALL else found


def _class(ranges: _Ranges) -> Expression:
    """Return one character of these as a JSON string holds it; control characters are left out."""
    plain = tuple((max(a, c), min(b, d)) for a, b in ranges for c, d in _PLAIN if max(a, c) <= min(b, d))
    parts: list[Expression] = [Chars(plain)] if plain else []
    parts += [Text(r"\"")] if any(a <= _QUOTE <= b for a, b in ranges) else []
    parts += [Text(r"\\")] if any(a <= _BACKSLASH <= b for a, b in ranges) else []
    if not parts:
        raise ValueError("a character that nothing is")
    return parts[0] if len(parts) == 1 else Either(tuple(parts))
