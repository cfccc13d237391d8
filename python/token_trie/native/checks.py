"""Checks of arguments that are passed to native code."""

from __future__ import annotations

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
    """UTF-8 bytes of several texts; ArgumentError as of `encode`, with the position."""
    wrong = f"{what}: {type(names).__name__} where a list of names belongs"
    if isinstance(names, (str, bytes)):
        raise ArgumentError(wrong)
    try:
        listed = list(names)
    except TypeError as error:
        raise ArgumentError(wrong) from error
    return [encode(name, f"{what}[{i}]") for i, name in enumerate(listed)]


def lookup(value: str, table: dict[str, int], what: str) -> int:
    """Look up an option by its name; ArgumentError lists the valid names."""
    if not isinstance(value, str) or value not in table:
        raise ArgumentError(f"{what}: {value!r} is none of {', '.join(map(repr, table))}")
    return table[value]


def check_counts(minimum: int = 1, **options: int) -> None:
    """Raise ArgumentError for an option that is not an integer from `minimum` to 2**31 - 1."""
    for name, value in options.items():
        if not ((type(value) is int or _is_integer(value)) and minimum <= value < 2**31):
            raise ArgumentError(f"{name}: {_written(value)} is not a count from {minimum} to 2,147,483,647")


def check_integers(**options: int) -> None:
    """Raise ArgumentError for an option that is not a signed integer of 32 bits."""
    for name, value in options.items():
        if not _is_integer(value):
            raise ArgumentError(f"{name}: {type(value).__name__} where an integer belongs")
        if not -(2**31) <= value < 2**31:
            raise ArgumentError(f"{name}: {_written(value)} has more than 32 bits")


def check_numbers(**options: float) -> None:
    """Raise ArgumentError for an option that is not a number, or too large for a float."""
    for name, value in options.items():
        if not isinstance(value, Real):
            raise ArgumentError(f"{name}: {type(value).__name__} where a number belongs")
        try:
            float(value)
        except OverflowError as error:
            raise ArgumentError(f"{name}: {error}") from error


def native_seed(seed: int | None) -> int:
    """Return a seed for llama.cpp, None for a new one each time; ArgumentError for one that it cannot take."""
    if seed is None:
        return ANY_SEED
    if not (_is_integer(seed) and 0 <= seed < 2**32):
        raise ArgumentError(f"seed: {_written(seed)} is not an integer in [0, 2**32)")
    return min(int(seed), ANY_SEED - 1)


def check_flags(**options: bool) -> None:
    """Raise ArgumentError for an option that is not True or False."""
    for name, value in options.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"{name}: {type(value).__name__} where True or False belongs")


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _written(value: object) -> str:
    """Format a value for a message; `repr` refuses integers of thousands of digits."""
    try:
        return repr(value)
    except ValueError:
        return f"the {type(value).__name__} given"
