"""Rows as bytes to append to a file, and the rows of a file that were written to their end."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, BinaryIO

from token_trie.cli.tables import read_csv
from token_trie.errors import ArgumentError
from token_trie.sets.template import text_of, to_json


def digest(*parts: Any) -> str:
    """Return a digest, of eight letters, of values that JSON has."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


class WholeLines(Iterator[bytes]):
    """The lines of a file, without a last one that has no line break."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.n = 0
        self.end = 0
        """Where the last line ends, in bytes."""
        self.are_over = False

    def __next__(self) -> bytes:
        line = self._file.readline()
        if not line.endswith(b"\n"):
            self.are_over = True
            raise StopIteration
        self.n += 1
        self.end += len(line)
        return line


class Rows(ABC):
    """A way of writing rows, each ended by a line break."""

    has_columns = True
    """Whether all rows have the same columns."""

    @abstractmethod
    def head(self, columns: list[str]) -> bytes:
        """Return what stands before the first row."""

    @abstractmethod
    def encode(self, columns: list[str], values: dict[str, Any], added: dict[str, Any]) -> bytes:
        """Return a row of these columns, with the values of the table and those added."""

    @abstractmethod
    def read_head(self, lines: WholeLines) -> list[str] | None:
        """Return the columns that stand before the first row."""

    @abstractmethod
    def decode(self, lines: WholeLines, columns: list[str] | None) -> Iterator[dict[str, Any]]:
        """Iterate over the rows, a last one without an end left out; ArgumentError where another is broken."""

    @abstractmethod
    def is_same(self, written: dict[str, Any], values: dict[str, Any]) -> bool:
        """Tell whether values of a table, as written, are those of a row; `written` is without the columns added."""


class CsvRows(Rows):
    """CSV, whose first line has the names."""

    def head(self, columns: list[str]) -> bytes:
        """Return the line of names."""
        return _csv_line(columns)

    def encode(self, columns: list[str], values: dict[str, Any], added: dict[str, Any]) -> bytes:
        """Return the fields."""
        whole = {**values, **added}
        return _csv_line([text_of(whole.get(column)) for column in columns])

    def read_head(self, lines: WholeLines) -> list[str] | None:
        """Return the names; None if they are not there."""
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
        """Tell whether the texts are the same; a column that a row does not have is empty."""
        columns = written.keys() | values.keys()
        return all(written.get(column) == text_of(values.get(column)) for column in columns)


class JsonRows(Rows):
    """JSON lines: an object a line."""

    has_columns = False

    def head(self, columns: list[str]) -> bytes:
        """Return nothing."""
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
        """Tell whether the JSON is the same."""
        return _canonical(written) == _canonical(values)


class AddedRows(JsonRows):
    """JSON lines of the columns added alone, with a digest of the row that they are added to."""

    _OF = "of"  # no added column has this name

    def encode(self, columns: list[str], values: dict[str, Any], added: dict[str, Any]) -> bytes:
        """Return the object."""
        return super().encode(columns, {}, {**added, self._OF: digest(_canonical(values))})

    def is_same(self, written: dict[str, Any], values: dict[str, Any]) -> bool:
        """Tell whether the digest is the same."""
        return written == {self._OF: digest(_canonical(values))}


def _canonical(values: dict[str, Any]) -> str:
    return to_json(values, sort_keys=True)


def _csv_line(fields: list[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(fields)  # the writer quotes fields with either character
    return line.getvalue().removesuffix("\r\n").encode() + b"\n"


def _csv_records(lines: Iterator[bytes]) -> Iterator[list[str]]:
    return read_csv(line.decode("utf-8", "replace") for line in lines)
