"""Grammars as llama.cpp reads them (GBNF): expressions, and their text.

Rules are named here, as they are printed, so that no two names can meet; what is repeated is a rule, which llama.cpp
counts as one where it limits repetitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import NamedTuple, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]

MOST_REPEATED = 1000
"""Times that something may stand in a row; llama.cpp takes 2000 for no limit."""
_MOST_CHARACTERS, _MOST_STEPS = 50_000, 2_000_000


@dataclass(frozen=True, eq=False)
class Text:
    """Just this."""

    text: str


@dataclass(frozen=True, eq=False)
class Chars:
    """One character, of ranges of code points."""

    ranges: Ranges


@dataclass(frozen=True, eq=False)
class _Several:
    parts: tuple[Expression, ...]


class Sequence(_Several):
    """One after the other."""


class Either(_Several):
    """One of these."""


@dataclass(frozen=True, eq=False)
class Repeat:
    """The same, low to high times; None for no limit."""

    part: Expression
    low: int
    high: int | None

    def __post_init__(self) -> None:
        most = self.low if self.high is None else self.high
        if most > MOST_REPEATED:
            raise ValueError(f"more than {MOST_REPEATED} times")


_EMPTY = Sequence(())


@dataclass(eq=False)
class Rule:
    """What has a name, so that it may stand in several places, and in itself."""

    body: Expression = _EMPTY


Expression: TypeAlias = Text | Chars | Sequence | Either | Repeat | Rule


class Grammar(NamedTuple):
    """A printed expression."""

    body: str
    rules: str
    """Those that the body refers to, named r and a number, one a line."""


def print_grammar(expression: Expression) -> Grammar:
    """Print an expression."""
    printer = _Printer()
    body = printer.text(expression)
    return Grammar(body, printer.rules())


class Matcher:
    """Tells how far texts are as an expression has them.

    All ways through the expression are followed at once, so that the time grows with the length of both. A set of
    positions in the text is an integer with a bit for each.
    """

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self._n_steps = 0

    def ends(self, text: str) -> int:
        """Return the positions where a text may end; ValueError where all texts together take too long."""
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(f"a text of more than {_MOST_CHARACTERS:,} characters takes too long")
        self._at: dict[str, int] = {}
        for i, char in enumerate(text):
            self._at[char] = self._at.get(char, 0) | 1 << i
        self._cost = 1 + len(text) // 256
        self._known: dict[tuple[Expression, int], int] = {}
        return self._behind(self._expression, 1)

    def _behind(self, expression: Expression, begins: int) -> int:
        """Return the positions after an expression that begins at one of some."""
        if not begins:
            return 0
        self._n_steps += self._cost
        if self._n_steps > _MOST_STEPS:
            raise ValueError("it takes too long")
        if isinstance(expression, Text):
            for char in expression.text:
                begins = (begins & self._at.get(char, 0)) << 1
            return begins
        if isinstance(expression, Sequence):
            return reduce(lambda found, part: self._behind(part, found), expression.parts, begins)
        if isinstance(expression, Either):
            return reduce(or_, (self._behind(part, begins) for part in expression.parts), 0)
        if isinstance(expression, Chars):
            if (expression, 0) not in self._known:
                chars = (at for char, at in self._at.items() if any(a <= ord(char) <= b for a, b in expression.ranges))
                self._known[expression, 0] = reduce(or_, chars, 0)
            return (begins & self._known[expression, 0]) << 1
        key = expression, begins
        if key not in self._known:
            if isinstance(expression, Rule):
                self._known[key] = self._behind(expression.body, begins)
            else:
                self._known[key] = self._repeat(expression, begins)
        return self._known[key]

    def _repeat(self, repeat: Repeat, begins: int) -> int:
        for _ in range(repeat.low):
            begins = self._behind(repeat.part, begins)
        found, n = begins, repeat.low
        while begins and (repeat.high is None or n < repeat.high):
            begins = self._behind(repeat.part, begins) & ~found
            found |= begins
            n += 1
        return found


def quote(text: str) -> str:
    """Return a literal."""
    return '"' + "".join(c if _is_plain(c) else _code(ord(c)) for c in text) + '"'


class _Printer:
    def __init__(self) -> None:
        self._names: dict[Expression, str] = {}
        self._bodies: dict[str, str] = {}

    def rules(self) -> str:
        return "\n".join(f"{name} ::= {body}" for name, body in self._bodies.items())

    def text(self, expression: Expression) -> str:
        if isinstance(expression, Text):
            return quote(expression.text)
        if isinstance(expression, Chars):
            return "[" + "".join(f"{_code(a)}-{_code(b)}" for a, b in expression.ranges) + "]"
        if isinstance(expression, Sequence):
            return " ".join(map(self.text, expression.parts)) or '""'
        if isinstance(expression, Either):
            return "( " + " | ".join(map(self.text, expression.parts)) + " )"
        if isinstance(expression, Rule):
            return self._name(expression, expression.body)
        most = "" if expression.high is None else expression.high
        return f"{self._name(expression.part, expression.part)}{{{expression.low},{most}}}"

    def _name(self, known_by: Expression, body: Expression) -> str:
        if isinstance(body, Rule):
            return self.text(body)
        if known_by not in self._names:
            self._names[known_by] = name = f"r{len(self._names)}"
            self._bodies[name] = self.text(body)
        return self._names[known_by]


def _is_plain(char: str) -> bool:
    return " " <= char <= "~" and char not in '"\\'


def _code(code: int) -> str:
    return f"\\x{code:02X}" if code < 0x80 else f"\\U{code:08X}"
