"""Prompts with columns of a table in them."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter
from typing import Any

from token_trie.cli.options import read
from token_trie.cli.tables import text_of
from token_trie.errors import ArgumentError
from token_trie.sets.prompt import Filled

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


class Template:
    r"""A text in which ``{text}`` stands for the value that a row has in column text, and ``{{`` for a brace.

    Parameters
    ----------
    has_escapes : bool
        Whether ``\n``, ``\t`` and ``\\`` mean what they mean in Python; a shell does not translate them.

    Raises
    ------
    ArgumentError
        The text has no column, or a brace too many.
    """

    def __init__(self, text: str, has_escapes: bool) -> None:
        if has_escapes:
            text = re.sub(r"\\[nt\\]", lambda found: _ESCAPES[found[0]], text)
        try:
            self._parts = [
                (literal, None if name is None else name + ("!" + kind if kind else "") + (":" + spec if spec else ""))
                for literal, name, spec, kind in Formatter().parse(text)
            ]
        except ValueError as error:
            raise ArgumentError(f"--prompt: {error}; write a brace twice where it stands for itself") from error
        self.text = text
        self.columns = list(dict.fromkeys(name for _, name in self._parts if name is not None))
        if not self.columns:
            raise ArgumentError("--prompt: no {column} in it, so that all rows would be one prompt")

    def check(self, columns: list[str], where: str = "") -> None:
        """Raise ArgumentError if a column of the text is none of these."""
        for name in self.columns:
            if name not in columns:
                raise ArgumentError(f"{where}no column {name!r}, which the prompt has; there are {', '.join(columns)}")

    def fill(self, values: dict[str, Any]) -> Filled:
        """Return the prompt of a row, with its values as data; ArgumentError where one is missing."""
        self.check(list(values))
        empty = [name for name in self.columns if values[name] is None]
        if empty:
            raise ArgumentError(f"nothing in column {empty[0]!r}, which the prompt has")
        return Filled([(literal, "" if name is None else text_of(values[name])) for literal, name in self._parts])


def read_template(prompt: str | None, prompt_file: Path | None, *, is_needed: bool) -> Template | None:
    """Return the template of --prompt or --prompt-file; None where neither is given, nor needed."""
    if prompt is None and prompt_file is None and not is_needed:
        return None
    if prompt is not None and prompt_file is None:
        return Template(prompt, has_escapes=True)
    if prompt is None and prompt_file is not None:
        return Template(read(prompt_file), has_escapes=False)
    raise ArgumentError("--question, or --prompt, or --prompt-file: one of them; a question goes with either")
