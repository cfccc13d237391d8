"""Grammars as llama.cpp reads them (GBNF): expressions, number ranges, patterns and formats of JSON Schema.

The printer names all rules, so that names cannot collide. Repeated parts become rules, which count once towards
llama.cpp's limit of repetitions. Where ECMA 262 (JSON Schema) and Python's `re` (validators) disagree on a character
class, a class is their intersection, and a complement leaves out their union.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import groupby
from operator import or_
from typing import Any, NamedTuple, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]

MAX_REPEATS = 1000
"""Maximum number of repetitions; llama.cpp takes 2000 for no limit."""
_MAX_MATCHED, _MAX_STEPS = 50_000, 2_000_000
_MAX_INLINE = 8
"""Ranges of a class that is printed where it stands; a larger one is a rule, printed once."""


@dataclass(frozen=True, eq=False)
class TextLiteral:
    """A literal text."""

    text: str


@dataclass(frozen=True, eq=False)
class Chars:
    """One character from ranges of code points."""

    ranges: Ranges


@dataclass(frozen=True, eq=False)
class Sequence:
    """All parts in order."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Either:
    """One of the parts."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """A part, repeated low to high times; None: no limit."""

    part: Expression
    low: int
    high: int | None

    def __post_init__(self) -> None:
        most = self.low if self.high is None else self.high
        if most > MAX_REPEATS:
            raise ValueError(f"more than {MAX_REPEATS} times")


_EMPTY = Sequence(())


@dataclass(eq=False)
class Rule:
    """A named expression, which can be used several times and recursively."""

    body: Expression = _EMPTY


Expression: TypeAlias = TextLiteral | Chars | Sequence | Either | Repeat | Rule


class Grammar:
    """The text of an expression, `body`; without what the rule `without` allows, if this may be empty."""

    def __init__(self, expression: Expression, without: Rule | None = None) -> None:
        self._without = without
        self._names: dict[Expression, str] = {}
        self._bodies: dict[str, str] = {}
        self.body = self._text(expression)

    @property
    def rules(self) -> str:
        """The rules that the body refers to, one a line; each name is r and a number."""
        return "\n".join(f"{name} ::= {body}" for name, body in self._bodies.items())

    def _text(self, expression: Expression) -> str:
        if isinstance(expression, TextLiteral):
            return quote(expression.text)
        if isinstance(expression, Chars):
            return self._chars(expression)
        if isinstance(expression, Sequence):
            return " ".join(map(self._text, expression.parts)) or '""'
        if isinstance(expression, Either):
            return "( " + " | ".join(map(self._text, expression.parts)) + " )"
        if expression is self._without:
            return '""'
        if isinstance(expression, Rule):
            return self._name(expression, expression.body)
        most = "" if expression.high is None else expression.high
        return f"{self._name(expression.part, expression.part)}{{{expression.low},{most}}}"

    def _chars(self, chars: Chars) -> str:
        if chars not in self._names:
            text = "[" + "".join(f"{_code(a)}-{_code(b)}" for a, b in chars.ranges) + "]"
            if len(chars.ranges) <= _MAX_INLINE:
                return text
            self._names[chars] = name = f"r{len(self._names)}"
            self._bodies[name] = text
        return self._names[chars]

    def _name(self, known_by: Expression, body: Expression) -> str:
        if isinstance(body, Rule):
            return self._text(body)
        if known_by not in self._names:
            self._names[known_by] = name = f"r{len(self._names)}"
            self._bodies[name] = self._text(body)
        return self._names[known_by]


def quote(text: str) -> str:
    """Return the GBNF literal of a text."""
    return '"' + "".join(c if " " <= c <= "~" and c not in '"\\' else _code(ord(c)) for c in text) + '"'


def _code(code: int) -> str:
    return f"\\x{code:02X}" if code < 0x80 else f"\\U{code:08X}"


class Matcher:
    """Matches texts against an expression.

    All paths through the expression are followed at once, so the time is linear in both lengths. A set of positions in
    the text is an integer with one bit for each.
    """

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self._n_steps = 0

    def ends(self, text: str) -> int:
        """Return the end positions of matches; ValueError if all texts together take too long."""
        if len(text) > _MAX_MATCHED:
            raise ValueError(f"a text of more than {_MAX_MATCHED:,} characters takes too long")
        self._at: dict[str, int] = {}
        for i, char in enumerate(text):
            self._at[char] = self._at.get(char, 0) | 1 << i
        self._cost = 1 + len(text) // 256
        self._known: dict[tuple[Expression, int], int] = {}
        return self._after(self._expression, 1)

    def _after(self, expression: Expression, begins: int) -> int:
        """Return the end positions of an expression that begins at any of the given positions."""
        if not begins:
            return 0
        self._n_steps += self._cost
        if self._n_steps > _MAX_STEPS:
            raise ValueError("it takes too long")
        if isinstance(expression, TextLiteral):
            for char in expression.text:
                begins = (begins & self._at.get(char, 0)) << 1
            return begins
        if isinstance(expression, Sequence):
            return reduce(lambda found, part: self._after(part, found), expression.parts, begins)
        if isinstance(expression, Either):
            return reduce(or_, (self._after(part, begins) for part in expression.parts), 0)
        if isinstance(expression, Chars):
            if (expression, 0) not in self._known:
                chars = (at for char, at in self._at.items() if any(a <= ord(char) <= b for a, b in expression.ranges))
                self._known[expression, 0] = reduce(or_, chars, 0)
            return (begins & self._known[expression, 0]) << 1
        key = expression, begins
        if key not in self._known:
            if isinstance(expression, Rule):
                self._known[key] = self._after(expression.body, begins)
            else:
                self._known[key] = self._repeat(expression, begins)
        return self._known[key]

    def _repeat(self, repeat: Repeat, begins: int) -> int:
        for _ in range(repeat.low):
            begins = self._after(repeat.part, begins)
        found, n = begins, repeat.low
        while begins and (repeat.high is None or n < repeat.high):
            begins = self._after(repeat.part, begins) & ~found
            found |= begins
            n += 1
        return found


MAX_NUMBER = 10**9 - 1
"""Largest number without a bound: with six decimals, doubles still distinguish all numbers."""

N_DECIMALS = 6


def integers(low: int, high: int) -> str:
    """Return a pattern for the integers from low to high."""
    return _signed(low, high, 0)


def decimals(low: int, high: int) -> str:
    """Return a pattern for numbers with up to six decimals; low and high are in millionths."""
    return _signed(low, high, N_DECIMALS)


def _signed(low: int, high: int, n_decimals: int) -> str:
    parts = []
    if low < 0:
        parts.append(f"-({_unsigned(max(-high, 1), -low, n_decimals)})")
    if high >= 0:
        parts.append(_unsigned(max(low, 0), high, n_decimals))
    return "|".join(parts)


def _unsigned(low: int, high: int, n_decimals: int) -> str:
    """Return a pattern for natural numbers, by their number of digits; the last are decimals."""
    parts = []
    for n in range(max(len(str(low)), n_decimals + 1), max(len(str(high)), n_decimals + 1) + 1):
        least, most = max(low, 10 ** (n - 1) if n > n_decimals + 1 else 0), min(high, 10**n - 1)
        parts.append(_digits(f"{least:0{n}}", f"{most:0{n}}", n - n_decimals))
    return "|".join(parts)


def _digits(low: str, high: str, n_whole: int) -> str:
    """Return a pattern for the strings from low to high, of equal length; decimals come after `n_whole` digits."""
    n, first, last = len(low) - 1, int(low[0]), int(high[0])

    def following(digit: int) -> tuple[str, str]:
        return low[1:] if digit == first else "0" * n, high[1:] if digit == last else "9" * n

    parts = []
    for (least, most), alike in groupby(range(first, last + 1), following):
        begin, *others = alike
        digits = f"[{begin}-{others[-1]}]" if others else str(begin)
        parts.append(digits + _later_digits(least, most, n_whole - 1))
    return "|".join(parts)


def _later_digits(low: str, high: str, n_whole: int) -> str:
    """Return a pattern for what follows a digit; zeros at the end of decimals are optional, and the point with them."""
    n, are_any = len(low), not int(low or 0) and set(high) == {"9"}
    if n == 0 or (are_any and n == n_whole):
        return f"[0-9]{{{n}}}" if n else ""
    if are_any and n_whole < 0:
        return f"[0-9]{{0,{n}}}"
    digits = f"({_digits(low, high, n_whole)})"
    digits = rf"(\.{digits})" if n_whole == 0 else digits
    return digits + "?" if n_whole <= 0 and not int(low) else digits


_DAY = "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_LEAP = "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29"
_DATE = f"([1-9][0-9]{{3}}-{_DAY}|{_LEAP})"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{3}}([0-9]{{3}})?)?(Z|[+-]{_CLOCK})"
_HEX = "[0-9a-fA-F]"
_ATOM = "[A-Za-z0-9_+~-]"
_ALNUM = "[A-Za-z0-9]"
_SHORT_LABEL = f"{_ALNUM}([A-Za-z0-9-]{{0,38}}{_ALNUM})?"  # limits an address to 254 characters
_LABEL = f"{_ALNUM}([A-Za-z0-9-]{{0,61}}{_ALNUM})?"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [f"({_GROUP}:){{7}}{_GROUP}", f"({_GROUP}:){{1,7}}:", f":(:{_GROUP}){{1,7}}", "::"]
    + [f"({_GROUP}:){{1,{7 - n}}}(:{_GROUP}){{1,{n}}}" for n in range(1, 7)]
)
_URL_CHAR = f"([A-Za-z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
_PATH = f"(/{_URL_CHAR}*)*"
_WHERE = f"(//[A-Za-z0-9._~-]+(:[0-9]{{1,5}})?{_PATH}|///{_URL_CHAR}+{_PATH}|{_URL_CHAR}+{_PATH})"
_N = "[0-9]{1,9}"
_SPAN = f"T({_N}H({_N}M({_N}S)?)?|{_N}M({_N}S)?|{_N}S)"
_DAYS = f"({_N}Y({_N}M({_N}D)?)?|{_N}M({_N}D)?|{_N}D)"
FORMATS = {
    "date": f"^{_DATE}$",
    "uuid": f"^{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^P({_DAYS}({_SPAN})?|{_SPAN}|{_N}W)$",
    "email": rf"^{_ATOM}{{1,32}}(\.{_ATOM}{{1,31}})?@({_SHORT_LABEL}\.){{1,3}}[A-Za-z]{{2,24}}$",
    "hostname": rf"^{_LABEL}(\.{_LABEL})*$",
    "ipv4": rf"^({_BYTE}\.){{3}}{_BYTE}$",
    "ipv6": f"^({_IPV6})$",
    "uri": rf"^[A-Za-z][A-Za-z0-9+.-]{{1,9}}:{_WHERE}(\?({_URL_CHAR}|[/?])*)?(#({_URL_CHAR}|[/?])*)?$",
    "json-pointer": "^(/([^~/]|~[01])*)*$",
}
"""Patterns of the supported string formats; other formats are annotations."""


_QUOTE_BYTE, _BACKSLASH, _ALL = ord('"'), ord("\\"), 0x10FFFF
# Characters that a JSON string holds unescaped.
_PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0xD7FF), (0xE000, _ALL))
CHAR: Expression = Either(
    (Chars(_PLAIN), Sequence((TextLiteral("\\"), Chars(tuple((ord(c), ord(c)) for c in '"\\/bfnrt')))))
)
"""One character of a JSON string."""
_PARSER = "re._parser" if sys.version_info >= (3, 11) else "sre_parse"

_MAX_EMPTY = 16
"""Consecutive parts that may be empty: llama.cpp's grammar follows all paths through them at each character."""
_MAX_PATTERN = 5_000
MAX_STATES = 50_000
"""Maximum size of the grammars of all patterns of a schema."""
_N_RANGES = 800
"""About the number of ranges of a class of Unicode, such as \\W."""

_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
_Ranges = list[tuple[int, int]]
_ASCII = {"d": [(48, 57)], "w": [(48, 57), (65, 90), (95, 95), (97, 122)]}
_SPACES = [(9, 13), (32, 32), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F)]
_SPACES += [(0x205F, 0x205F), (0x3000, 0x3000)]
_BREAKS = [(10, 10), (13, 13), (0x2028, 0x2029)]


class Pattern(NamedTuple):
    """The grammar of a pattern, its size, and the lengths of its matches in characters."""

    content: Expression
    n_states: int
    """About the number of elements that llama.cpp makes of the grammar."""
    min_length: int
    max_length: int | None


@lru_cache(16)
def read_pattern(pattern: str) -> Pattern:
    """Read a pattern; ValueError if it is invalid, too large, not expressible as a grammar, or matches nothing."""
    tree = _parse(pattern)
    _merge(tree)
    if (n_states := _n_states(tree, set())) > MAX_STATES:
        raise ValueError(too_many(n_states))
    body, starts, ends = _anchored(list(tree))
    if (n := _open_run(tree)) > _MAX_EMPTY:
        raise ValueError(f"{n} parts in a row that may be empty, more than {_MAX_EMPTY}")
    low, high = tree.getwidth()
    return Pattern(body, n_states, low, int(high) if starts and ends and high < 10**6 else None)


def _parse(pattern: str) -> Any:
    """Return the syntax tree of a pattern. It is not compiled: `re` can take exponential time."""
    if len(pattern) > _MAX_PATTERN:
        raise ValueError(f"more than {_MAX_PATTERN:,} characters")
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
    """Merge consecutive repetitions of the same item: a?a? is a{0,2}."""
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
    """Return the subpatterns of an item."""
    if str(name) in _REPEATS:
        return [value[2]]
    return value[1] if str(name) == "BRANCH" else [value[3]] if str(name) == "SUBPATTERN" else []


def too_many(n_states: int) -> str:
    """Return what is wrong with more than `MAX_STATES`."""
    return f"{n_states:,} states, more than {MAX_STATES:,}"


def _n_states(items: Any, known: set[Any]) -> int:
    """Return the size of a grammar: one for each character, range and repetition. Equal classes are made once."""
    n = 0
    for item in items:
        name, value = _name(item), item[1]
        n += 1 + sum(_n_states(inner, known) for inner in _inner(name, value))
        if name in _REPEATS:
            n += int(value[0]) if str(value[1]) == "MAXREPEAT" else int(value[1])
        elif name == "IN" and (key := tuple(value)) not in known:
            known.add(key)
            n += sum(_N_RANGES if _name(member) == "CATEGORY" else 1 for member in value)
    return n


def _open_run(items: Any) -> int:
    """Return the maximum number of consecutive parts that may be empty."""
    most = run = 0
    for i, item in enumerate(items):
        name, value = _name(item), item[1]
        within = max(map(_open_run, _inner(name, value)), default=0)
        if name in _REPEATS and value[2].getwidth()[0] == 0 and str(value[1]) != "MAXREPEAT":
            within *= max(1, int(value[1]))
        run = run + max(1, within) if name != "AT" and items[i : i + 1].getwidth()[0] == 0 else 0
        most = max(most, run, within)
    return most


def _anchored(items: list[Any], *, is_after: bool = False) -> tuple[Expression, bool, bool]:
    """Return an expression that finds the items, and whether it is anchored at its start and end.

    With `is_after`, they follow others, which are at the start.
    """
    while items and _is_group(items[-1]):
        items = [*items[:-1], *items[-1][1][3]]
    starts = not is_after and bool(items) and _is_at(items[0], "AT_BEGINNING")
    any_text = Repeat(CHAR, 0, None)
    before = [] if starts or is_after else [any_text]
    if items and _name(items[-1]) == "BRANCH":  # the parser moves what all begin with before them
        first, is_after = items[starts:-1], is_after or len(items) > 1
        branches = [_anchored(list(branch), is_after=is_after) for branch in items[-1][1][1]]
        body: Expression = Either(tuple(branch[0] for branch in branches))
        if len(items) > 1:
            body = Sequence((*before, *map(_item, first), body))
        return body, starts or all(branch[1] for branch in branches), all(branch[2] for branch in branches)
    ends = bool(items) and _is_at(items[-1], "AT_END")
    parts = [*before, *map(_item, items[starts : len(items) - ends]), *([] if ends else [any_text])]
    return Sequence(tuple(parts)), starts, ends


def _name(item: Any) -> str:
    return str(item[0])


def _is_at(item: Any, where: str) -> bool:
    return _name(item) == "AT" and str(item[1]).startswith(where)


def _is_group(item: Any) -> bool:
    return _name(item) == "SUBPATTERN" and not (item[1][1] or item[1][2])


def _sequence(items: Any, times: int) -> Expression:
    return Sequence(tuple(_item(item, times) for item in items))


def _item(item: Any, times: int = 1) -> Expression:
    """Return the expression of an item inside repetitions that multiply to `times`."""
    name, value = _name(item), item[1]
    if name == "LITERAL" and not 0xD800 <= value <= 0xDFFF:
        return TextLiteral(json.dumps(chr(value), ensure_ascii=False)[1:-1])
    if name in ("NOT_LITERAL", "ANY"):
        return _class(_complement(_BREAKS if name == "ANY" else [(value, value)]))
    if name == "IN":
        return _class_of(tuple(value))
    if name in _REPEATS:
        low, high, inner = value
        most = None if str(high) == "MAXREPEAT" else int(high)
        times *= max(int(low), most or 1, 1)
        if times > MAX_REPEATS:
            raise ValueError(f"more than {MAX_REPEATS} times")
        if inner.getwidth()[0] == 0 and most is None:
            raise ValueError("what may be empty, any number of times")
        return Repeat(_sequence(inner, times), int(low), most) if most != 0 else Sequence(())
    if _is_group(item):
        return _sequence(value[3], times)
    if name == "BRANCH":
        return Either(tuple(_sequence(branch, times) for branch in value[1]))
    what = {"AT": "a place inside", "ASSERT": "lookahead", "ASSERT_NOT": "lookahead", "GROUPREF": "a back reference"}
    raise ValueError(what.get(name, name.lower()))


@lru_cache(64)
def _class_of(members: tuple[Any, ...]) -> Expression:
    return _class(_set(members))


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
    """Return a class: the intersection of both definitions, or (widely) their union."""
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
    """Return an expression for one character of a JSON string; control characters are excluded."""
    plain = tuple((max(a, c), min(b, d)) for a, b in ranges for c, d in _PLAIN if max(a, c) <= min(b, d))
    parts: list[Expression] = [Chars(plain)] if plain else []
    parts += [TextLiteral(r"\"")] if any(a <= _QUOTE_BYTE <= b for a, b in ranges) else []
    parts += [TextLiteral(r"\\")] if any(a <= _BACKSLASH <= b for a, b in ranges) else []
    if not parts:
        raise ValueError("a character that nothing is")
    return parts[0] if len(parts) == 1 else Either(tuple(parts))


def other_texts(texts: Iterable[str], most: int | None) -> Expression:
    """Return the grammar of all texts but some, of so many characters at most."""
    if most == 0:
        return _EMPTY
    rests: dict[str, list[str]] = {}
    for text in texts:
        rests.setdefault(text[:1], []).append(text[1:])
    is_empty_one = rests.pop("", None) is not None
    codes = sorted(map(ord, rests))
    most = None if most is None else most - 1
    parts: list[Expression] = [Sequence((_class(_complement([(c, c) for c in codes])), Repeat(CHAR, 0, most)))]
    for char, rest in rests.items():
        if most != 0 or "" not in rest:
            parts.append(Sequence((_class([(ord(char), ord(char))]), other_texts(rest, most))))
    return Either((*parts, *([] if is_empty_one else [_EMPTY])))
