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
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, BinaryIO

from token_trie.cli.tables import STANDARD_INPUT, Format, Table, TableRow, read_csv, reopen
from token_trie.engines.data import import_pyarrow
from token_trie.errors import ArgumentError
from token_trie.sets.template import text_of, to_json


def digest(*parts: Any) -> str:
    """Return a digest of eight letters of JSON values."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


class WholeLines(Iterator[bytes]):
    """The lines of a file, except a last one without a line break."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.n = 0
        self.end = 0
        """End of the last line, in bytes."""
        self.are_over = False

    def __next__(self) -> bytes:
        line = self._file.readline()
        if not line.endswith(b"\n"):
            self.are_over = True
            raise StopIteration
        self.n += 1
        self.end += len(line)
        return line


class ResultRows(ABC):
    """A format of rows, each ended by a line break."""

    has_columns = True
    """Whether all rows have the same columns."""

    @abstractmethod
    def head(self, columns: list[str]) -> bytes:
        """Return the head of the file."""

    @abstractmethod
    def encode(self, columns: list[str], values: dict[str, Any], added: dict[str, Any]) -> bytes:
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


class CsvRows(ResultRows):
    """CSV with a line of names."""

    def head(self, columns: list[str]) -> bytes:
        """Return the line of names."""
        return _csv_line(columns)

    def encode(self, columns: list[str], values: dict[str, Any], added: dict[str, Any]) -> bytes:
        """Return the fields."""
        whole = {**values, **added}
        return _csv_line([text_of(whole.get(column)) for column in columns])

    def read_head(self, lines: WholeLines) -> list[str] | None:
        """Read the names; None if they are missing."""
        try:
            return next(_csv_records(lines), None)
        except csv.Error:
            return None

    def decode(self, lines: WholeLines, columns: list[str] | None) -> Iterator[dict[str, Any]]:
        """Iterate over the records."""
        try:
            for record in _csv_records(lines):
                if len(record) != len(columns or ()):
                    raise csv.Error(f"{len(record)} fields for {len(columns or ())} columns")
                yield dict(zip(columns or (), record, strict=True))
        except csv.Error as error:
            if not lines.are_over:
                raise ArgumentError(f"line {lines.n}: {error}") from error

    def is_same(self, written: dict[str, Any], values: dict[str, Any]) -> bool:
        """Whether the texts are equal; a missing column is empty."""
        columns = written.keys() | values.keys()
        return all(written.get(column) == text_of(values.get(column)) for column in columns)


class JsonRows(ResultRows):
    """JSON lines: one object per line."""

    has_columns = False

    def head(self, columns: list[str]) -> bytes:
        """Return an empty head."""
        return b""

    def encode(self, columns: list[str], values: dict[str, Any], added: dict[str, Any]) -> bytes:
        """Return the object."""
        return to_json({**values, **added}).encode() + b"\n"

    def read_head(self, lines: WholeLines) -> list[str] | None:
        """Read nothing."""
        return None

    def decode(self, lines: WholeLines, columns: list[str] | None) -> Iterator[dict[str, Any]]:
        """Iterate over the objects."""
        for line in lines:
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ArgumentError(f"line {lines.n}: not JSON ({error})") from error
            if not isinstance(values, dict):
                raise ArgumentError(f"line {lines.n}: {type(values).__name__} instead of an object")
            yield values

    def is_same(self, written: dict[str, Any], values: dict[str, Any]) -> bool:
        """Whether the JSON is equal."""
        return _canonical(written) == _canonical(values)


class AddedRows(JsonRows):
    """JSON lines of only the added columns, with a digest of the table's row."""

    _OF = "of"  # no added column has this name

    def encode(self, columns: list[str], values: dict[str, Any], added: dict[str, Any]) -> bytes:
        """Return the object."""
        return super().encode(columns, {}, {**added, self._OF: digest(_canonical(values))})

    def is_same(self, written: dict[str, Any], values: dict[str, Any]) -> bool:
        """Whether the digest is equal."""
        return written == {self._OF: digest(_canonical(values))}


def _canonical(values: dict[str, Any]) -> str:
    return to_json(values, sort_keys=True)


def _csv_line(fields: list[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(fields)  # the writer quotes fields with either character
    return line.getvalue().removesuffix("\r\n").encode() + b"\n"


def _csv_records(lines: Iterator[bytes]) -> Iterator[list[str]]:
    return read_csv(line.decode("utf-8", "replace") for line in lines)


_FORMATS: dict[Format, Callable[[], ResultRows]] = {
    Format.csv: CsvRows,
    Format.jsonl: JsonRows,
    Format.parquet: AddedRows,
}


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
        self._is_parquet = kind is Format.parquet
        self._rows = _FORMATS[kind]()
        self._has_fixed_columns = self._is_parquet or self._rows.has_columns
        self.columns: list[str] | None = None
        """The table's columns; None before the first row if each row has its own."""
        if table.columns is not None:
            self._require_no_clash(table.columns, table.name)
            self.columns = table.columns
        if self._is_parquet:
            import_pyarrow()
            if self._is_standard_output or table.name == STANDARD_INPUT:
                raise ArgumentError(
                    "--output: a Parquet table is written from a file to a file; the input is read again at the end"
                )
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
        self._begin_to_compare()

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
        if self._has_fixed_columns:
            if self.columns is None:
                self.columns = list(row.values)
            new = [column for column in row.values if column not in self.columns]
            if new:
                raise ArgumentError(f"column {new[0]!r}, which the first row does not have")

    def write(self, row: TableRow, added: list[Any]) -> None:
        """Write a row; OSError if the disk is full: the rows before it stay whole."""
        values = dict(zip(self.added, [*added, row.number, self._run], strict=True))
        self._put(self._head() + self._rows.encode(self._all_columns(), row.values, values))
        self.n_written += 1
        self._last = row.number

    def finish(self) -> None:
        """Complete the file after the last row; ArgumentError if the table has changed meanwhile."""
        self._put(self._head())
        if self._is_parquet:
            from token_trie.cli.tables import join

            self._compare()
            with closing(self._read()) as rows:
                join(self._table, self.columns or [], self.added, rows, self._path)
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

    def _begin_to_compare(self) -> None:
        self._old = self._read()
        self._oldest = next(self._old, None)

    def _compare(self) -> None:
        """Raise ArgumentError if the table or the file has changed."""
        if not self._is_in_place():
            raise ArgumentError(f"{self.name!r} was removed or replaced")
        self._begin_to_compare()
        number = 0
        with closing(reopen(self._table)) as again:
            for row in again.rows():
                number = row.number
                self.has(row)
        self.require_all(number)

    def _read(self) -> Generator[dict[str, Any], None, None]:
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
