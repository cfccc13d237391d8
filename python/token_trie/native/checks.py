"""What a caller gave, checked on its way to native code."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from numbers import Real

import numpy as np

from token_trie.errors import ArgumentError

ANY_SEED = 0xFFFFFFFF


def encode(text: object, what: str) -> bytes:
    """UTF-8 bytes of a text; ArgumentError, beginning with ``what``: no str, or with a NUL or lone surrogate."""
    if not isinstance(text, str):
        raise ArgumentError(f"{what}: {type(text).__name__} where str belongs")
    if "\0" in text:
        raise ArgumentError(f"{what}: holds a NUL character")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{what}: {error}") from error


def encode_names(names: Iterable[str], what: str) -> list[bytes]:
    """UTF-8 bytes of several texts; ArgumentError as of `encode`, with the place."""
    wrong = f"{what}: {type(names).__name__} where a list of names belongs"
    if isinstance(names, (str, bytes)):
        raise ArgumentError(wrong)
    try:
        listed = list(names)
    except TypeError as error:
        raise ArgumentError(wrong) from error
    return [encode(name, f"{what}[{i}]") for i, name in enumerate(listed)]


def lookup(value: str, table: dict[str, int], what: str) -> int:
    """Look up an option by its name; ArgumentError names the ones there are."""
    if not isinstance(value, str) or value not in table:
        raise ArgumentError(f"{what}: {value!r} is none of {', '.join(map(repr, table))}")
    return table[value]


def check_counts(least: int = 1, **options: int) -> None:
    """Raise ArgumentError for an option that is no integer of 31 bits, from `least` on."""
    for name, value in options.items():
        if not (_is_integer(value) and least <= value < 2**31):
            raise ArgumentError(f"{name}: {_written(value)} is not a count from {least} to 2,147,483,647")


def check_integers(**options: int) -> None:
    """Raise ArgumentError for an option that is no integer of 32 bits, with a sign."""
    for name, value in options.items():
        if not _is_integer(value):
            raise ArgumentError(f"{name}: {type(value).__name__} where an integer belongs")
        if not -(2**31) <= value < 2**31:
            raise ArgumentError(f"{name}: {_written(value)} has more than 32 bits")


def check_numbers(**options: float) -> None:
    """Raise ArgumentError for an option that is no number, or one that no float holds."""
    for name, value in options.items():
        if not isinstance(value, Real):
            raise ArgumentError(f"{name}: {type(value).__name__} where a number belongs")
        try:
            float(value)
        except OverflowError as error:
            raise ArgumentError(f"{name}: {error}") from error


def check_seed(seed: int) -> None:
    """Raise ArgumentError for a seed that llama.cpp cannot take."""
    if not (_is_integer(seed) and 0 <= seed < 2**32):
        raise ArgumentError(f"seed: {_written(seed)} is not an integer in [0, 2**32)")


def native_seed(seed: int | None) -> int:
    """Return a seed as llama.cpp has it, whose largest is another each time; ArgumentError as of `check_seed`."""
    if seed is None:
        return ANY_SEED
    check_seed(seed)
    return min(int(seed), ANY_SEED - 1)


def check_draws(temperature: float, top_p: float, seed: int | None, may_be_zero: bool = False) -> None:
    """Raise ArgumentError for draws that cannot be made."""
    check_numbers(temperature=temperature, top_p=top_p)
    # As llama.cpp has them.
    warmth, share = (ctypes.c_float(float(given)).value for given in (temperature, top_p))
    if temperature < 0 or not warmth < float("inf") or (warmth == 0 and not may_be_zero):
        raise ArgumentError(f"temperature: {temperature} is not above 0; for the best answer use mode='greedy'")
    if top_p > 1 or not 0 < share <= 1:
        raise ArgumentError(f"top_p: {top_p} is not in (0, 1]")
    if seed is not None:
        check_seed(seed)


def check_flags(**options: bool) -> None:
    """Raise ArgumentError for an option that is neither True nor False."""
    for name, value in options.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"{name}: {type(value).__name__} where True or False belongs")


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _written(value: object) -> str:
    """Write a value for a message; Python writes no integers of thousands of digits."""
    try:
        return repr(value)
    except ValueError:
        return f"the {type(value).__name__} given"
