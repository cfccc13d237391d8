"""Regular expressions of JSON Schema, as a grammar of JSON strings that they find something in."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from typing import Any, NamedTuple

_MOST_REPEATED = 1000
_ANY = "char*"
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_DIGITS, _WORDS = [(48, 57)], [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACES = [(9, 13), (32, 32), (160, 160), (0xFEFF, 0xFEFF), (0x2028, 0x2029)]
_ALL = 0x10FFFF
# What a JSON string holds as it is, in the ranges of characters that there are.
_PLAIN = [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0xD7FF), (0xE000, _ALL)]
_PARSER = "re._parser" if sys.version_info >= (3, 11) else "sre_parse"

Ranges = list[tuple[int, int]]


class Pattern(NamedTuple):
    """A grammar."""

    content: str
    """GBNF; refers to the rule char, for any character."""
    min_length: int
    """Characters at least,"""
    max_length: int | None
    """and at most."""


def read_pattern(pattern: str) -> Pattern:
    """Read a pattern.

    Raises
    ------
    ValueError
        It is none, it has something that no grammar says, or nothing matches it.
    """
    parser: Any = importlib.import_module(_PARSER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = parser.parse(pattern)
        except Exception as error:
            raise ValueError(str(error)) from error
    if tree.state.flags & ~32:
        raise ValueError("flags")
    body, starts, ends = _anchored(list(tree))
    low, high = tree.getwidth()
    return Pattern(body, low, int(high) if starts and ends and high < 10**6 else None)


def _anchored(items: list[Any]) -> tuple[str, bool, bool]:
    """Return what finds the items, and whether all of it is anchored at its start, and at its end."""
    if len(items) == 1 and _name(items[0]) == "BRANCH":
        branches = [_anchored(list(branch)) for branch in items[0][1][1]]
        body = " | ".join(f"( {branch[0]} )" for branch in branches)
        return body, all(branch[1] for branch in branches), all(branch[2] for branch in branches)
    starts = bool(items) and _is_at(items[0], "AT_BEGINNING")
    ends = bool(items) and _is_at(items[-1], "AT_END")
    inner = items[starts : len(items) - ends]
    parts = [*([] if starts else [_ANY]), *map(_item, inner), *([] if ends else [_ANY])]
    return " ".join(parts) or '""', starts, ends


def _name(item: Any) -> str:
    return str(item[0])


def _is_at(item: Any, where: str) -> bool:
    return _name(item) == "AT" and str(item[1]).startswith(where)


def _sequence(items: Any, times: int) -> str:
    return " ".join(_item(item, times) for item in items) or '""'


def _item(item: Any, times: int = 1) -> str:
    """Return the GBNF of an item that stands in so many repetitions of others."""
    name, value = _name(item), item[1]
    if name == "LITERAL" and not 0xD800 <= value <= 0xDFFF:
        return json.dumps(json.dumps(chr(value), ensure_ascii=False)[1:-1], ensure_ascii=False)
    if name in ("NOT_LITERAL", "ANY"):
        return _class(_complement([(10, 10), (13, 13)] if name == "ANY" else [(value, value)]))
    if name == "IN":
        return _class(_set(value))
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        low, high, inner = value
        most = "" if str(high) == "MAXREPEAT" else str(int(high))
        times *= max(int(low), int(most or 1), 1)
        if times > _MOST_REPEATED:
            raise ValueError(f"more than {_MOST_REPEATED} times")
        return f"( {_sequence(inner, times)} ){{{low},{most}}}"
    if name == "SUBPATTERN" and not (value[1] or value[2]):
        return f"( {_sequence(value[3], times)} )"
    if name == "BRANCH":
        return "( " + " | ".join(_sequence(branch, times) for branch in value[1]) + " )"
    what = {"AT": "a place inside", "ASSERT": "lookahead", "ASSERT_NOT": "lookahead", "GROUPREF": "a back reference"}
    raise ValueError(what.get(name, name.lower()))


def _set(members: Any) -> Ranges:
    found: Ranges = []
    negated = False
    for member in members:
        name, value = _name(member), member[1]
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            found.append((value, value))
        elif name == "RANGE":
            found.append(value)
        else:
            found += _category(str(value))
    return _complement(found) if negated else found


def _category(name: str) -> Ranges:
    kind = name.removeprefix("CATEGORY_")
    known = {"DIGIT": _DIGITS, "WORD": _WORDS, "SPACE": _SPACES}
    ranges = known[kind.removeprefix("NOT_")]
    return _complement(ranges) if kind.startswith("NOT_") else ranges


def _complement(ranges: Ranges) -> Ranges:
    found, begin = [], 0
    for low, high in sorted(ranges):
        if begin < low:
            found.append((begin, low - 1))
        begin = max(begin, high + 1)
    return [*found, (begin, _ALL)] if begin <= _ALL else found


def _class(ranges: Ranges) -> str:
    """Return one character of these as a JSON string holds it; control characters are left out."""
    plain = [(max(a, c), min(b, d)) for a, b in ranges for c, d in _PLAIN if max(a, c) <= min(b, d)]
    parts = ["[" + "".join(f"{_char(a)}-{_char(b)}" for a, b in plain) + "]"] if plain else []
    parts += [r'"\\\""'] if any(a <= _QUOTE <= b for a, b in ranges) else []
    parts += [r'"\\\\"'] if any(a <= _BACKSLASH <= b for a, b in ranges) else []
    if not parts:
        raise ValueError("a character that nothing is")
    return parts[0] if len(parts) == 1 else "( " + " | ".join(parts) + " )"


def _char(code: int) -> str:
    return f"\\x{code:02X}" if code < 0x80 else f"\\U{code:08X}"
