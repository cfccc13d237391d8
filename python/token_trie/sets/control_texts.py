"""Texts that a tokenizer reads as control tokens, and marks that keep it from doing so in data.

A mark follows a character of data. No control token has a mark in its text, so that in a rendered text:

    <|im_start|>user⏎What is <°|°i°m°_°e°n°d°|°>° ?<|im_end|>⏎
    control                 data: broken by marks   control
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Code points that Unicode never gives to a character."""
_STRUCTURE = ("role", "type")
"""Keys whose values templates compare, and may put into the name of a control token: <|user|>."""


class JSONObject(dict[str, Any]):
    """A JSON object. In a template that puts it into text, it is its JSON."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


class Control(NamedTuple):
    """An occurrence of a control token's text."""

    begin: int
    end: int
    text: str


class ControlTexts:
    """The texts of one vocabulary that become control tokens; none is empty."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts)
        self._lengths = sorted({len(text) for text in self._texts}, reverse=True)
        self._starts = {text[:n] for text in self._texts for n in range(1, len(text))}
        self._ends = {text[n:] for text in self._texts for n in range(1, len(text))}
        self._joined = "\0".join(self._texts)
        # Most text that begins like a control token differs from it within three characters, such as <p>.
        beginnings = sorted({text[:3] for text in self._texts}, reverse=True)
        self._first = re.compile("|".join(f"{re.escape(b[0])}(?={re.escape(b[1:])})" for b in beginnings) or "(?!)")
        self._edges = _any_of({text[0] for text in self._texts} | {text[-1] for text in self._texts})

    def find(self, text: str) -> list[Control]:
        """Return the occurrences in a text, from the left; of two at one position, the longer."""
        found = []
        end = 0
        for at in self._first.finditer(text):
            if at.start() >= end:
                for one in self._beginning_at(text, at.start()):
                    found.append(one)
                    end = one.end
                    break
        return found

    def are_in(self, text: str) -> bool:
        """Tell whether a text has any."""
        return any(self.begins_at(text, at.start()) for at in self._first.finditer(text))

    def begins_at(self, text: str, position: int) -> bool:
        """Tell whether one begins at a position of a text."""
        return any(True for _ in self._beginning_at(text, position))

    def mark(self, data: Any, mark: str, *, every_edge: bool) -> Any:
        """Return data, texts in dicts and lists, with marks in all that is a control token or may become part of one.

        Parameters
        ----------
        every_edge : bool
            Whether to mark every character with which a control token begins or ends, against templates that remove
            text between two such characters.
        """
        return _map_texts(data, lambda text, whole: self._mark(text, mark, every_edge, whole))

    def may_come_of(self, data: Any) -> bool:
        """Tell whether data hold a character that a control token begins or ends with, or a text that is inside one."""
        return any(
            self._edges.search(text) is not None or (whole and self._is_inside(text)) for text, whole in texts_in(data)
        )

    def _mark(self, text: str, mark: str, every_edge: bool, whole: bool) -> str:
        positions: set[int] = set()
        if every_edge:
            positions.update(at.start() for at in self._edges.finditer(text))
        for at in self._first.finditer(text):
            for one in self._beginning_at(text, at.start()):
                positions.update(range(one.begin, one.end))
        stripped = len(text) - len(text.lstrip()), len(text.rstrip())
        for begin, end in {(0, len(text)), stripped}:
            longest = min(self._lengths[0], end - begin)
            at_end = next((n for n in range(longest, 0, -1) if text[end - n : end] in self._starts), 0)
            at_start = next((n for n in range(longest, 0, -1) if text[begin : begin + n] in self._ends), 0)
            positions.update(range(end - at_end, end), range(begin, begin + at_start))
        if whole and self._is_inside(text):
            positions.update(range(*stripped))
        if not positions:
            return text
        return "".join(char + mark if i in positions else char for i, char in enumerate(text))

    def _is_inside(self, text: str) -> bool:
        stripped = text.strip()
        return 0 < len(stripped) <= self._lengths[0] and stripped in self._joined

    def _beginning_at(self, text: str, begin: int) -> Iterator[Control]:
        for n in self._lengths:
            part = text[begin : begin + n]
            if len(part) == n and part in self._texts:
                yield Control(begin, begin + n, part)


def free_mark(data: Any) -> str | None:
    """Return a mark that data do not hold, written out or escaped; None where they hold all."""
    texts = [text for text, _ in texts_in(data)]
    return next((mark for mark in _MARKS if not any(mark in text or _escaped(mark) in text for text in texts)), None)


def plain_marks(text: str, mark: str) -> str:
    """Return a text with its escaped marks written out; some writers of JSON escape them."""
    return text.replace(_escaped(mark), mark)


def texts_in(data: Any) -> Iterator[tuple[str, bool]]:
    """Yield the texts of data, keys too, each with whether it is a whole value that templates do not compare."""
    found: list[tuple[str, bool]] = []

    def note(text: str, whole: bool) -> str:
        found.append((text, whole))
        return text

    _map_texts(data, note)
    yield from found


def _map_texts(data: Any, change: Callable[[str, bool], str], *, whole: bool = True) -> Any:
    if isinstance(data, str):
        return change(data, whole)
    if isinstance(data, Mapping):
        made = {
            change(key, False) if isinstance(key, str) else key: _map_texts(
                value, change, whole=not (key in _STRUCTURE and isinstance(value, str) and value.isidentifier())
            )
            for key, value in data.items()
        }
        return JSONObject(made) if isinstance(data, JSONObject) else made
    if isinstance(data, (list, tuple)):
        return [_map_texts(value, change) for value in data]
    return data


def _any_of(chars: Iterable[str]) -> re.Pattern[str]:
    escaped = "".join(map(re.escape, sorted(chars)))
    return re.compile(f"[{escaped}]" if escaped else r"(?!)")


def _escaped(mark: str) -> str:
    return json.dumps(mark)[1:-1]
