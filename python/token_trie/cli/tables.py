"""Reads tables row by row (CSV, JSON lines, Parquet), and the members of a set from their columns."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import math
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from token_trie.engines.data import import_pyarrow, reader_of
from token_trie.errors import ArgumentError

Format: TypeAlias = Literal["csv", "jsonl", "parquet"]

STANDARD_INPUT = "standard input"
_MAX_DEPTH = 200  # levels of nested JSON, far below the limit of Python's parser
_ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_CONVERT = "convert it: iconv -f {} -t UTF-8 < OLD > NEW (in a spreadsheet, save it as 'CSV UTF-8')"


def format_of(path: Path, given: Format | None, option: str) -> Format:
    """Return the format that an option or the file's name gives."""
    found = given or _ENDINGS.get(path.suffix.lower())
    if found is None:
        is_spreadsheet = path.suffix.lower() in {".xls", ".xlsx", ".ods"}
        advice = "save the spreadsheet as 'CSV UTF-8'" if is_spreadsheet else f"set it with {option}"
        raise ArgumentError(f"{path}: the format is not clear from the name ({', '.join(_ENDINGS)}); {advice}")
    return found


@dataclass(frozen=True)
class TableRow:
    """A row of a table; a bad one has a message and no values."""

    number: int
    """Number from 1; bad rows count."""
    where: str
    """Name of the row in messages."""
    values: dict[str, Any]
    bad: str | None = None
    batch: Any = None
    """The row of a Parquet table as an Arrow record batch."""


class Table(ABC):
    """A table that is read once, row by row."""

    columns: list[str] | None = None
    """None: each row has its own."""
    size: int | None = None
    """Bytes or rows; None: unknown."""
    read: int = 0
    """Amount read so far, in the unit of the size."""
    separator: str = ","
    """The character between cells of CSV."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = STANDARD_INPUT if str(path) == "-" else str(path)
        self._rows = self._read()

    def rows(self) -> Iterator[TableRow]:
        """Read the rows."""
        return self._rows

    def ahead(self, n: int | None) -> list[TableRow]:
        """Return the first rows, at most n, or all, which `rows` reads again; so is an error among them."""
        seen: list[TableRow] = []
        rest = self._rows
        try:
            seen.extend(itertools.islice(rest, n))
        except ArgumentError as error:
            rest = _raised(error)
        self._rows = itertools.chain(seen, rest)
        return seen

    @abstractmethod
    def _read(self) -> Iterator[TableRow]: ...

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


def _raised(error: ArgumentError) -> Iterator[TableRow]:
    raise error
    yield


def open_table(path: Path, kind: Format, *, is_cut: bool = False) -> Table:
    """Open a table, ``-`` for standard input; ArgumentError or OSError if it is missing or of another format.

    Of a table that is cut, the rows before the cut are read; a Parquet table is then a stream of Arrow record batches.
    """
    if kind == "parquet":
        return _ArrowStream(path) if is_cut else ParquetTable(path)
    return (_Csv if kind == "csv" else _JsonLines)(path, is_cut)


class _Lines(Table):
    def __init__(self, path: Path, is_cut: bool) -> None:
        super().__init__(path)
        self._is_cut = is_cut
        self._is_over = False
        if str(path) == "-":
            if sys.stdin is None:
                raise ArgumentError("-: standard input is closed")
            self._file: BinaryIO = sys.stdin.buffer
        else:
            self._file = path.open("rb")
            self.size = os.fstat(self._file.fileno()).st_size or None
        self._n_lines = 0

    def close(self) -> None:
        if self.path != Path("-"):
            self._file.close()

    def _lines(self) -> Iterator[bytes]:
        for line in self._file:
            if self._is_cut and not line.endswith(b"\n"):
                break
            self._n_lines += 1
            self.read += len(line)
            if self._n_lines == 1 and not self._is_cut:
                check_is_utf8(line, self.name)
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.endswith(b"\n"):
                self._require_all()
            yield line
        self._is_over = True
        self._require_all()

    def _require_all(self) -> None:
        if not self._is_cut:
            require_all(self.name, self.read, self.size or 0)

    def _row(self, number: int, line: int, values: dict[str, Any], bad: str | None = None) -> TableRow:
        return TableRow(number, f"{self.name}, line {line}", values, bad)


class _Csv(_Lines):
    def __init__(self, path: Path, is_cut: bool) -> None:
        super().__init__(path, is_cut)
        # Keep bytes that are not UTF-8, to report the row instead of the file.
        lines = (line.decode("utf-8", "surrogateescape") for line in self._lines())
        csv.field_size_limit(2**31 - 1)  # the largest value that every platform accepts
        try:
            head = next(lines, "")
            self.separator = "\t" if path.suffix.lower() == ".tsv" else self._separator(head)
            self._records = csv.reader(itertools.chain([head], lines), delimiter=self.separator, strict=True)
            self.columns = self._read_head()
        except ArgumentError:
            self.close()
            raise

    def _separator(self, head: str) -> str:
        """Return what the first line has most of; spreadsheets write semicolons in Europe."""
        count = re.sub(r'"[^"]*"?', "", head).count
        first, second, _ = sorted(",;\t", key=count, reverse=True)
        if 0 < count(first) == count(second):
            raise ArgumentError(
                f"{self.name}: line 1: as many {first!r} as {second!r} outside of quotes, so it is not clear which one "
                "separates cells; put quotes around names that have one"
            )
        return first

    def _read_head(self) -> list[str]:
        try:
            columns = next(self._records, [])
            try:
                _check_utf8("".join(columns))
            except ArgumentError as error:
                raise ArgumentError(f"{self.name}: line 1: {error}") from error
        except csv.Error as error:
            raise ArgumentError(
                f"{self.name}: line 1: {_reason(error)}; if all lines end so, convert them: tr '\\r' '\\n' < OLD > NEW"
            ) from error
        if not columns:
            raise ArgumentError(f"{self.name}: empty; a CSV table begins with a line of column names")
        _check_columns(columns, self.name)
        return columns

    def _read(self) -> Iterator[TableRow]:
        """Read the rows; ArgumentError if quotes and line breaks are ambiguous."""
        assert self.columns is not None
        number = 0
        while True:
            line = self._n_lines + 1
            values: dict[str, Any] = {}
            bad = None
            try:
                record = next(self._records)
            except StopIteration:
                return
            except csv.Error as error:
                if self._is_cut and self._is_over:
                    return
                lines = f"line {line}" if line == self._n_lines else f"lines {line} to {self._n_lines}"
                raise ArgumentError(
                    f"{self.name}, {lines}: {_reason(error)}; the rest is not read, because any line may be part of a "
                    "cell"
                ) from error
            if not record:
                continue  # an empty line
            try:
                if len(record) == len(self.columns):
                    _check_utf8("".join(record))
                    values = dict(zip(self.columns, record, strict=True))
                else:
                    bad = f"{len(record)} fields for {len(self.columns)} columns"
            except ArgumentError as error:
                bad = str(error)
            number += 1
            yield self._row(number, line, values, bad)


class _JsonLines(_Lines):
    def _read(self) -> Iterator[TableRow]:
        number = 0
        for line in self._lines():
            if not line.strip():
                continue
            number += 1
            values: Any = {}
            bad = None
            try:
                values = json.loads(
                    line.decode(), parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_distinct
                )
                if not isinstance(values, dict):
                    values, bad = {}, f"{type(values).__name__} instead of an object"
                elif line.count(b"[") + line.count(b"{") > _MAX_DEPTH and _is_deep(values):
                    bad = f"nested deeper than {_MAX_DEPTH}"
                elif b"\\u" in line:
                    _check_utf8(json.dumps(values, ensure_ascii=False))
            except UnicodeDecodeError as error:
                bad = f"not UTF-8 ({error})"
            except ArgumentError as error:
                bad = str(error)
            except (ValueError, RecursionError) as error:
                bad = f"not JSON ({error})"
            yield self._row(number, self._n_lines, values if bad is None else {}, bad)


class ParquetTable(Table):
    """A Parquet table."""

    schema: Any

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if str(path) == "-":
            raise ArgumentError("-: a Parquet table cannot be read from standard input; use a file")
        arrow, parquet = import_pyarrow()
        if not path.is_file():
            raise ArgumentError(f"{path}: no such file")
        try:
            self._file = parquet.ParquetFile(path)
        except arrow.ArrowException as error:
            raise ArgumentError(f"{path}: {error}") from error
        self.schema = self._file.schema_arrow
        self.columns = list(self.schema.names)
        _check_columns(self.columns, self.name)
        self.size = self._file.metadata.num_rows

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self) -> Iterator[TableRow]:
        number = 0
        for batch in self.batches(256):
            yield from self.rows_of(batch, number)
            number += batch.num_rows

    def rows_of(self, batch: Any, number: int) -> Iterator[TableRow]:
        """Read the rows of a batch after `number` rows; a cell without a Python value makes a row bad."""
        readers = [reader_of(field.type) for field in self.schema]
        for i, cells in enumerate(zip(*batch.columns, strict=True)):
            number += 1
            values, bad = {}, None
            try:
                read = (reader(cell) for reader, cell in zip(readers, cells, strict=True))
                values = dict(zip(self.columns or (), read, strict=True))
            except UnicodeDecodeError as error:
                bad = f"not UTF-8 ({error})"
            except (ArgumentError, ArithmeticError, LookupError, NotImplementedError, ValueError) as error:
                bad = str(error)
            yield TableRow(number, f"{self.name}, row {number}", values, bad, batch.slice(i, 1))

    def batches(self, n: int) -> Iterator[Any]:
        """Read record batches of at most n rows."""
        arrow, _ = import_pyarrow()
        try:
            for batch in self._file.iter_batches(n):
                self.read += batch.num_rows
                yield batch
        except (arrow.ArrowException, OSError) as error:
            raise ArgumentError(f"{self.name}: after row {self.read}: {error}") from error


class _ArrowStream(ParquetTable):
    """A stream of record batches of one row each, which may be cut inside of one."""

    def __init__(self, path: Path) -> None:
        Table.__init__(self, path)
        arrow, _ = import_pyarrow()
        self._file = path.open("rb")
        try:
            self._stream = arrow.ipc.open_stream(self._file)
        except (arrow.ArrowException, OSError) as error:
            self.close()
            raise ArgumentError(f"{self.name}: {error}") from error
        self.schema = self._stream.schema
        self.columns = list(self.schema.names)
        self.read = self._file.tell()

    def batches(self, n: int) -> Iterator[Any]:
        arrow, _ = import_pyarrow()
        try:
            for batch in self._stream:
                self.read = self._file.tell()
                yield batch
        except (arrow.ArrowException, OSError) as error:
            if self._file.read(1):
                raise ArgumentError(f"{self.name}: at byte {self.read:,}: {error}") from error


def _reason(error: csv.Error) -> str:
    is_of_lines = "new-line character" in str(error)  # its message has a hint for programmers
    if is_of_lines:
        return "a carriage return without a line break, outside of quotes"
    return str(error).replace("end of data", "end of data inside of quotes")


def check_is_utf8(begin: bytes, name: str) -> None:
    """Raise ArgumentError if a text begins as UTF-16 or UTF-32; other bytes are checked later."""
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)) or b"\0" in begin[:4]:
        raise ArgumentError(f"{name}: not UTF-8 but UTF-16 or UTF-32; {_CONVERT.format('UTF-16')}")


def require_all(name: str, read: int, size: int) -> None:
    """Raise ArgumentError if a file ended before the size that it had when it was opened."""
    if read < size:
        raise ArgumentError(f"{name}: ends after {read:,} bytes, and had {size:,} at first; it was changed meanwhile")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [v for outer in level for v in (outer.values() if isinstance(outer, dict) else outer)]
        level = [v for v in level if isinstance(v, (dict, list))]
    return bool(level)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a 64-bit number")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name in found if [other for other, _ in pairs].count(name) > 1)
        raise ArgumentError(f"an object with two fields of one name: {twice!r}")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        is_byte = "\udc80" <= text[error.start] <= "\udcff"  # as surrogateescape decodes one
        raise ArgumentError(
            f"not UTF-8{'; ' + _CONVERT.format('CP1252') if is_byte else ' (a lone surrogate)'}"
        ) from error


def _check_columns(columns: list[str], name: str) -> None:
    """Raise ArgumentError if two columns have one name."""
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise ArgumentError(f"{name}: two columns have the same name: {', '.join(map(repr, twice))}")


def checked(rows: Iterable[TableRow], columns: list[str]) -> Iterator[TableRow]:
    """Yield rows; ArgumentError for a bad row, or one without these columns."""
    for row in rows:
        if row.bad is not None:
            raise ArgumentError(f"{row.where}: {row.bad}")
        for column in columns:
            if column not in row.values:
                raise ArgumentError(f"{row.where}: no column {column!r}; the columns are {', '.join(row.values)}")
        yield row


def text_in(row: TableRow, column: str) -> str:
    """Return a cell's text; ArgumentError if it has none."""
    value = row.values[column]
    if value is None or value == "":
        raise ArgumentError(f"{row.where}, {column}: empty; fill the cell, or leave the row out of the table")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ArgumentError(f"{row.where}, {column}: {value!r} is not a text")
    return str(value)
