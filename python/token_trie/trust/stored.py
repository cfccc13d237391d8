"""Objects of JSON files, read with checks whose errors name the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.errors import CalibrationError


class JsonObject:
    """An object of a JSON file; CalibrationError, with the field's path, for a value of another type."""

    def __init__(self, given: object, path: str) -> None:
        if not isinstance(given, Mapping):
            raise CalibrationError(f"{path or 'file'}: {type(given).__name__} where an object belongs")
        self._given = given
        self._path = path

    @property
    def names(self) -> list[str]:
        """The names of its fields."""
        return list(self._given)

    def get(self, name: str) -> Any:
        """Return a field's value; CalibrationError if there is none."""
        if name not in self._given:
            raise CalibrationError(f"{self._at(name)}: missing")
        return self._given[name]

    def inner(self, name: str) -> JsonObject:
        """Return an object."""
        return JsonObject(self.get(name), self._at(name))

    def text(self, name: str) -> str:
        """Return a text."""
        value = self.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        return value

    def one_of(self, name: str, known: Sequence[str]) -> str:
        """Return a text that is one of the known ones."""
        value = self.text(name)
        if value not in known:
            raise CalibrationError(f"{self._at(name)}: {value[:40]!r} is none of {', '.join(known)}")
        return value

    def boolean(self, name: str) -> bool:
        """Return true or false."""
        value = self.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def integer(self, name: str) -> int:
        """Return an integer in [0, 2**53)."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
            raise self._wrong(name, value, "a count")
        return value

    def number(self, name: str) -> float:
        """Return a finite number."""
        return float(self._array(name, self.get(name), ()))

    def above_zero(self, name: str) -> float:
        """Return a number above 0."""
        value = self.number(name)
        if value <= 0:
            raise CalibrationError(f"{self._at(name)}: {value} is not above 0")
        return value

    def floats(self, name: str, shape: tuple[int | None, ...]) -> npt.NDArray[np.float64]:
        """Return an array of finite numbers; None in the shape is any length."""
        return self._array(name, self.get(name), shape)

    def _array(self, name: str, value: object, shape: tuple[int | None, ...]) -> npt.NDArray[np.float64]:
        if not _is_numeric(value, len(shape)):
            raise self._wrong(
                name, value, "a number" if not shape else "lists of numbers" if shape[1:] else "a list of numbers"
            )
        try:
            array = np.array(value, np.float64)
        except (ValueError, OverflowError) as error:
            raise CalibrationError(f"{self._at(name)}: {error}") from error
        if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
            wanted = " x ".join("any" if n is None else str(n) for n in shape)
            raise CalibrationError(
                f"{self._at(name)}: {' x '.join(map(str, array.shape))} numbers, where {wanted} belong"
            )
        if not np.isfinite(array).all():
            raise CalibrationError(f"{self._at(name)}: a number that is not finite")
        return array

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _wrong(self, name: str, value: object, wanted: str) -> CalibrationError:
        return CalibrationError(f"{self._at(name)}: {type(value).__name__} where {wanted} belongs")


def _is_numeric(value: object, depth: int) -> bool:
    if depth:
        return isinstance(value, list) and all(_is_numeric(one, depth - 1) for one in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
