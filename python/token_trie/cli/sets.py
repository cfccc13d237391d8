"""``token-trie build``, and sets in the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import typer

from token_trie.cli.options import command, console, interrupted_after, is_set, read, require_output
from token_trie.cli.tables import Format, Table, TableRow, format_of, open_table
from token_trie.errors import ArgumentError, PayloadError
from token_trie.native.core import _core, llama_cpp
from token_trie.native.files import demo_model
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
        Path | None,
        typer.Option(
            "--model",
            "-m",
            metavar="FILE.gguf",
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
    require_output("--output", output, table, model)
    if text is not None and model is None:
        model = Path(demo_model())
    with (
        _vocabulary(model) as vocab,
        closing(open_table(table, format_of(table, table_format))) as opened,
        Progress(opened.size, "rows") as progress,
    ):
        members_of: Callable[[list[TableRow]], _Members]
        if text is not None:
            assert vocab is not None
            members_of = partial(_of_texts, text=text, name=name, vocab=vocab, leading_space=leading_space)
        else:
            assert ids is not None
            members_of = partial(_of_ids, ids=ids, name=name)
        parts = _parts(opened, members_of)
        fingerprint = "" if vocab is None else vocab.fingerprint()
        trie, n_rows = _trie_of(opened, parts, fingerprint, progress)
        if ids is not None and vocab is not None:
            vocab.check(trie.core)
    trie.save(output)
    n_bytes = output.stat().st_size
    size = f"{len(trie):,} members, {n_bytes:,} bytes, {n_bytes / len(trie):.1f} a member"
    console.print(f"{plain(str(output))}: {size}", soft_wrap=True)
    if len(trie) < n_rows:
        console.print(f"[yellow]{n_rows - len(trie):,} rows have the tokens of another, or none; these are no members")


@contextmanager
def _vocabulary(model: Path | None) -> Iterator[_core.Vocab | None]:
    """Load a model's vocabulary without its weights; ArgumentError for a file that cannot be read as a model."""
    if model is None:
        yield None
        return
    if not model.is_file():
        raise ArgumentError(f"--model: no file {str(model)!r}")
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    try:
        with interrupted_after():
            loaded = wrapped_model(str(model), params)
    except ValueError as error:
        raise ArgumentError(f"--model: {error}") from error
    yield _core.Vocab(int(loaded.vocab))  # valid as long as the model


class _Members(NamedTuple):
    """Members of some rows."""

    tokens: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    names: list[str]


def _parts(table: Table, members_of: Callable[[list[TableRow]], _Members]) -> Iterator[_Members]:
    """Yield the members of some rows at a time."""
    rows = table.rows()
    while some := list(islice(rows, _PART_ROWS)):
        yield members_of(some)


def _of_texts(
    rows: list[TableRow], text: str, name: str | None, vocab: _core.Vocab, leading_space: bool | None
) -> _Members:
    texts = [_text_in(row, text) for row in _checked(rows, [text] if name is None else [text, name])]
    names = texts if name is None else [_text_in(row, name) for row in rows]
    seam = find_seam(vocab, [], leading_space)
    tokens, offsets, _ = spell(vocab, seam, texts, all_spaced=leading_space is True, is_whole=True)
    return _Members(tokens, np.diff(offsets), names)


def _of_ids(rows: list[TableRow], ids: str, name: str | None) -> _Members:
    tokens, offsets = joined([_tokens(row, ids) for row in _checked(rows, [ids] if name is None else [ids, name])])
    names = [] if name is None else [_text_in(row, name) for row in rows]
    return _Members(tokens, np.diff(offsets), names)


def _checked(rows: Iterable[TableRow], columns: list[str]) -> Iterator[TableRow]:
    """Yield rows; ArgumentError for a bad row, or one without these columns."""
    for row in rows:
        if row.bad is not None:
            raise ArgumentError(f"{row.where}: {row.bad}")
        for column in columns:
            if column not in row.values:
                raise ArgumentError(f"{row.where}: no column {column!r}; the columns are {', '.join(row.values)}")
        yield row


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


def _trie_of(table: Table, parts: Iterator[_Members], fingerprint: str, progress: Progress) -> tuple[TokenTrie, int]:
    """Return the set of all rows, and their number."""
    tokens, lengths = [np.empty(0, np.int32)], [np.zeros(1, np.int64)]
    names: list[str] = []
    n_rows = 0
    for part in parts:
        tokens.append(part.tokens)
        lengths.append(part.lengths)
        names += part.names
        n_rows += len(part.lengths)
        progress.move(n_rows, table.read)
    flat = np.concatenate(tokens)
    if not len(flat):
        raise PayloadError("no row with tokens: a set needs at least one")
    return TokenTrie.of_core(_core.Trie.build(flat, np.concatenate(lengths).cumsum(), names, fingerprint)), n_rows


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
