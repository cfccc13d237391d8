"""Strings and numbers of a schema."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from token_trie.decisions.records import grammar, numbers
from token_trie.decisions.records.gbnf import MOST_REPEATED, Chars, Expression, Repeat, Sequence
from token_trie.decisions.records.keywords import UnkeptError, bounds, count, refuse
from token_trie.decisions.records.pattern import read_pattern
from token_trie.decisions.records.plan import Choice, Node, Slot, String

MOST_NUMBERS = 1_000
"""Integers between bounds that are a choice; more are written digit by digit, under a grammar."""

_DIGITS = "-0123456789"
_FARTHEST = 10**18 - 1

_DAY = "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_LEAP = "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29"
_DATE = f"([1-9][0-9]{{3}}-{_DAY}|{_LEAP})"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{3}})?(Z|[+-]{_CLOCK})"
_HEX = "[0-9a-fA-F]"
_ATOM = "[A-Za-z0-9_+-]"
_ALNUM = "[A-Za-z0-9]"
_SHORT_LABEL = f"{_ALNUM}([A-Za-z0-9-]{{0,38}}{_ALNUM})?"  # so that an address has 254 characters at most
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
"""Formats of strings that are kept to, as patterns of what is written; all others are annotations."""


def read_string(schema: dict[str, Any], pointer: str) -> Node:
    """Read a string."""
    low = count(schema, "minLength", pointer, 0)
    high = count(schema, "maxLength", pointer, 2**31) if "maxLength" in schema else None
    if high is not None and low > high:
        raise refuse(f"{pointer}/minLength", f"{low} characters at least and {high} at most")
    # A pattern says more than the format beside it, which it often spells.
    keyword = "pattern" if "pattern" in schema else "format"
    pattern = schema.get("pattern", FORMATS.get(str(schema.get("format"))))
    if pattern is not None:
        return _read_pattern(pattern, f"{pointer}/{keyword}", repr(schema[keyword]), low, high)
    if high == 0:
        return Choice(("",))
    if low > MOST_REPEATED:
        raise UnkeptError(f"{pointer}/minLength", f"{low} characters; {MOST_REPEATED} is the most that is supported")
    return String(grammar.text_between(low, None), high, low)


def _read_pattern(pattern: str, pointer: str, name: str, low: int, high: int | None) -> String:
    try:
        content, least, most = read_pattern(pattern)
    except ValueError as error:
        raise UnkeptError(pointer, f"{name} is not supported: {error}") from error
    if least < low and (repeated := _repeated(content)) is not None:
        try:
            content = Sequence((Repeat(repeated.part, low, repeated.high),))
        except ValueError as error:
            raise UnkeptError(pointer, f"{name} is not supported: {error}") from error
        least = low
    if least < low or (high is not None and least > high) or (most is not None and most < low):
        lengths = f"{low} to {high}" if high is not None else f"{low} or more"
        raise UnkeptError(pointer, f"{name} and {lengths} characters together are not supported")
    is_cut = high is not None and (most is None or high < most)
    return String(content, high if is_cut else most, least, False, is_cut)


def _repeated(content: Expression) -> Repeat | None:
    """Return the repetition of single characters that is all of a pattern; None for another pattern."""
    only = content.parts[0] if isinstance(content, Sequence) and len(content.parts) == 1 else None
    if not isinstance(only, Repeat) or not isinstance(only.part, Sequence) or len(only.part.parts) != 1:
        return None
    return only if isinstance(only.part.parts[0], Chars) else None


def read_number(schema: dict[str, Any], pointer: str, *, is_integer: bool) -> Node:
    """Read a number."""
    low, high, open_low, open_high = bounds(schema, pointer)
    if low is None and high is None and "multipleOf" not in schema:
        return Slot(grammar.INTEGER if is_integer else grammar.NUMBER, _DIGITS)
    step = schema.get("multipleOf", 1)
    if not isinstance(step, (int, float)) or isinstance(step, bool) or step <= 0:
        raise refuse(f"{pointer}/multipleOf", f"{step!r} is no number above 0")
    if step != int(step):
        raise UnkeptError(f"{pointer}/multipleOf", f"{step!r} is not supported; whole numbers above 0 are")
    is_near = all(bound is None or abs(bound) <= numbers.MOST for bound in (low, high))
    if is_near and not is_integer and "multipleOf" not in schema:
        return _decimals(pointer, low, high, open_low=open_low, open_high=open_high)
    first = None if low is None else math.floor(low) + 1 if open_low else math.ceil(low)
    last = None if high is None else math.ceil(high) - 1 if open_high else math.floor(high)
    if first is not None and last is not None and first > last:
        raise refuse(pointer, f"no integer is from {low} to {high}")
    if (first or 0) > _FARTHEST or (last or 0) < -_FARTHEST:
        raise refuse(pointer, "integers of more than 18 digits are not supported")
    first = -_beyond(last or 0) if first is None else max(first, -_FARTHEST)
    last = _beyond(first) if last is None else min(last, _FARTHEST)
    least = -(-first // int(step)) * int(step)
    n = (last - least) // int(step) + 1
    if n <= 0:
        raise refuse(f"{pointer}/multipleOf", f"no multiple of {step} is from {first} to {last}")
    if n <= MOST_NUMBERS:
        return Choice(tuple(range(least, last + 1, int(step))), by_digits=True)
    if step != 1:
        raise UnkeptError(f"{pointer}/multipleOf", f"with more than {MOST_NUMBERS:,} values it is not supported")
    return _written(numbers.integers(first, last), _DIGITS if first < 0 else _DIGITS[1:])


def _beyond(bound: int) -> int:
    """Return how far numbers go from the one bound that there is: to the most, and to a digit more than it has."""
    return max(numbers.MOST, min(_FARTHEST, 10 * abs(bound) + 9))


def _written(pattern: str, begins_with: str) -> Slot:
    return Slot(read_pattern(f"^({pattern})$").content, begins_with)


def _decimals(pointer: str, low: float | None, high: float | None, *, open_low: bool, open_high: bool) -> Node:
    least, most = (
        Fraction(repr(sign * numbers.MOST if bound is None else bound)) * 10**numbers.N_DECIMALS
        for sign, bound in ((-1, low), (1, high))
    )
    first = math.floor(least) + 1 if open_low else math.ceil(least)
    last = math.ceil(most) - 1 if open_high else math.floor(most)
    if first > last:
        raise refuse(pointer, f"no number of {numbers.N_DECIMALS} digits behind the point is from {low} to {high}")
    return _written(numbers.decimals(first, last), _DIGITS if first < 0 else _DIGITS[1:])
