"""``token-trie build``, and sets in the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from token_trie.cli.options import command, console, interrupted_after, is_set, model_file, read, require_output
from token_trie.cli.tables import Format, Table, TableRow
from token_trie.errors import ArgumentError, PayloadError
from token_trie.native.core import _core, llama_cpp
from token_trie.native.llama_facts import wrapped_model
from token_trie.progress import Progress
from token_trie.sets.tokenization import find_seam, joined, spell, to_tokens
from token_trie.sets.trie import TokenTrie
from token_trie.show.trie import count_leaves, draw, plain

_PART_ROWS = 65536
"""Rows that are read and tokenized at a time."""


@command(
    "token-trie build titles.csv --text title -m model.gguf -o titles.trie",
    "token-trie build titles.csv --text title --name sku -m model.gguf -o titles.trie",
    "token-trie build items.jsonl --ids semantic_id --name sku -o items.trie",
)
def build(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A file in CSV or JSON lines. Each row is a member.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.trie", help="The file to write.")],
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column with the texts of the members.")] = None,
    ids: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column with the token ids of the members: lists, or numbers and spaces."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column with the names of the members. Default: the texts; with --ids, row numbers."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="The model whose vocabulary the token ids belong to. Default with --text: SmolLM2-135M from "
            "token-trie[demo].",
        ),
    ] = None,
    leading_space: Annotated[
        bool | None,
        typer.Option(
            "--leading-space/--no-leading-space",
            help="With --text: whether a space comes before each text. Default: texts are used as they are.",
        ),
    ] = None,
    table_format: Annotated[
        Format | None, typer.Option("--format", help="Format of TABLE. Default: by the ending of its name.")
    ] = None,
) -> None:
    """Write a set to a file. `TokenTrie.open` opens it in milliseconds, whatever its size."""
    if (text is None) == (ids is None):
        raise ArgumentError("--text and --ids: use exactly one of them")
    if ids is not None and leading_space is not None:
        raise ArgumentError("--leading-space: only with --text")
    file = model_file(model) if model is not None or text is not None else None
    require_output("--output", output, table, file)
    with _vocabulary(file) as vocab, closing(Table(table, table_format)) as opened:
        trie, n_rows = _build(opened, vocab, text, ids, name, leading_space)
    trie.save(output)
    n_bytes = output.stat().st_size
    size = f"{len(trie):,} members, {n_bytes:,} bytes, {n_bytes / len(trie):.1f} a member"
    console.print(f"{plain(str(output))}: {size}", soft_wrap=True)
    if len(trie) < n_rows:
        console.print(f"[yellow]{n_rows - len(trie):,} rows have the tokens of another, or none; these are no members")


def _build(
    table: Table,
    vocab: _core.Vocab | None,
    text: str | None,
    ids: str | None,
    name: str | None,
    leading_space: bool | None,
) -> tuple[TokenTrie, int]:
    """Build a set of the columns of a table; return the number of rows, too."""
    parts = [(np.empty(0, np.int32), np.zeros(1, np.int64))]
    names: list[str] = []
    n_rows = 0
    with Progress(table.size, "rows") as progress:
        while rows := list(islice(table.rows(), _PART_ROWS)):
            _require_columns(rows, [one for one in (text, ids, name) if one is not None])
            if text is not None and vocab is not None:
                texts = [_text_in(row, text) for row in rows]
                seam = find_seam(vocab, [], leading_space)
                tokens, offsets, _ = spell(vocab, seam, texts, all_spaced=leading_space is True, is_whole=True)
                names += texts if name is None else [_text_in(row, name) for row in rows]
            else:
                tokens, offsets = joined([_tokens(row, ids or "") for row in rows])
                names += [] if name is None else [_text_in(row, name) for row in rows]
            parts.append((tokens, np.diff(offsets)))
            n_rows += len(rows)
            progress.move(n_rows, table.read)
    flat, lengths = map(np.concatenate, zip(*parts, strict=True))
    if not len(flat):
        raise PayloadError("no row with tokens: a set needs at least one")
    core = _core.Trie.build(flat, lengths.cumsum(), names, "" if vocab is None else vocab.fingerprint())
    if ids is not None and vocab is not None:
        vocab.check(core)
    return TokenTrie.of_core(core), n_rows


@contextmanager
def _vocabulary(model: Path | None) -> Iterator[_core.Vocab | None]:
    """Load a model's vocabulary without its weights; ArgumentError for a file that cannot be read as a model."""
    if model is None:
        yield None
        return
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    try:
        with interrupted_after():
            loaded = wrapped_model(str(model), params)
    except ValueError as error:
        raise ArgumentError(f"--model: {error}") from error
    yield _core.Vocab(int(loaded.vocab))  # valid as long as the model


def _require_columns(rows: list[TableRow], columns: list[str]) -> None:
    """Raise ArgumentError for a bad row, or one without these columns."""
    for row in rows:
        if row.bad is not None:
            raise ArgumentError(f"{row.where}: {row.bad}")
        for column in columns:
            if column not in row.values:
                raise ArgumentError(f"{row.where}: no column {column!r}; the columns are {', '.join(row.values)}")


def _text_in(row: TableRow, column: str) -> str:
    """Return a cell's text; ArgumentError if it has none."""
    value = row.values[column]
    if value is None or value == "":
        raise ArgumentError(f"{row.where}, {column}: empty; fill the cell, or leave the row out of the table")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ArgumentError(f"{row.where}, {column}: {value!r} is not a text")
    return str(value)


def _tokens(row: TableRow, column: str) -> npt.NDArray[np.int32]:
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
    """Return a number; ValueError for other forms that Python accepts, such as ``1_0``."""
    if not (digits.isascii() and digits.removeprefix("-").isdigit()):
        raise ValueError(digits)
    return int(digits)


def draw_set(file: Path, path: str | None, model: Path | None) -> None:
    """Print a set with its names, tokens and counts; errors are those of `TokenTrie.open` and of payloads."""
    with _vocabulary(model) as vocab:
        if not is_set(file):
            trie = TokenTrie.read_payload(read(file), path, vocab)
        elif path is None:
            trie = TokenTrie.open(file, verify=True)
        else:
            raise ArgumentError("--path: not with a .trie file, which is one set")
        if vocab is not None:
            vocab.check(trie.core)
        console.print(draw(trie, None if vocab is None else lambda token: vocab.detokenize([token])))
    console.print(
        f"{count_leaves(trie)}, {trie.n_nodes:,} nodes, longest leaf {trie.max_tokens:,} tokens, {trie.nbytes:,} bytes"
    )
    for dropped, kept in trie.aliases.items():
        console.print(f"[yellow]{plain(dropped)} has the same tokens as {plain(kept)}")
