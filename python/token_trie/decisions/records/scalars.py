"""Strings and numbers of a schema."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from token_trie.decisions.records import grammar, numbers
from token_trie.decisions.records.gbnf import MOST_REPEATED
from token_trie.decisions.records.keywords import bounds, count, refuse
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
FORMATS = {
    "date": f"^{_DATE}$",
    "uuid": f"^{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
}
"""Formats of strings, as patterns of what is written."""


def read_string(schema: dict[str, Any], pointer: str) -> Node:
    """Read a string."""
    low = count(schema, "minLength", pointer, 0)
    high = count(schema, "maxLength", pointer, 2**31) if "maxLength" in schema else None
    if high is not None and low > high:
        raise refuse(f"{pointer}/minLength", f"{low} characters at least and {high} at most")
    if high == 0 and not schema.keys() & {"pattern", "format"}:
        return Choice(("",))
    if "pattern" in schema:
        return _read_pattern(schema, pointer, low, high)
    if "format" in schema:
        return _read_format(schema, pointer, low, high)
    if low > MOST_REPEATED:
        raise refuse(f"{pointer}/minLength", f"{low} characters; {MOST_REPEATED} is the most that is supported")
    return String(grammar.text_between(low, None), high, low)


def _read_pattern(schema: dict[str, Any], pointer: str, low: int, high: int | None) -> String:
    pattern = schema["pattern"]
    if "format" in schema:
        raise refuse(f"{pointer}/format", "together with a pattern it is not supported")
    try:
        read = read_pattern(pattern)
    except ValueError as error:
        raise refuse(f"{pointer}/pattern", f"{pattern!r} is not supported: {error}") from error
    if read.min_length < low or (high is not None and (read.max_length is None or read.max_length > high)):
        raise refuse(f"{pointer}/pattern", f"{pattern!r} and lengths that it does not keep to are not supported")
    return String(read.content, read.max_length, read.min_length, False)


def _read_format(schema: dict[str, Any], pointer: str, low: int, high: int | None) -> String:
    name = schema["format"]
    if not isinstance(name, str) or name not in FORMATS:
        raise refuse(f"{pointer}/format", f"{name!r} is not supported; {', '.join(FORMATS)} are")
    content, least, most = read_pattern(FORMATS[name])
    assert most is not None
    if least < low or (high is not None and most > high):
        raise refuse(f"{pointer}/format", f"{name!r} has {least} to {most} characters, and the lengths are others")
    return String(content, most, least, False)


def read_number(schema: dict[str, Any], pointer: str, *, is_integer: bool) -> Node:
    """Read a number."""
    low, high, open_low, open_high = bounds(schema, pointer)
    if low is None and high is None and "multipleOf" not in schema:
        return Slot(grammar.INTEGER if is_integer else grammar.NUMBER, _DIGITS)
    step = schema.get("multipleOf", 1)
    if not isinstance(step, (int, float)) or isinstance(step, bool) or step <= 0 or step != int(step):
        raise refuse(f"{pointer}/multipleOf", f"{step!r} is not supported; whole numbers above 0 are")
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
        raise refuse(f"{pointer}/multipleOf", f"with more than {MOST_NUMBERS:,} values it is not supported")
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
