"""A table with columns added, as Parquet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from token_trie.cli.tables import ParquetTable, Table, reopen
from token_trie.engines.arrow import import_pyarrow
from token_trie.errors import ArgumentError
from token_trie.sets.template import text_of

_ROWS = 1024  # rows of a batch


def join(table: Table, columns: list[str], added: list[str], rows: Iterator[dict[str, Any]], path: Path) -> None:
    """Write those rows of a table that have values to add, all at once.

    Parameters
    ----------
    table : Table
        The table, which is read again. Columns of a Parquet table keep their types; those of other tables are texts.
    columns : list of str
        The table's columns.
    added : list of str
        The columns added; the last but one has the number of the row in the table.
    rows : iterator of dict
        The values to add, by ascending number.

    Raises
    ------
    ArgumentError
        The table does not have these rows, or has a type that cannot be written; `path` is then unchanged.
    """
    arrow, parquet = import_pyarrow()
    kinds = [arrow.string(), *[arrow.float64()] * (len(added) - 3), arrow.int64(), arrow.string()]
    fields = list(map(arrow.field, added, kinds))
    partial = path.with_name(f"{path.name}.partial")
    try:
        with closing(reopen(table)) as again:
            if isinstance(again, ParquetTable):
                schema, batches = again.schema, again.batches(_ROWS)
            else:
                schema = arrow.schema([(column, arrow.string()) for column in columns])
                batches = _batches(again, schema)
            for field in fields:
                schema = schema.append(field)
            with parquet.ParquetWriter(partial, schema) as writer:
                for batch, positions, values in _side_by_side(batches, rows, added[-2], table.name):
                    own = arrow.Table.from_batches([batch]).take(arrow.array(positions, arrow.int64()))
                    more = [arrow.array([row[field.name] for row in values], field.type) for field in fields]
                    writer.write_table(arrow.Table.from_arrays([*own.columns, *more], schema=schema))
        partial.replace(path)
    except arrow.ArrowException as error:
        raise ArgumentError(f"{path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _side_by_side(
    batches: Iterator[Any], rows: Iterator[dict[str, Any]], number: str, name: str
) -> Iterator[tuple[Any, list[int], list[dict[str, Any]]]]:
    """Iterate over batches, each with the positions of the rows that have values to add, and these."""
    n = 0
    waiting = next(rows, None)
    for batch in batches:
        values = []
        while waiting is not None and waiting[number] <= n + batch.num_rows:
            values.append(waiting)
            waiting = next(rows, None)
        yield batch, [row[number] - n - 1 for row in values], values
        n += batch.num_rows
    if waiting is not None:
        raise ArgumentError(f"{name}: row {waiting[number]} is gone; the table has changed")


def _batches(table: Table, schema: Any) -> Iterator[Any]:
    """Read rows of texts as ``pyarrow.RecordBatch``."""
    arrow, _ = import_pyarrow()
    rows = table.rows()
    while chunk := list(itertools.islice(rows, _ROWS)):
        own = [{name: _text(value) for name, value in row.values.items()} for row in chunk]
        yield arrow.RecordBatch.from_pylist(own, schema=schema)


def _text(value: Any) -> str | None:
    return None if value is None else text_of(value)
