"""Reads tables row by row, in CSV and JSON lines."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from token_trie.errors import ArgumentError
from token_trie.sets.prompt import Template

Format: TypeAlias = Literal["csv", "jsonl"]

_ENDINGS: dict[str, Format] = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_CONVERT = "convert it: iconv -f {} -t UTF-8 < OLD > NEW (in a spreadsheet, save it as 'CSV UTF-8')"


def format_of(path: Path, given: Format | None = None) -> Format:
    """Return the format that an option or the file's name gives."""
    found = given or _ENDINGS.get(path.suffix.lower())
    if found is None:
        is_spreadsheet = path.suffix.lower() in {".xls", ".xlsx", ".ods"}
        advice = "save the spreadsheet as 'CSV UTF-8'" if is_spreadsheet else "tables are CSV or JSON lines"
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


class Table(ABC):
    """A table that is read once, row by row; ``-`` is standard input.

    With `is_cut`, a half-written row at the end is left out, without an error.
    """

    separator = ","
    """The character between cells of CSV."""
    columns: list[str]
    """In JSON lines, where each row has its own, the columns of the first good row."""
    are_fixed = True
    """Whether all rows have these columns."""

    def __init__(self, path: Path, is_cut: bool = False) -> None:
        is_standard_input = str(path) == "-"
        if is_standard_input and sys.stdin is None:
            raise ArgumentError("-: standard input is closed")
        self.path = path
        self.name = "standard input" if is_standard_input else str(path)
        self._file = sys.stdin.buffer if is_standard_input else path.open("rb")
        self.size = None if is_standard_input else os.fstat(self._file.fileno()).st_size or None
        """Number of bytes; None: unknown."""
        self.read = 0
        """Number of bytes of the lines that were read."""
        self._is_cut = is_cut
        self._n_lines = 0
        try:
            self._rows = self._begin()
        except ArgumentError:
            self.close()
            raise

    def rows(self) -> Iterator[TableRow]:
        """Read the rows; ArgumentError if it is not clear where a row ends."""
        return self._rows

    def check(self, template: Template) -> None:
        """Raise ArgumentError if no row has a column of a template."""
        if self.are_fixed:
            template.check(self.columns, f"{self.name}: ")

    def require(self, name: str, option: str) -> None:
        """Raise ArgumentError if no row has a column, which an option names."""
        if self.are_fixed and name not in self.columns:
            raise ArgumentError(
                f"{self.name}: no column {name!r}, which {option} names; the columns are {', '.join(self.columns)}"
            )

    def close(self) -> None:
        """Close the file."""
        if str(self.path) != "-":
            self._file.close()

    @abstractmethod
    def _begin(self) -> Iterator[TableRow]:
        """Read the columns, and return the rows."""

    def _lines(self) -> Iterator[bytes]:
        for line in self._file:
            if self._is_cut and not line.endswith(b"\n"):
                return
            self._n_lines += 1
            self.read += len(line)
            if self._n_lines == 1:
                check_is_utf8(line, self.name)
                line = line.removeprefix(codecs.BOM_UTF8)
            yield line


def open_table(path: Path, kind: Format, *, is_cut: bool = False) -> Table:
    """Open a table, ``-`` for standard input; ArgumentError or OSError if it is missing or of another format."""
    return (_Csv if kind == "csv" else _JsonLines)(path, is_cut)


class _Csv(Table):
    def _begin(self) -> Iterator[TableRow]:
        # Keep bytes that are not UTF-8, to report the row instead of the file.
        lines = (line.decode("utf-8", "surrogateescape") for line in self._lines())
        csv.field_size_limit(2**31 - 1)  # the largest value that every platform accepts
        head = next(lines, "")
        self.separator = "\t" if self.path.suffix.lower() == ".tsv" else self._separator(head)
        records = csv.reader(itertools.chain([head], lines), delimiter=self.separator, strict=True)
        try:
            self.columns = next(records, [])
            _check_utf8(self.columns)
        except csv.Error as error:
            raise ArgumentError(
                f"{self.name}: line 1: {_reason(error)}; if all lines end so, convert them: tr '\\r' '\\n' < OLD > NEW"
            ) from error
        except ArgumentError as error:
            raise ArgumentError(f"{self.name}: line 1: {error}") from error
        if not self.columns:
            raise ArgumentError(f"{self.name}: empty; a CSV table begins with a line of column names")
        twice = sorted({column for column in self.columns if self.columns.count(column) > 1})
        if twice:
            raise ArgumentError(f"{self.name}: two columns have the same name: {', '.join(map(repr, twice))}")
        return self._read(records)

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

    def _read(self, records: Iterator[list[str]]) -> Iterator[TableRow]:
        number = 0
        while True:
            line, bad = self._n_lines + 1, None
            try:
                record = next(records)
            except StopIteration:
                return
            except csv.Error as error:
                if self._is_cut and not self._file.read(1):
                    return
                lines = f"line {line}" if line == self._n_lines else f"lines {line} to {self._n_lines}"
                raise ArgumentError(
                    f"{self.name}, {lines}: {_reason(error)}; the rest is not read, because any line may be part of a "
                    "cell"
                ) from error
            if not record:
                continue  # an empty line
            try:
                _check_utf8(record)
                if len(record) != len(self.columns):
                    bad = f"{len(record)} fields for {len(self.columns)} columns"
            except ArgumentError as error:
                bad = str(error)
            number += 1
            values = {} if bad else dict(zip(self.columns, record, strict=True))
            yield TableRow(number, f"{self.name}, line {line}", values, bad)


class _JsonLines(Table):
    are_fixed = False

    def _begin(self) -> Iterator[TableRow]:
        ahead, rows = list[TableRow](), self._read()
        while not ahead or ahead[-1].bad:
            row = next(rows, None)
            if row is None:
                break
            ahead.append(row)
        self.columns = list(ahead[-1].values) if ahead else []
        return itertools.chain(ahead, rows)

    def _read(self) -> Iterator[TableRow]:
        number = 0
        for line in self._lines():
            if not line.strip():
                continue
            number += 1
            values: Any = {}
            bad = None
            try:
                values = json.loads(line.decode(), parse_constant=_refuse)
                if not isinstance(values, dict):
                    bad = f"{type(values).__name__} instead of an object"
                # Numbers beyond floats, lone surrogates and deep nesting can be read, but not written.
                json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
            except UnicodeError as error:
                bad = f"not UTF-8 ({error})"
            except (ValueError, RecursionError) as error:
                bad = f"not JSON ({error})"
            yield TableRow(number, f"{self.name}, line {self._n_lines}", {} if bad else values, bad)


def _reason(error: csv.Error) -> str:
    if "new-line character" in str(error):  # its message has a hint for programmers
        return "a carriage return without a line break, outside of quotes"
    return str(error).replace("end of data", "end of data inside of quotes")


def check_is_utf8(begin: bytes, name: str) -> None:
    """Raise ArgumentError if a text begins as UTF-16 or UTF-32; other bytes are checked later."""
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)) or b"\0" in begin[:4]:
        raise ArgumentError(f"{name}: not UTF-8 but UTF-16 or UTF-32; {_CONVERT.format('UTF-16')}")


def _check_utf8(cells: Iterable[str]) -> None:
    try:
        "".join(cells).encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"not UTF-8; {_CONVERT.format('CP1252')}") from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
