"""Numbers between bounds, as a regular expression of their digits."""

from __future__ import annotations

MOST = 10**9 - 1
"""Largest that is written where there is no bound: with six digits behind the point, a double still tells all apart."""

_DECIMALS = "[0-9]{1,6}"


def integers(low: int, high: int) -> str:
    """Return the pattern of all integers from low to high."""
    parts = []
    if low < 0:
        parts.append(f"-({_naturals(max(-high, 1), -low)})")
    if high >= 0:
        parts.append(_naturals(max(low, 0), high))
    return "|".join(parts)


def decimals(low: int, high: int, *, open_low: bool, open_high: bool) -> str:
    """Return the pattern of the numbers from low to high with up to six digits behind the point."""
    first, last = low + open_low, high - open_high
    parts = [integers(first, last)] if first <= last else []
    if high > 0:
        parts.append(_between(max(low, 0), high, open_low=open_low and low >= 0))
    if low < 0:
        below = _between(max(-high, 0), -low, open_low=(open_high and high <= 0) or high > 0)
        parts.append(f"-({below})")
    return "|".join(parts)


def _between(low: int, high: int, *, open_low: bool) -> str:
    """Numbers with a point from low, which is natural, to below high."""
    if not open_low:
        return rf"({_naturals(low, high - 1)})\.{_DECIMALS}"
    parts = [rf"{low}\.[0-9]{{0,5}}[1-9]"]
    if low + 1 <= high - 1:
        parts.append(rf"({_naturals(low + 1, high - 1)})\.{_DECIMALS}")
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
