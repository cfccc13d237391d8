"""What a caller gave, checked on its way to native code."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real

import numpy as np

from token_trie.errors import ArgumentError


def encode(text: object, what: str) -> bytes:
    """UTF-8 bytes of a text.

    Raises
    ------
    ArgumentError
        Not a str, or it holds a NUL or a lone surrogate. The message begins with ``what``.
    """
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
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not least <= value < 2**31:
            raise ArgumentError(f"{name}: {value!r} is not a count from {least} to 2,147,483,647")


def check_numbers(**options: float) -> None:
    """Raise ArgumentError for an option that is no number."""
    for name, value in options.items():
        if not isinstance(value, Real):
            raise ArgumentError(f"{name}: {type(value).__name__} where a number belongs")


def check_flags(**options: bool) -> None:
    """Raise ArgumentError for an option that is neither True nor False."""
    for name, value in options.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"{name}: {type(value).__name__} where True or False belongs")
