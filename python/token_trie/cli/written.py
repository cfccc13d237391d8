"""Rows as bytes that a file grows by, and what of them is whole when it is read again."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, BinaryIO

from token_trie.cli.tables import read_csv, text_of, to_json
from token_trie.errors import ArgumentError


class WholeLines(Iterator[bytes]):
    """The lines of a file that have an end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.n = 0
        self.end = 0
        """Of the last one, in bytes."""
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
    """Whether all rows have the same ones."""

    @abstractmethod
    def head(self, columns: list[str]) -> bytes:
        """Return what stands before the first row."""

    @abstractmethod
    def encode(self, columns: list[str], values: dict[str, Any]) -> bytes:
        """Return a row."""

    @abstractmethod
    def read_head(self, lines: WholeLines) -> list[str] | None:
        """Return the columns that stand before the first row."""

    @abstractmethod
    def decode(self, lines: WholeLines, columns: list[str] | None) -> Iterator[dict[str, Any]]:
        """Iterate over the rows up to one that was not written to its end.

        Raises
        ------
        ArgumentError
            One is broken that is not the last.
        """

    @abstractmethod
    def is_same(self, written: Any, value: Any) -> bool:
        """Whether that is how a value reads that was written."""


class CsvRows(Rows):
    """CSV, whose first line has the names."""

    def head(self, columns: list[str]) -> bytes:
        """Return the line of names."""
        return _csv_line(columns)

    def encode(self, columns: list[str], values: dict[str, Any]) -> bytes:
        """Return the fields."""
        return _csv_line([text_of(values.get(column)) for column in columns])

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
                    raise csv.Error(f"{len(record)} fields where there are {len(columns or ())} columns")
                yield dict(zip(columns or (), record, strict=True))
        except csv.Error as error:
            if not lines.are_over:
                raise ArgumentError(f"line {lines.n}: {error}") from error

    def is_same(self, written: Any, value: Any) -> bool:
        """Whether the texts are the same."""
        return bool(written == text_of(value))


class JsonRows(Rows):
    """JSON lines: an object a line."""

    has_columns = False

    def head(self, columns: list[str]) -> bytes:
        """Return nothing."""
        return b""

    def encode(self, columns: list[str], values: dict[str, Any]) -> bytes:
        """Return the object."""
        return to_json(values).encode() + b"\n"

    def read_head(self, lines: WholeLines) -> list[str] | None:
        """Read nothing."""
        return None

    def decode(self, lines: WholeLines, columns: list[str] | None) -> Iterator[dict[str, Any]]:
        """Iterate over the objects."""
        for line in lines:
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ArgumentError(f"line {lines.n}: no JSON ({error})") from error
            if not isinstance(values, dict):
                raise ArgumentError(f"line {lines.n}: {type(values).__name__} where an object belongs")
            yield values

    def is_same(self, written: Any, value: Any) -> bool:
        """Whether the JSON is the same."""
        return bool(written == json.loads(to_json(value)))


def _csv_line(fields: list[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(fields)  # either of which is quoted where a field has it
    return line.getvalue().removesuffix("\r\n").encode() + b"\n"


def _csv_records(lines: Iterator[bytes]) -> Iterator[list[str]]:
    return read_csv(line.decode("utf-8", "replace") for line in lines)
