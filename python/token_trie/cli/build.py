"""``token-trie build``."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from token_trie.cli.app import command, console
from token_trie.cli.models import Vocabulary
from token_trie.cli.tables import Format, Row, format_of, open_table
from token_trie.errors import ArgumentError, PayloadError
from token_trie.native.core import _core
from token_trie.progress import Progress
from token_trie.sets.tokens import to_tokens
from token_trie.sets.trie import TokenTrie, fit
from token_trie.show.trie import plain


@command(
    "token-trie build titles.csv --text title -m model.gguf -o titles.trie",
    "token-trie build items.parquet --ids semantic_id --name sku -o items.trie",
)
def build(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="A file in CSV, JSON lines or Parquet. Each row is a member.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.trie", help="The file to write.")],
    text: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the texts of the members. Needs --model.")
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column with the token ids of the members: lists, or numbers and spaces."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="With --ids: column with the names. Default: row numbers.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", metavar="FILE.gguf", help="The model whose vocabulary the token ids belong to."),
    ] = None,
    leading_space: Annotated[
        bool | None,
        typer.Option(
            "--leading-space/--no-leading-space",
            help="With --text: whether a space comes before each text. Default: texts are used as they are.",
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="ROWS",
            help="Number of rows in memory. More rows are sorted in temporary files next to the output, and merged.",
        ),
    ] = 5_000_000,
    table_format: Annotated[
        Format | None, typer.Option("--format", help="Format of TABLE. Default: by the ending of its name.")
    ] = None,
) -> None:
    """Write a set to a file. `TokenTrie.open` opens it in milliseconds, whatever its size."""
    if (text is None) == (ids is None):
        raise ArgumentError("--text and --ids: use exactly one of them")
    if ids is not None and leading_space is not None:
        raise ArgumentError("--leading-space: only with --text")
    if text is not None and (model is None or name is not None):
        raise ArgumentError("--text: needs --model, and does not allow --name, because texts are their own names")
    vocabulary = None if model is None else Vocabulary(model)
    columns = [column for column in (text or ids, name) if column is not None]
    rows = _rows(table, format_of(table, table_format, "--format"), columns)
    if text is not None:
        assert vocabulary is not None
        sets = _sets_of_texts(rows, text, vocabulary, leading_space, batch)
    else:
        assert ids is not None
        sets = _sets_of_ids(rows, ids, name, "" if vocabulary is None else vocabulary.vocab.fingerprint(), batch)
    trie, n_rows = _merged(sets, output.absolute().parent)
    if ids is not None and vocabulary is not None:
        vocabulary.check(trie)
    trie.save(output)
    n_bytes = output.stat().st_size
    told = f"{len(trie):,} members, {n_bytes:,} bytes, {n_bytes / len(trie):.1f} a member"
    console.print(f"{plain(str(output))}: {told}", soft_wrap=True)
    if len(trie) < n_rows:
        console.print(f"[yellow]{n_rows - len(trie):,} rows have the tokens of another, or none")


def _rows(path: Path, kind: Format, columns: list[str]) -> Iterator[Row]:
    """Yield the rows of a table, all of which have these columns."""
    with closing(open_table(path, kind)) as table, Progress(table.size, "rows") as progress:
        for row in table.rows():
            if row.bad is not None:
                raise ArgumentError(f"{row.where}: {row.bad}")
            for column in columns:
                if column not in row.values:
                    raise ArgumentError(f"{row.where}: no column {column!r}; the columns are {', '.join(row.values)}")
            yield row
            if row.number % 1024 == 0:
                progress.move(row.number, row.read)


def _sets_of_texts(
    rows: Iterator[Row], column: str, vocabulary: Vocabulary, leading_space: bool | None, batch: int
) -> Iterator[tuple[_core.Trie, int]]:
    """Yield each batch of rows as a set, with the number of rows."""
    while texts := tuple(_text(row, column) for row in islice(rows, batch)):
        yield fit(vocabulary.vocab, {}, [], texts, leading_space).trie.core, len(texts)


def _sets_of_ids(
    rows: Iterator[Row], column: str, name: str | None, fingerprint: str, batch: int
) -> Iterator[tuple[_core.Trie | None, int]]:
    """Likewise; None for a batch without tokens."""
    while True:
        # As they come, at what the ids take: objects of Python's would take ten times as much.
        tokens, offsets, names = array("i"), array("q", [0]), []
        for row in islice(rows, batch):
            tokens.frombytes(_tokens(row, column).tobytes())
            offsets.append(len(tokens))
            if name is not None:
                names.append(_text(row, name))
        if len(offsets) == 1:
            return
        made = _core.Trie.build(np.asarray(tokens), np.asarray(offsets), names, fingerprint) if tokens else None
        yield made, len(offsets) - 1


def _merged(sets: Iterator[tuple[_core.Trie | None, int]], folder: Path) -> tuple[TokenTrie, int]:
    """Return the set of all batches and the number of rows; several batches are files in the folder meanwhile."""
    first, second = next(sets, (None, 0)), next(sets, None)
    runs, first_rows, n_rows = [], [], 0
    with TemporaryDirectory(prefix=".token-trie-", dir=folder) as home:
        for core, n in [first] if second is None else chain([first, second], sets):
            if core is not None and second is not None:
                run = Path(home) / f"{len(runs)}.trie"
                TokenTrie.of_core(core).save(run)
                core = _core.open_trie(str(run))
            if core is not None:
                runs.append(core)
                first_rows.append(n_rows)
            n_rows += n
        if not runs:
            raise PayloadError("no row with tokens: a set needs at least one")
        if second is None:
            return TokenTrie.of_core(runs[0]), n_rows
        console.print(f"merging {len(runs)} sorted batches")
        return TokenTrie.of_core(_core.Trie.merged(runs, first_rows)), n_rows


def _text(row: Row, column: str) -> str:
    value = row.values[column]
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise ArgumentError(f"{row.where}, {column}: {value!r} is not a text")
    return str(value)


def _tokens(row: Row, column: str) -> Any:
    value = row.values[column]
    where = f"{row.where}, {column}"
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.lstrip().startswith("[") else list(map(_number, value.split()))
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"{where}: {value[:80]!r} is not a list of token ids") from error
    if not isinstance(value, (list, np.ndarray)) or any(isinstance(token, bool) for token in value):
        raise ArgumentError(f"{where}: {value!r} is not a list of token ids")
    tokens = to_tokens(value, where)
    if len(tokens) and tokens.min() < 0:
        raise ArgumentError(f"{where}: {tokens.min()} is not a token id")
    return tokens


def _number(digits: str) -> int:
    """Return a number; ValueError for what Python takes beside: ``1_0``, digits of other scripts."""
    if not (digits.isascii() and digits.removeprefix("-").isdigit()):
        raise ValueError(digits)
    return int(digits)
