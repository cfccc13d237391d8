"""Numbers between bounds, as a regular expression of their digits."""

from __future__ import annotations

from collections.abc import Callable

MOST = 10**9 - 1
"""Largest that is written where there is no bound: with six digits behind the point, a double still tells all apart."""

N_DECIMALS = 6
_ONE = 10**N_DECIMALS


def integers(low: int, high: int) -> str:
    """Return the pattern of all integers from low to high."""
    return _signed(low, high, _naturals)


def decimals(low: int, high: int) -> str:
    """Return the pattern of the numbers from low to high, in millionths, with up to six digits behind the point."""
    return _signed(low, high, _positives)


def _signed(low: int, high: int, unsigned: Callable[[int, int], str]) -> str:
    parts = []
    if low < 0:
        parts.append(f"-({unsigned(max(-high, 1), -low)})")
    if high >= 0:
        parts.append(unsigned(max(low, 0), high))
    return "|".join(parts)


def _positives(low: int, high: int) -> str:
    (first, low_part), (last, high_part) = divmod(low, _ONE), divmod(high, _ONE)
    if first == last:
        return _with_parts(str(first), low_part, high_part)
    parts = [_with_parts(str(first), low_part, _ONE - 1), _with_parts(str(last), 0, high_part)]
    if first + 1 < last:
        parts.append(_with_parts(f"({_naturals(first + 1, last - 1)})", 0, _ONE - 1))
    return "|".join(parts)


def _with_parts(whole: str, low: int, high: int) -> str:
    """Return what stands before a point, with what may stand behind it; without the point where that may be zero."""
    behind = rf"\.({_fractions(f'{low:0{N_DECIMALS}}', f'{high:0{N_DECIMALS}}')})"
    return f"{whole}({behind})?" if low == 0 else whole + behind


def _fractions(low: str, high: str) -> str:
    """Return the digits behind a point from low to high, both of the same length; zeros at the end may be left out."""
    n = len(low) - 1
    zeros, nines = "0" * n, "9" * n
    parts = []
    for digit in range(int(low[0]), int(high[0]) + 1):
        least = low[1:] if digit == int(low[0]) else zeros
        most = high[1:] if digit == int(high[0]) else nines
        if n and (least, most) != (zeros, nines):
            parts.append(f"{digit}({_fractions(least, most)}){'?' if least == zeros else ''}")
        else:
            parts.append(f"{digit}[0-9]{{0,{n}}}")
    return "|".join(parts)


def _naturals(low: int, high: int) -> str:
    """Return the natural numbers from low to high, by their number of digits."""
    parts = []
    for n in range(len(str(low)), len(str(high)) + 1):
        least, most = max(low, 10 ** (n - 1) if n > 1 else 0), min(high, 10**n - 1)
        parts.append(_digits(str(least), str(most)))
    return "|".join(parts)


def _digits(low: str, high: str) -> str:
    """Return the digit strings of one length from low to high."""
    n = len(low)
    if low == "0" * n and high == "9" * n:
        return f"[0-9]{{{n}}}" if n else ""
    if low[0] == high[0]:
        return low[0] + (f"({_digits(low[1:], high[1:])})" if n > 1 else "")
    if n == 1:
        return f"[{low}-{high}]"
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:] != "0" * (n - 1):
        parts.append(f"{first}({_digits(low[1:], '9' * (n - 1))})")
        first += 1
    if high[1:] != "9" * (n - 1):
        parts.append(f"{last}({_digits('0' * (n - 1), high[1:])})")
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}][0-9]{{{n - 1}}}")
    return "|".join(parts)
