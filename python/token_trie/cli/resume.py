"""The file of results, written row by row so that an interrupted run can resume."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from token_trie.cli.tables import Format, ParquetTable, Table, TableRow, read_csv
from token_trie.engines.data import import_pyarrow, reader_of
from token_trie.errors import ArgumentError
from token_trie.sets.template import text_of, to_json

_BATCH_ROWS = 1024
"""Rows of a Parquet row group."""


def digest(*parts: Any) -> str:
    """Return a digest of eight letters of JSON values."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


class WholeLines(Iterator[bytes]):
    """The lines of a file, except a last one without a line break."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.n = 0
        self.end = 0
        """End of the last line, in bytes."""
        self.are_over = False

    def __next__(self) -> bytes:
        line = self.file.readline()
        if not line.endswith(b"\n"):
            self.are_over = True
            raise StopIteration
        self.n += 1
        self.end += len(line)
        return line


class ResultRows(ABC):
    """A format of rows."""

    has_columns = True
    """Whether all rows have the same columns."""

    @abstractmethod
    def head(self, columns: list[str]) -> bytes:
        """Return the head of the file."""

    @abstractmethod
    def encode(self, columns: list[str], row: TableRow, added: dict[str, Any]) -> bytes:
        """Return a row with the values of the table and those added."""

    @abstractmethod
    def read_head(self, lines: WholeLines) -> list[str] | None:
        """Read the columns from the head; None if it has none."""

    @abstractmethod
    def decode(self, lines: WholeLines, columns: list[str] | None) -> Iterator[dict[str, Any]]:
        """Iterate over the rows, except an unfinished last one; ArgumentError if another is broken."""

    @abstractmethod
    def is_same(self, written: dict[str, Any], values: dict[str, Any]) -> bool:
        """Whether a written row, without the columns added, has the values of a row of the table."""


class _CsvRows(ResultRows):
    def head(self, columns: list[str]) -> bytes:
        return _csv_line(columns)

    def encode(self, columns: list[str], row: TableRow, added: dict[str, Any]) -> bytes:
        whole = {**row.values, **added}
        return _csv_line([text_of(whole.get(column)) for column in columns])

    def read_head(self, lines: WholeLines) -> list[str] | None:
        try:
            return next(_csv_records(lines), None)
        except csv.Error:
            return None

    def decode(self, lines: WholeLines, columns: list[str] | None) -> Iterator[dict[str, Any]]:
        try:
            for record in _csv_records(lines):
                if len(record) != len(columns or ()):
                    raise csv.Error(f"{len(record)} fields for {len(columns or ())} columns")
                yield dict(zip(columns or (), record, strict=True))
        except csv.Error as error:
            if not lines.are_over:
                raise ArgumentError(f"line {lines.n}: {error}") from error

    def is_same(self, written: dict[str, Any], values: dict[str, Any]) -> bool:
        columns = written.keys() | values.keys()
        return all(written.get(column) == text_of(values.get(column)) for column in columns)


class _JsonRows(ResultRows):
    has_columns = False

    def head(self, columns: list[str]) -> bytes:
        return b""

    def encode(self, columns: list[str], row: TableRow, added: dict[str, Any]) -> bytes:
        return to_json({**row.values, **added}).encode() + b"\n"

    def read_head(self, lines: WholeLines) -> list[str] | None:
        return None

    def decode(self, lines: WholeLines, columns: list[str] | None) -> Iterator[dict[str, Any]]:
        for line in lines:
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ArgumentError(f"line {lines.n}: not JSON ({error})") from error
            if not isinstance(values, dict):
                raise ArgumentError(f"line {lines.n}: {type(values).__name__} instead of an object")
            yield values

    def is_same(self, written: dict[str, Any], values: dict[str, Any]) -> bool:
        return _canonical(written) == _canonical(values)


class _ArrowRows(ResultRows):
    """A stream of Arrow record batches, one a row, from which a Parquet table is made at the end.

    Columns of a Parquet table keep their types; those of other tables become texts.

    Parameters
    ----------
    of : pyarrow.Schema, optional
        The columns of a Parquet table; by default each is text.
    added : list of str
        The columns added: a text, figures, the row's number and the run.
    """

    def __init__(self, of: Any, added: list[str]) -> None:
        arrow, _ = import_pyarrow()
        kinds = [arrow.string(), *[arrow.float64()] * (len(added) - 3), arrow.int64(), arrow.string()]
        self._of = of
        self._added = list(map(arrow.field, added, kinds))
        self._written = io.BytesIO()
        self._stream: Any = None

    def _schema(self, columns: list[str]) -> Any:
        arrow, _ = import_pyarrow()
        own = columns[: -len(self._added)]
        schema = arrow.schema([(column, arrow.string()) for column in own]) if self._of is None else self._of
        for field in self._added:
            schema = schema.append(field)
        return schema

    def head(self, columns: list[str]) -> bytes:
        return bytes(self._schema(columns).serialize())

    def encode(self, columns: list[str], row: TableRow, added: dict[str, Any]) -> bytes:
        arrow, _ = import_pyarrow()
        schema, head = self._schema(columns), b""
        if self._stream is None:
            self._stream, head = arrow.ipc.new_stream(self._written, schema), self.head(columns)
        if self._of is None:
            own = [arrow.array([value], arrow.string()) for value in _texts(columns[: -len(self._added)], row.values)]
        else:
            own = row.batch.columns
        more = [arrow.array([added[field.name]], field.type) for field in self._added]
        self._stream.write_batch(arrow.RecordBatch.from_arrays([*own, *more], schema=schema))
        data = self._written.getvalue().removeprefix(head)
        self._written.seek(0)
        self._written.truncate()
        return data

    def read_head(self, lines: WholeLines) -> list[str] | None:
        arrow, _ = import_pyarrow()
        try:
            self._batches = arrow.ipc.open_stream(lines.file)
        except (arrow.ArrowException, OSError):
            return None
        return list(self._batches.schema.names)

    def decode(self, lines: WholeLines, columns: list[str] | None) -> Iterator[dict[str, Any]]:
        arrow, _ = import_pyarrow()
        readers = {field.name: reader_of(field.type) for field in self._batches.schema} if columns else {}
        try:
            for batch in self._batches if columns else ():
                lines.n += 1
                lines.end = lines.file.tell()
                yield {name: reader(batch.column(name)[0]) for name, reader in readers.items()}
        except (arrow.ArrowException, OSError) as error:
            if lines.file.read(1):
                raise ArgumentError(f"after row {lines.n}: {error}") from error

    def is_same(self, written: dict[str, Any], values: dict[str, Any]) -> bool:
        columns = [*written.keys() | values.keys()]
        return _texts(columns, written) == _texts(columns, values)


def _texts(columns: list[str], values: dict[str, Any]) -> list[str | None]:
    return [None if values.get(column) is None else text_of(values[column]) for column in columns]


def _write_parquet(rows: Path, path: Path) -> None:
    """Write a stream of rows as a Parquet table; ArgumentError for a type that cannot be: `path` is unchanged."""
    arrow, parquet = import_pyarrow()
    partial = path.with_name(f"{path.name}.partial")
    try:
        with rows.open("rb") as file:
            batches = arrow.ipc.open_stream(file)
            with parquet.ParquetWriter(partial, batches.schema) as writer:
                while some := list(islice(batches, _BATCH_ROWS)):
                    writer.write_table(arrow.Table.from_batches(some))
        partial.replace(path)
    except arrow.ArrowException as error:
        raise ArgumentError(f"{path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def result_rows(kind: Format, schema: Any, added: list[str]) -> ResultRows:
    """Return a format of rows; a Parquet table has the columns of a schema, or else texts, and those added."""
    if kind == "parquet":
        return _ArrowRows(schema, added)
    return _CsvRows() if kind == "csv" else _JsonRows()


def _canonical(values: dict[str, Any]) -> str:
    return to_json(values, sort_keys=True)


def _csv_line(fields: list[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(fields)  # the writer quotes fields with either character
    return line.getvalue().removesuffix("\r\n").encode() + b"\n"


def _csv_records(lines: Iterator[bytes]) -> Iterator[list[str]]:
    return read_csv(line.decode("utf-8", "replace") for line in lines)


def lock(file: io.FileIO) -> bool:
    """Lock a file until it is closed, if locks are supported; return False if another process holds the lock."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows, or a file system without locks
        pass
    return True


def write_all(file: io.FileIO, data: bytes) -> None:
    """Write bytes; OSError if the disk is full, after a part of them."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]


class ResultTable:
    """The file of results; each row is written as soon as it is known.

    Parameters
    ----------
    path : Path
        The file; ``-`` is standard output.
    table : Table
        The table that is read.
    added : list of str
        The columns added to those of the table; the first is the answer.
    prefix : str
        Prefix of their names.
    run : str
        Digests of the choices and of the options, joined by a hyphen.
    """

    def __init__(self, path: Path, kind: Format, table: Table, added: list[str], prefix: str, run: str) -> None:
        self.added = [prefix + column for column in (*added, "row", "run")]
        self._answer, self._row, self._run_column = (prefix + column for column in (added[0], "row", "run"))
        self._run = run
        self._table = table
        self._path = path
        self._is_standard_output = str(path) == "-"
        self._rows = result_rows(kind, table.schema if isinstance(table, ParquetTable) else None, self.added)
        self._is_parquet = kind == "parquet"
        if self._is_parquet and self._is_standard_output:
            raise ArgumentError("--output: a Parquet table is written to a file; name one")
        self.columns: list[str] | None = None
        """The table's columns; None before the first row if each row has its own."""
        if table.columns is not None:
            self._require_no_clash(table.columns, table.name)
            self.columns = table.columns
        self._working = path.with_name(f"{path.name}.rows") if self._is_parquet else path
        self.name = "standard output" if self._is_standard_output else str(self._working)
        self._file: io.FileIO | None = None
        self._cut: int | None = None  # where to cut the file before the next row is written
        self._has_head = False
        self._last = 0  # number of the last row written
        self._old: Iterator[dict[str, Any]] = iter(())  # rows of an earlier run, to compare with the table
        self._oldest: dict[str, Any] | None = None  # the next of these
        self.n_written = 0

    @property
    def can_resume(self) -> bool:
        """Whether a later run can resume this one."""
        return not self._is_standard_output and self._working.is_file()

    def begin(self) -> None:
        """Create the file; ArgumentError if it exists and is not a device or pipe."""
        if self._is_standard_output:
            self._file = io.FileIO(1, "wb", closefd=False)
            return
        for path in (self._path, self._working):
            if path.is_file():
                raise ArgumentError(f"--output: {str(path)!r} exists; continue it with --resume, or remove it")
        self._open("wb" if self._working.exists() else "xb")

    def resume(self, choices: list[str], count: Callable[[str], None]) -> None:
        """Resume with the file, or create it; ArgumentError if it belongs to another run, or is being written."""
        if self._is_standard_output:
            raise ArgumentError("--resume: needs a file in --output")
        if self._working.exists() and not self._working.is_file() and self._working.stat().st_size:
            raise ArgumentError(f"--resume: {self.name!r} is not a file that a run can continue")
        self._open("wb" if self._working.exists() and not self._working.is_file() else "a+b")
        if not self._working.stat().st_size:
            if self._is_parquet and self._path.is_file():
                self._working.unlink()
                raise ArgumentError(f"--resume: {str(self._path)!r} is complete; remove it to start again")
            return
        with self._working.open("rb") as file:
            lines = WholeLines(file)
            columns = self._rows.read_head(lines)
            if columns is not None:
                self._require_columns(columns)
            end = lines.end
            try:
                for row in self._rows.decode(lines, columns):
                    self._last = self._number_of(row, self._last, choices)
                    count(row[self._answer])
                    self.n_written += 1
                    end = lines.end
            except ArgumentError as error:
                raise ArgumentError(f"--resume: {self.name!r}: {error}") from error
        if end == 0:
            raise ArgumentError(f"--resume: {self.name!r} has no row of such a run; remove it to start again")
        self._has_head = True
        self._cut = end
        self._old = self._read()
        self._oldest = next(self._old, None)

    def has(self, row: TableRow) -> bool:
        """Whether a row was written; call it in order. ArgumentError if another row was written under its number."""
        if self._oldest is not None and int(self._oldest[self._row]) == row.number:
            own = {column: value for column, value in self._oldest.items() if column not in self.added}
            if row.bad or not self._rows.is_same(own, row.values):
                raise ArgumentError(
                    f"{row.where} differs from row {row.number} of {self.name!r}; the table has changed"
                )
            self._oldest = next(self._old, None)
        return row.number <= self._last

    def require_all(self, n: int) -> None:
        """Raise ArgumentError if more than the table's n rows were written."""
        if n < self._last:
            raise ArgumentError(f"{self._table.name} has {n:,} rows, and row {self._last:,} was labelled before")

    def check(self, row: TableRow) -> None:
        """Raise ArgumentError for columns of a row that clash with those added."""
        if self._table.columns is not None:
            return
        self._require_no_clash(list(row.values), "")
        if self._rows.has_columns:
            if self.columns is None:
                self.columns = list(row.values)
            new = [column for column in row.values if column not in self.columns]
            if new:
                raise ArgumentError(f"column {new[0]!r}, which the first row does not have")

    def write(self, row: TableRow, added: list[Any]) -> None:
        """Write a row; OSError if the disk is full: the rows before it stay whole."""
        values = dict(zip(self.added, [*added, row.number, self._run], strict=True))
        self._put(self._head() + self._rows.encode(self._all_columns(), row, values))
        self.n_written += 1
        self._last = row.number

    def finish(self) -> None:
        """Complete the file after the last row."""
        self._put(self._head())
        if self._is_parquet:
            if not self._is_in_place():
                raise ArgumentError(f"{self.name!r} was removed or replaced")
            _write_parquet(self._working, self._path)
            self._working.unlink()

    def close(self) -> None:
        """Close the file, so that another run may resume."""
        self._old = iter(())
        if self._file is not None:
            self._file.close()

    def _open(self, mode: str) -> None:
        """Open the file for this run alone, until it is closed."""
        self._file = io.FileIO(self._working, mode)
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            return
        if not lock(self._file) or not self._is_in_place():
            raise ArgumentError(f"--output: another run writes {self.name!r}")

    def _is_in_place(self) -> bool:
        """Whether the file was neither moved nor replaced."""
        assert self._file is not None
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file.fileno()), self._working.stat())
        return False

    def _read(self) -> Iterator[dict[str, Any]]:
        """Read the rows of the file."""
        with self._working.open("rb") as file:
            lines = WholeLines(file)
            yield from self._rows.decode(lines, self._rows.read_head(lines))

    def _all_columns(self) -> list[str]:
        return [*(self.columns or ()), *self.added]

    def _head(self) -> bytes:
        head = b"" if self._has_head else self._rows.head(self._all_columns())
        self._has_head = True
        return head

    def _put(self, line: bytes) -> None:
        assert self._file is not None
        try:
            if self._cut is not None:
                self._file.truncate(self._cut)
                self._cut = None
            write_all(self._file, line)
        except OSError as error:
            raise OSError(error.errno or errno.EIO, error.strerror, self.name) from error

    def _require_no_clash(self, columns: list[str], name: str) -> None:
        clash = [column for column in columns if column in self.added]
        if clash:
            where = f"{name}: " if name else ""
            raise ArgumentError(
                f"{where}column {clash[0]!r} has the name of an added column; rename the added columns with --prefix"
            )

    def _require_columns(self, columns: list[str]) -> None:
        read = [column for column in columns if column not in self.added]
        if not set(self.added) <= set(columns) or (self.columns is not None and read != self.columns):
            ours = ", ".join(self._all_columns())
            raise ArgumentError(f"--resume: {self.name!r} has the columns {', '.join(columns)}; this run writes {ours}")
        self.columns = read

    def _number_of(self, values: dict[str, Any], before: int, choices: list[str]) -> int:
        if not self._rows.has_columns and not set(self.added) <= set(values):
            raise ArgumentError(f"has the columns {', '.join(values)}; this run adds {', '.join(self.added)}")
        choices_digest, options_digest = self._run.split("-")
        written_choices, _, written_options = str(values[self._run_column]).partition("-")
        if written_choices != choices_digest or values[self._answer] not in choices:
            raise ArgumentError("was written with other choices")
        if written_options != options_digest:
            raise ArgumentError("was written with another prompt, model or option")
        number = str(values[self._row])
        if not number.isdecimal() or int(number) <= before:
            raise ArgumentError(f"row {number} after row {before}: the file was changed")
        return int(number)
