"""Choices of Python types, as texts for the model and values for the caller."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args, get_origin

from token_trie.errors import ArgumentError, LimitError

T = TypeVar("T")
MAX_CHOICES = 1 << 24

ChoicesLike: TypeAlias = Any
"""Iterable of str, mapping of str to any value, Enum class, range, or Literal: see `read_choices`."""


@dataclass(frozen=True)
class Choices(Generic[T]):
    """The possible answers, in the given order."""

    texts: tuple[str, ...]
    """The texts that the model writes."""
    values: Sequence[T]
    """The values that the caller gets, one for each text."""

    @property
    def are_texts(self) -> bool:
        """Whether the values are the texts."""
        return self.values is self.texts

    def __len__(self) -> int:
        return len(self.texts)


def read_choices(choices: object) -> Choices[Any]:
    """Read choices: an iterable of str, a mapping of str to any value, an Enum class, a range, or a Literal.

    Iterables of str may be lists, sets (in sorted order), generators, numpy arrays, pandas objects. The text of an
    Enum's member is its value if all values are str, otherwise its name. Numbers are written in digits, and bools as
    "true" and "false". ArgumentError if there are none, or they have another type or several types.
    """
    if isinstance(choices, Choices):
        return choices
    if get_origin(choices) is Literal:
        return _read_literal(get_args(choices))
    if isinstance(choices, type) and issubclass(choices, Enum):
        return _read_enum(choices)
    if isinstance(choices, range):
        _require_some(choices)
        return Choices(tuple(map(str, choices)), choices)
    if isinstance(choices, Mapping):
        _require_some(choices)
        return Choices(_texts(choices), tuple(choices.values()))
    if isinstance(choices, (str, bytes, bytearray)) or not isinstance(choices, Iterable):
        kind = choices.__name__ if isinstance(choices, type) else type(choices).__name__
        raise ArgumentError(
            "choices must be a list of texts, a mapping from texts to values, an Enum class, a range or a Literal, not "
            f"{kind}"
        )
    texts = _texts(choices)
    _require_some(texts)
    return Choices(texts, texts)


def _texts(choices: Iterable[Any]) -> tuple[str, ...]:
    # tolist() converts items of numpy and pandas to Python types.
    items = choices.tolist() if hasattr(choices, "tolist") else choices
    items = tuple(items) if isinstance(items, Iterable) and not isinstance(items, str) else (items,)
    if not set(map(type, items)) <= {str}:
        for i, item in enumerate(items):
            if not isinstance(item, str):
                raise ArgumentError(
                    f"choices[{i}] must be str, not {type(item).__name__}; for other values give a mapping from "
                    "texts to them"
                )
        items = tuple(str.__str__(item) for item in items)
    return tuple(sorted(items)) if isinstance(choices, (set, frozenset)) else items


def _read_literal(members: tuple[Any, ...]) -> Choices[Any]:
    kinds = {type(member) for member in members}
    if len(kinds) > 1 or not kinds <= {str, int, bool}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ArgumentError(f"choices must be a Literal of one of str, int and bool alone, not of {names}")
    texts = tuple(str(member).lower() if isinstance(member, bool) else str(member) for member in members)
    return Choices(texts, members)


def _read_enum(members: type[Enum]) -> Choices[Any]:
    values = tuple(members)
    _require_some(values)
    all_texts = all(isinstance(member.value, str) for member in values)
    return Choices(tuple(str.__str__(m.value) if all_texts else m.name for m in values), values)


def _require_some(choices: Any) -> None:
    try:
        n = len(choices)
    except OverflowError as error:  # a range may be longer than an index
        raise LimitError(f"choices must be at most {MAX_CHOICES:,}, not more than {sys.maxsize:,}") from error
    if n == 0:
        raise ArgumentError("choices: none given")
    if n > MAX_CHOICES:
        raise LimitError(f"choices must be at most {MAX_CHOICES:,}, not {n:,}")
