"""Prompt templates that are filled from the columns of a table."""

from __future__ import annotations

import json
import math
import re
from string import Formatter
from typing import Any

from token_trie.errors import ArgumentError
from token_trie.sets.prompt import Filled

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


class Template:
    r"""A text in which ``{text}`` is replaced by a row's value in the column text, and ``{{`` by a brace.

    Parameters
    ----------
    has_escapes : bool
        Whether ``\n``, ``\t`` and ``\\`` have the same meaning as in Python; a shell does not translate them.
    what : str
        Its name in messages.

    Raises
    ------
    ArgumentError
        The text has no column, or an unmatched brace.
    """

    def __init__(self, text: str, has_escapes: bool, what: str = "--prompt") -> None:
        if has_escapes:
            text = re.sub(r"\\[nt\\]", lambda found: _ESCAPES[found[0]], text)
        try:
            self._parts = [
                (literal, None if name is None else name + ("!" + kind if kind else "") + (":" + spec if spec else ""))
                for literal, name, spec, kind in Formatter().parse(text)
            ]
        except ValueError as error:
            raise ArgumentError(f"{what}: {error}; write a brace twice where it stands for itself") from error
        self.text = text
        self.columns = list(dict.fromkeys(name for _, name in self._parts if name is not None))
        if not self.columns:
            raise ArgumentError(what + ": no {column} in it, so that all rows would be one prompt")

    def check(self, columns: list[str], where: str = "") -> None:
        """Raise ArgumentError if a column of the text is not among these."""
        for name in self.columns:
            if name not in columns:
                raise ArgumentError(f"{where}no column {name!r}, which the prompt has; there are {', '.join(columns)}")

    def fill(self, values: dict[str, Any]) -> Filled:
        """Return the prompt of a row, with its values as data; ArgumentError if a value is missing."""
        self.check(list(values))
        empty = [name for name in self.columns if values[name] is None]
        if empty:
            raise ArgumentError(f"nothing in column {empty[0]!r}, which the prompt has")
        return Filled([(literal, "" if name is None else text_of(values[name])) for literal, name in self._parts])


def text_of(value: Any) -> str:
    """Return the text of a value for a prompt or a CSV field; numbers, bools, lists and dicts are written as JSON."""
    if value is None:
        return ""
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return to_json(value) if isinstance(value, (list, dict)) else str(value)


def to_json(value: Any, sort_keys: bool = False) -> str:
    """Return a value as JSON; NaN and infinities become null, types that JSON does not have become text."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str, allow_nan=False, sort_keys=sort_keys)
    except ValueError:
        return json.dumps(_with_nulls(value), ensure_ascii=False, default=str, sort_keys=sort_keys)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_nulls(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
