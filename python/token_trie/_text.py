"""One check for every text that goes to native code."""

from __future__ import annotations

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
