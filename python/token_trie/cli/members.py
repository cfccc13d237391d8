"""Members of a set as token ids, from the rows of a table, some rows at a time."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from token_trie.cli.tables import ParquetTable, Row, Table
from token_trie.engines.arrow import import_pyarrow
from token_trie.errors import ArgumentError
from token_trie.sets.tokens import to_tokens

_ROWS = 65536


class Members(NamedTuple):
    """Those of some rows."""

    tokens: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    names: list[str]
    read: int
    """How much of the table is read with them, in the unit of its size."""


def checked(rows: Iterable[Row], columns: list[str]) -> Iterator[Row]:
    """Yield rows, all of which have these columns; ArgumentError for the first that does not."""
    for row in rows:
        if row.bad is not None:
            raise ArgumentError(f"{row.where}: {row.bad}")
        for column in columns:
            if column not in row.values:
                raise ArgumentError(f"{row.where}: no column {column!r}; the columns are {', '.join(row.values)}")
        yield row


def read_members(table: Table, ids: str, name: str | None) -> Iterator[Members]:
    """Yield the members in two columns of a table; without names where name is None."""
    if not isinstance(table, ParquetTable):
        rows = table.rows()
        while len((some := _of_rows(islice(rows, _ROWS), ids, name)).lengths):
            yield some
        return
    number = 0
    for batch in table.batches(_ROWS):
        fast = _of_arrow(batch, ids, name)
        yield _of_rows(table.rows_of(batch, number), ids, name) if fast is None else Members(*fast, number + len(batch))
        number += len(batch)


def in_batches(parts: Iterable[Members], n_rows: int) -> Iterator[Members]:
    """Yield the same members, n_rows at a time."""
    held: list[Members] = []
    n = 0

    def taken() -> Members:
        tokens, lengths, names, read = zip(*held, strict=True)
        return Members(
            np.concatenate(tokens), np.concatenate(lengths), [name for some in names for name in some], read[-1]
        )

    for part in parts:
        at = 0
        while n + len(part.lengths) - at >= n_rows:
            held.append(_rows_of(part, at, at + n_rows - n))
            yield taken()
            at += n_rows - n
            held, n = [], 0
        if at < len(part.lengths):
            held.append(_rows_of(part, at, len(part.lengths)))
            n += len(part.lengths) - at
    if held:
        yield taken()


def _rows_of(members: Members, begin: int, end: int) -> Members:
    first, last = members.lengths[:begin].sum(), members.lengths[:end].sum()
    return Members(members.tokens[first:last], members.lengths[begin:end], members.names[begin:end], members.read)


def _of_arrow(
    batch: Any, ids: str, name: str | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], list[str]] | None:
    """Return columns that are lists of token ids and names as they lie; None for others, which are read row by row."""
    arrow, _ = import_pyarrow()
    if not {ids, name or ids} <= set(batch.schema.names):
        return None
    column, kind = batch.column(ids), batch.column(ids).type
    if column.null_count or not (hasattr(kind, "value_type") and arrow.types.is_integer(kind.value_type)):
        return None
    if not (arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind)):
        return None
    values = column.flatten()
    if values.null_count:
        return None
    tokens = values.to_numpy()
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() <= np.iinfo(np.int32).max:
        return None
    names: list[str] = []
    if name is not None:
        called = batch.column(name)
        if called.null_count or not arrow.types.is_string(called.type):
            return None
        try:
            names = called.to_pylist()
        except UnicodeDecodeError:
            return None
        if "" in names:
            return None
    starts = arrow.compute.list_value_length(column).to_numpy()
    return tokens.astype(np.int32, copy=False), starts.astype(np.int64), names


def _of_rows(rows: Iterable[Row], ids: str, name: str | None) -> Members:
    # As they come, at what the ids take: objects of Python's would take ten times as much.
    tokens, lengths, names, read = array("i"), array("q"), [], 0
    for row in checked(rows, [ids] if name is None else [ids, name]):
        of = _tokens(row, ids)
        tokens.frombytes(of.tobytes())
        lengths.append(len(of))
        if name is not None:
            names.append(text_in(row, name))
        read = row.read
    return Members(np.asarray(tokens, np.int32), np.asarray(lengths, np.int64), names, read)


def text_in(row: Row, column: str) -> str:
    """Return a cell's text; ArgumentError where it has none."""
    value = row.values[column]
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise ArgumentError(f"{row.where}, {column}: {value!r} is not a text")
    return str(value)


def _tokens(row: Row, column: str) -> npt.NDArray[np.int32]:
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
