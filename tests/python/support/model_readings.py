"""A model's scores of rows, as evaluations and fits read them."""

from __future__ import annotations

from typing import Any

from token_trie.trust.rows import Readings, RowOptions, reader_of


def read_rows(llm: Any, rows: Any, choices: Any, options: RowOptions | None = None, **reading: Any) -> Readings:
    """Read rows: prompts that the choices follow, or states that a question is about."""
    reader = reader_of(llm, choices, options or RowOptions())
    return Readings.of(reader.read(rows, **reading), reader.binding)
