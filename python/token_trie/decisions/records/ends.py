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
    last_whole: int = 0
    """The position behind the last whole character."""
    _at: int = 0
    _until: int = 0  # there an escape ends, at the earliest

    def __call__(self, text: str) -> int | None:
        """Return where it ends."""
        while self._at < len(text) and self.n_characters != self.max_length:
            char, is_escaped = text[self._at], self._at < self._until
            if char == '"' and not is_escaped:
                return self._at
            self._at += 1
            if not is_escaped and char == "\\":
                self._until = self._at + 1
            elif is_escaped and char == "u" and self._at == self._until == self.last_whole + 2:
                self._until += 4
            if self._at >= self._until:
                self.n_characters += 1
                self.last_whole = self._at
        return self._at if self.n_characters == self.max_length else None

    @property
    def is_long_enough(self) -> bool:
        """Whether it may end here."""
        return self.n_characters >= self.min_length


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
