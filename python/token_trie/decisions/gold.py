"""Gold labels as positions of classes; and scikit-learn, an optional dependency."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from token_trie.arrays import Ints
from token_trie.errors import ArgumentError


def import_sklearn(name: str) -> Any:
    """Import a module of scikit-learn; the error names the package to install."""
    try:
        return import_module(f"sklearn.{name}")
    except ImportError as error:
        raise ArgumentError(f"this needs scikit-learn: pip install 'token-trie[calibration]' ({error})") from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to this thread: fits are small, and their waiting threads would spin."""
    import_sklearn("utils")  # because it brings threadpoolctl
    with import_module("threadpoolctl").threadpool_limits(1):
        yield


def is_nothing(label: object) -> bool:
    """Whether a label is missing: None, NaN, a missing value of pandas, or a blank text."""
    if isinstance(label, str):
        return not label.strip()
    if isinstance(label, (float, np.floating)):
        return math.isnan(label)
    return label is None or type(label).__name__ in ("NAType", "NaTType")


def listed(given: Any, what: str) -> list[Any]:
    """Return a list of several; ArgumentError, beginning with `what`, for one text, or what is none of several."""
    items = given.tolist() if isinstance(given, np.ndarray) else given  # one number for an array without dimensions
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        raise ArgumentError(f"{what} must be a list, not {type(given).__name__}")
    return list(items)


def read_gold(gold: object, n: int, texts: Sequence[str], values: Sequence[Any]) -> Ints:
    """Return the position of the class of each of n rows; a label is a text or a value of a class.

    If a label is the text of one class and the value of another, all labels are read in the one way that fits all of
    them. ArgumentError if both ways fit, a label is no class (with its position), or there are not n labels.
    """
    labels = listed(gold, "gold")
    if len(labels) != n:
        raise ArgumentError(f"gold: {len(labels):,} labels for {n:,} rows")
    read = Labels(texts, values)
    by_text, by_value = [read.by_text(label) for label in labels], [read.by_value(label) for label in labels]
    wrong = [i for i, found in enumerate(zip(by_text, by_value, strict=True)) if found == (None, None)]
    if wrong:
        others = "" if len(wrong) == 1 else f" (and {len(wrong) - 1:,} more, the next gold[{wrong[1]}])"
        raise ArgumentError(f"gold[{wrong[0]}]: {read.refusal(labels[wrong[0]])}{others}")
    for i, (a, b) in enumerate(zip(by_text, by_value, strict=True)):
        if a is not None and b is not None and a != b and (None in by_text) == (None in by_value):
            raise ArgumentError(
                f"gold[{i}]: {labels[i]!r} is the text of one choice and the value of another, {texts[b]!r}; "
                "give texts for all rows"
            )
    first, second = (by_value, by_text) if None in by_text else (by_text, by_value)
    return np.array([b if a is None else a for a, b in zip(first, second, strict=True)], np.int64)


class Labels:
    """Finds classes by their labels."""

    def __init__(self, texts: Sequence[str], values: Sequence[Any]) -> None:
        self._of_text = {text: i for i, text in reversed(list(enumerate(texts)))}
        self._of_value: dict[Any, int] = {}
        self._has_numbers = any(type(value) is int for value in values)
        for i, value in enumerate(values):
            if value is None:  # "none of these" is found by its text
                continue
            try:
                self._of_value.setdefault((type(value), value), i)
            except TypeError:  # a value without a hash is found by its text
                continue

    def position(self, label: object) -> int | None:
        """Return the position of a label's class; None if there is none."""
        found = self.by_text(label)
        return self.by_value(label) if found is None else found

    def by_text(self, label: object) -> int | None:
        """Return the position of the class with this text, or with this number if the texts of classes are numbers."""
        if isinstance(label, np.generic):
            label = label.item()
        if type(label) is int and self._has_numbers:
            label = str(label)
        return self._of_text.get(label) if isinstance(label, str) else None

    def by_value(self, label: object) -> int | None:
        """Return the position of the class with this value."""
        if isinstance(label, np.generic):
            label = label.item()
        try:  # with the type, because 1 equals True as a key
            return self._of_value.get((type(label), label))
        except TypeError:
            return None

    def refusal(self, label: object) -> str:
        """Return a message that describes a label that is no class."""
        if is_nothing(label):
            return "no label; leave rows without one out"
        shown = repr(label) if len(repr(label)) <= 80 else f"{repr(label)[:80]}…"
        text = label if isinstance(label, str) else str(label).lower() if isinstance(label, bool) else str(label)
        if not isinstance(label, str):
            shown += f" ({type(label).__name__})"
        near = difflib.get_close_matches(text.strip(), self._of_text, n=1, cutoff=0.7)
        folded = [known for known in self._of_text if known.casefold() == text.strip().casefold()]
        hint = "".join(f"; did you mean {one!r}?" for one in (folded or near)[:1])
        return f"{shown} is none of the {len(self._of_text):,} choices{hint}"
