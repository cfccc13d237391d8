"""Labels of one token, that models trained for decisions answer with."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from typing import NamedTuple

from token_trie.errors import ArgumentError
from token_trie.native.core import Llama

LETTERS = string.ascii_uppercase + string.ascii_lowercase
CODES = (*string.ascii_uppercase, *map("".join, product(string.ascii_uppercase, repeat=2)))


class Labels(NamedTuple):
    """Labels of options in their places."""

    texts: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    """The tokens of each, of which the most probable counts."""


def single_tokens(llm: Llama, texts: Iterable[str], at_most: int | None = None) -> Labels:
    """Return those texts that are a token of their own."""
    found = [(text, token) for text in texts if (token := token_of(llm, text)) is not None][:at_most]
    return Labels(tuple(text for text, _ in found), tuple((token,) for _, token in found))


def token_of(llm: Llama, text: str) -> int | None:
    """Return the one token of a text."""
    tokens = llm.tokenize(text.encode(), add_bos=False, special=False)
    return int(tokens[0]) if len(tokens) == 1 else None


def group_labels(llm: Llama, question: str, keys: Sequence[str]) -> Labels:
    """Return the labels of "lfm2-d1": spellings of yes and no, numbers of levels, or codes, with a space before or not.

    Raises
    ------
    ArgumentError
        There is none left for an option.
    """
    if question != "choice":
        words = {"true": ("yes", "Yes", "YES"), "false": ("no", "No", "NO")}
        groups = [_tokens(llm, words[key] if question == "noul" else (key,)) for key in keys]
        if not all(groups):
            raise ArgumentError(f"options: {keys[groups.index(())]!r} is no token of the model's own")
        return Labels(tuple(keys), tuple(groups))
    texts, groups, used = [], [], set[int]()
    for code in _codes(keys):
        label = next((one for one in chain([code], _pool()) if token_of(llm, one) not in {None, *used}), None)
        if label is None:
            raise ArgumentError(f"options: {len(keys)}, and the model has not as many labels that are a token")
        texts.append(label)
        groups.append(_tokens(llm, (label, f" {label}")))
        used.add(groups[-1][0])
    return Labels(tuple(texts), tuple(groups))


def _codes(keys: Sequence[str]) -> Sequence[str]:
    if all(len(key) == 1 and key.isascii() and key.isalpha() for key in keys):
        return keys
    if len(keys) <= len(string.ascii_uppercase):
        return string.ascii_uppercase[: len(keys)]
    return [f"{i:02}" for i in range(len(keys))]


def _pool() -> Iterator[str]:
    yield from string.ascii_uppercase
    yield from (f"{i:02}" for i in range(100))
    yield from string.ascii_lowercase
    yield from (f"#{i}" for i in range(200))
    yield from CODES[len(string.ascii_uppercase) :]


def _tokens(llm: Llama, texts: Iterable[str]) -> tuple[int, ...]:
    """Return the tokens of those texts that are one."""
    found = (token_of(llm, text) for text in texts)
    return tuple(dict.fromkeys(token for token in found if token is not None))
