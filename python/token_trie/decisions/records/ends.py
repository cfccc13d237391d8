"""Where what is generated ends."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_DECODER = json.JSONDecoder()
_NUMBER = re.compile(r"-?[0-9][0-9.eE+-]*")


@dataclass
class StringEnd:
    """Finds the end of a JSON string in its content, as this grows: its quote, or the most characters that it has."""

    min_length: int
    max_length: int | None
    n_characters: int = 0
    _at: int = 0
    _is_escaped: bool = False

    def __call__(self, text: str) -> int | None:
        """Return where it ends."""
        while self._at < len(text):
            if self.n_characters == self.max_length:
                return self._at
            char = text[self._at]
            if char == '"' and not self._is_escaped:
                return self._at
            self._is_escaped = char == "\\" and not self._is_escaped
            self.n_characters += not self._is_escaped
            self._at += 1
        return self._at if self.n_characters == self.max_length else None

    @property
    def is_long_enough(self) -> bool:
        """Whether it may end here."""
        return self.n_characters >= self.min_length

    @property
    def last_whole(self) -> int:
        """The place behind the last whole character."""
        return self._at - self._is_escaped


def value_end(text: str) -> int | None:
    """Return where a JSON value ends; a number ends where something else follows."""
    number = _NUMBER.match(text)
    if number is not None:
        return number.end() if number.end() < len(text) else None
    try:
        end: int = _DECODER.raw_decode(text)[1]
    except (ValueError, RecursionError):
        return None
    return end
