"""Examples that stand before a question, from a table."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from token_trie.cli.tables import format_of, open_table
from token_trie.cli.ways import ByQuestion, Way
from token_trie.decisions.gold import is_nothing
from token_trie.decisions.questions.examples import Examples
from token_trie.errors import ArgumentError
from token_trie.sets.template import text_of

ExamplesOption = Annotated[
    Path | None,
    typer.Option(
        "--examples",
        help="With --question: a table with examples. The model reads some of its rows, with their answers from column "
        "--gold, before each row.",
    ),
]
EachOption = Annotated[
    int, typer.Option("--examples-each", min=1, help="Number of --examples for each answer; the first ones are used.")
]
NearestOption = Annotated[
    int | None,
    typer.Option(
        "--nearest",
        min=1,
        help="Instead of the first ones, use this many --examples that share the most words with the row. Slower, "
        "because the model reads them again for each row.",
    ),
]


def put_examples(way: Way, path: Path | None, gold: str | None, n_each: int, nearest: int | None) -> None:
    """Let a question stand behind the examples of a table, if one is given.

    Raises
    ------
    ArgumentError
        The options do not fit each other, or a row is no example, with its place; OSError as of files.
    """
    if path is None:
        if nearest is not None or n_each != 1:
            raise ArgumentError("--examples-each and --nearest: only with --examples")
        return
    if not isinstance(way, ByQuestion):
        raise ArgumentError("--examples: only with --question; a prompt can contain examples in its text")
    if gold is None:
        raise ArgumentError("--examples: needs --gold, the column with their answers")
    states, answers = [], []
    with closing(open_table(path, format_of(path, None, "the ending of its name"))) as table:
        if table.columns is not None and gold not in table.columns:
            raise ArgumentError(f"{table.name}: no column {gold!r}, which --gold names")
        for row in table.rows():
            if row.bad is None and is_nothing(row.values.get(gold)):
                continue
            try:
                if row.bad is not None:
                    raise ArgumentError(row.bad)
                answers.append(text_of(row.values[gold]))
                states.append(way.ask({name: value for name, value in row.values.items() if name != gold}))
            except ArgumentError as error:
                raise ArgumentError(f"{row.where}: {error}") from error
    if not states:
        raise ArgumentError(f"{path}: no row with an answer in {gold!r}")
    way.put(Examples(states, answers, n_each, nearest))
