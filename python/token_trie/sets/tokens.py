"""Token ids as callers give them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, VocabularyError

Tokens: TypeAlias = Sequence[int] | npt.NDArray[np.int32]


def to_tokens(tokens: object, what: str) -> npt.NDArray[np.int32]:
    """Return token ids as an array; ArgumentError where they are none."""
    try:
        array = np.asarray(tokens)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{what}: not a sequence of token ids ({error})") from error
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ArgumentError(f"{what}: not a sequence of token ids")
    if array.dtype != np.int32:
        limits = np.iinfo(np.int32)
        if array.max() > limits.max or array.min() < limits.min:
            raise ArgumentError(f"{what}: a token id does not fit 32 bits")
        array = array.astype(np.int32)
    return array


def to_token(token: object, n_vocab: int, what: str) -> int:
    """Return a token id, be it a scalar of numpy or torch, as Python's own; an error where it is none."""
    try:
        number = operator.index(token)  # type: ignore[arg-type]
    except TypeError as error:
        raise ArgumentError(f"{what}: {type(token).__name__} where a token id belongs") from error
    if not 0 <= number < n_vocab:
        raise VocabularyError(f"{what}: {number} is outside the vocabulary ({n_vocab} tokens)")
    return number


def joined(rows: Sequence[Tokens]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return sequences, all lists or all arrays, one after the other, and where each begins and the last ends."""
    are_arrays = bool(rows) and isinstance(rows[0], np.ndarray)
    tokens = np.concatenate(rows) if are_arrays else np.fromiter(itertools.chain.from_iterable(rows), np.int32)
    return tokens, np.cumsum([0, *map(len, rows)], dtype=np.int64)


def check_tokens(prompt: Sequence[Any], n_vocab: int, what: str = "prompt") -> list[int]:
    """Return token ids as a list; an error names the first that is none, or is outside the vocabulary."""
    # Prompts are long: where nothing is wrong, C loops over them.
    if (
        _has_end(prompt)
        and set(map(type, prompt)) <= {int}
        and min(prompt, default=0) >= 0
        and max(prompt, default=0) < n_vocab
    ):
        return list(prompt)
    tokens = []
    for i, token in enumerate(prompt):
        if not isinstance(token, (int, np.integer)) or isinstance(token, bool):
            raise ArgumentError(f"{what}[{i}]: {type(token).__name__} where a token id or a chat message belongs")
        if not 0 <= token < n_vocab:
            raise VocabularyError(f"{what}[{i}]: {token} is outside the vocabulary ({n_vocab} tokens)")
        tokens.append(int(token))
    return tokens


def check_start(tokens: Sequence[int], start_token: int | None) -> None:
    """Raise ArgumentError for a prompt that does not end in the start token of a set that has one."""
    if start_token is not None and (len(tokens) == 0 or tokens[-1] != start_token):
        ending = f"ends in token {tokens[-1]}" if len(tokens) else "is empty"
        raise ArgumentError(f"prompt: {ending}; the set begins behind its start token, {start_token}")


def _has_end(prompt: Sequence[Any]) -> bool:
    """Tell whether it is of a size that can be read; a range may be endless in effect."""
    try:
        return len(prompt) < 2**24
    except OverflowError:
        return False
