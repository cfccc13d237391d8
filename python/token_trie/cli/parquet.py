"""A table with columns added, as Parquet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from token_trie.cli.tables import Row, Table, import_pyarrow, reopen, text_of
from token_trie.errors import ArgumentError

_ROWS = 1024  # of a batch


def join(table: Table, columns: list[str], added: list[str], rows: Iterator[dict[str, Any]], path: Path) -> None:
    """Write the rows of a table that have something added, in one go.

    Parameters
    ----------
    table : Table
        Read again. The columns of a Parquet table keep their types, others are texts.
    columns : list of str
        Its columns.
    added : list of str
        Those added, of which the last but one has the place of the row in the table.
    rows : iterator of dict
        What is added, by ascending place.
    """
    arrow, parquet = import_pyarrow()
    schema = getattr(table, "schema", None)
    read = arrow.schema([(column, arrow.string()) for column in columns]) if schema is None else schema
    kinds = [arrow.string(), *[arrow.float64()] * (len(added) - 3), arrow.int64(), arrow.string()]
    whole = arrow.schema([*read, *map(arrow.field, added, kinds)])

    def joined(of_table: Iterator[Row]) -> Iterator[dict[str, Any]]:
        for values in rows:
            row = next((row for row in of_table if row.place == values[added[-2]]), None)
            if row is None:
                raise ArgumentError(f"{table.name}: row {values[added[-2]]} is gone; the table has changed")
            own = row.values if schema is not None else {name: _text(value) for name, value in row.values.items()}
            yield {**own, **values}

    partial = path.with_name(f"{path.name}.partial")
    with closing(reopen(table)) as again, parquet.ParquetWriter(partial, whole) as writer:
        whole_rows = joined(again.rows())
        while batch := list(itertools.islice(whole_rows, _ROWS)):
            writer.write_table(arrow.Table.from_pylist(batch, schema=whole))
    partial.replace(path)


def _text(value: Any) -> str | None:
    return None if value is None else text_of(value)
