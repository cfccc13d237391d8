"""Sets that a request leaves some members of: in stock, allowed here, not seen yet."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError
from token_trie.sets.choices import Choices
from token_trie.sets.trie import TokenTrie

KEYS = ("mask", "indices")
"""What a request may say beside a set's name; one of them."""


def filtered(made: TokenTrie | Choices[Any], given: dict[str, Any]) -> TokenTrie | Choices[Any]:
    """Return a set of those of its members that a request leaves.

    ``mask`` is base64 of a bit a member, the lowest of a byte first, with zeros behind the last; ``indices`` are the
    members' own.

    Raises
    ------
    ArgumentError
        It is neither, or leaves no member.
    """
    n = made.core.n_leaves if isinstance(made, TokenTrie) else len(made)
    keep = _bits(given["mask"], n) if "mask" in given else _indices(given["indices"], n)
    if isinstance(made, TokenTrie):
        return made.filtered(keep)
    kept = np.unique(keep).tolist() if keep.dtype != np.bool_ else np.flatnonzero(keep).tolist()
    if not kept:
        raise ArgumentError("mask: no member of the set is left")
    texts = tuple(made.texts[i] for i in kept)
    return Choices(texts, texts if made.are_texts else tuple(made.values[i] for i in kept))


def _bits(given: Any, n: int) -> npt.NDArray[np.bool_]:
    if not isinstance(given, str):
        raise ArgumentError(f"mask: {type(given).__name__} where base64 of bits belongs")
    try:
        data = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ArgumentError(f"mask: no base64: {error}") from error
    if len(data) != (n + 7) // 8:
        raise ArgumentError(f"mask: {len(data):,} bytes, where {n:,} members take {(n + 7) // 8:,}")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").astype(np.bool_)
    if bits[n:].any():
        raise ArgumentError(f"mask: bits behind the last of {n:,} members")
    return bits[:n]


def _indices(given: Any, n: int) -> npt.NDArray[np.int64]:
    if not isinstance(given, list):
        raise ArgumentError(f"indices: {type(given).__name__} where a list belongs")
    for at, i in enumerate(given):
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < n:
            raise ArgumentError(f"indices[{at}]: no index of {n:,} members")
    return np.array(given, np.int64)
