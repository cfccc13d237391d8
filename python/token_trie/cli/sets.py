"""``token-trie build`` and ``token-trie inspect``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer

from token_trie.cli.options import Vocabulary, command, console, is_set, read
from token_trie.cli.tables import (
    Format,
    Members,
    Table,
    checked,
    format_of,
    in_batches,
    open_table,
    read_members,
    text_in,
)
from token_trie.errors import ArgumentError, PayloadError
from token_trie.native.core import _core
from token_trie.progress import Progress
from token_trie.sets.trie import TokenTrie, fit
from token_trie.show.trie import count_leaves, draw, plain


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
    with (
        closing(open_table(table, format_of(table, table_format, "--format"))) as opened,
        Progress(opened.size, "rows") as progress,
    ):
        sets: Iterator[tuple[_core.Trie | None, int]]
        if text is not None:
            assert vocabulary is not None
            sets = _sets_of_texts(opened, text, vocabulary, leading_space, batch, progress)
        else:
            assert ids is not None
            fingerprint = "" if vocabulary is None else vocabulary.vocab.fingerprint()
            sets = _sets_of_ids(opened, ids, name, fingerprint, batch, progress)
        trie, n_rows = _merged(sets, output.absolute().parent)
    if ids is not None and vocabulary is not None:
        vocabulary.check(trie)
    trie.save(output)
    n_bytes = output.stat().st_size
    size = f"{len(trie):,} members, {n_bytes:,} bytes, {n_bytes / len(trie):.1f} a member"
    console.print(f"{plain(str(output))}: {size}", soft_wrap=True)
    if len(trie) < n_rows:
        console.print(f"[yellow]{n_rows - len(trie):,} rows have the tokens of another, or none")


def _sets_of_texts(
    table: Table, column: str, vocabulary: Vocabulary, leading_space: bool | None, batch: int, progress: Progress
) -> Iterator[tuple[_core.Trie, int]]:
    """Yield each batch of rows as a set, with the number of rows."""

    def texts() -> Iterator[str]:
        for row in checked(table.rows(), [column]):
            yield text_in(row, column)
            if row.number % 1024 == 0:
                progress.move(row.number, row.read)

    rest = texts()
    while some := tuple(islice(rest, batch)):
        yield fit(vocabulary.vocab, {}, [], some, leading_space).trie.core, len(some)


def _sets_of_ids(
    table: Table, ids: str, name: str | None, fingerprint: str, batch: int, progress: Progress
) -> Iterator[tuple[_core.Trie | None, int]]:
    """Like `_sets_of_texts`, from token ids; None for a batch without tokens."""

    def parts() -> Iterator[Members]:
        n_rows = 0
        for part in read_members(table, ids, name):
            n_rows += len(part.lengths)
            progress.move(n_rows, part.read)
            yield part

    for members in in_batches(parts(), batch):
        offsets = np.concatenate([[0], np.cumsum(members.lengths)])
        made = None
        if len(members.tokens):
            made = _core.Trie.build(members.tokens, offsets, members.names, fingerprint)
        yield made, len(members.lengths)


def _merged(sets: Iterator[tuple[_core.Trie | None, int]], folder: Path) -> tuple[TokenTrie, int]:
    """Return the set of all batches and the number of rows; several batches are saved in the folder and merged."""
    first, second = next(sets, (None, 0)), next(sets, None)
    runs: list[_core.Trie] = []
    first_rows, n_rows = [], 0
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


@command(
    "token-trie inspect payload.json",
    "token-trie inspect payload.json --model model.gguf --path action",
    "token-trie inspect items.trie --verify",
)
def inspect(
    payload: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A payload in JSON (- reads standard input), or a .trie file of `token-trie build`."
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", "-m", metavar="FILE.gguf", help="Show the tokens' texts, check the vocabulary, and spell texts."
        ),
    ] = None,
    path: Annotated[str | None, typer.Option(help="Use only the descriptors of this path.")] = None,
    max_lines: Annotated[int, typer.Option(min=1, help="The largest number of lines.")] = 200,
    verify: Annotated[bool, typer.Option("--verify", help="Check all checksums of a .trie file.")] = False,
) -> None:
    """Draw a set with its names, tokens and counts."""
    vocabulary = None if model is None else Vocabulary(model)
    if is_set(payload):
        if path is not None:
            raise ArgumentError("--path: not with a .trie file, which is one set")
        trie = TokenTrie.open(payload, verify=verify)
    elif verify:
        raise ArgumentError("--verify: only with a .trie file")
    else:
        trie = TokenTrie.read_payload(read(payload), path, None if vocabulary is None else vocabulary.vocab)
    piece = None
    if vocabulary is not None:
        vocabulary.check(trie)
        piece = vocabulary.piece
    console.print(draw(trie, piece, max_lines))
    console.print(
        f"{count_leaves(trie)}, {trie.n_nodes:,} nodes, longest leaf {trie.max_tokens:,} tokens, {trie.nbytes:,} bytes"
    )
    for dropped, kept in trie.aliases.items():
        console.print(f"[yellow]{plain(dropped)} has the same tokens as {plain(kept)}")
