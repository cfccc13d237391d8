"""Tables in CSV and JSON lines: read row by row, and written again with columns that are added as rows are answered."""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import itertools
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import typer
from rich.table import Table as Drawn

from token_trie.cli.options import ModelOptions, as_prompt, check_is_utf8, require_output, say, status, to_utf8
from token_trie.decisions.gold import is_nothing
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.core import Llama
from token_trie.progress import Progress
from token_trie.sets.prompt import Prompt, Template, text_of, to_json
from token_trie.show.trie import plain

Format: TypeAlias = Literal["csv", "jsonl"]
OnRowError: TypeAlias = Literal["stop", "skip"]
"""Treatment of a row with an error."""
TableArgument = Annotated[
    Path,
    typer.Argument(metavar="TABLE", help="A file in CSV or JSON lines; - reads standard input.", show_default=False),
]
InputFormatOption = Annotated[Format | None, typer.Option(help="Format of TABLE. Default: by the ending of its name.")]

_ENDINGS: dict[str, Format] = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def format_of(path: Path, given: Format | None = None) -> Format:
    """Return the format that an option or the file's name gives."""
    found = given or _ENDINGS.get(path.suffix.lower())
    if found is None:
        is_spreadsheet = path.suffix.lower() in {".xls", ".xlsx", ".ods"}
        advice = "save the spreadsheet as 'CSV UTF-8'" if is_spreadsheet else "tables are CSV or JSON lines"
        raise ArgumentError(f"{path}: the format is not clear from the name ({', '.join(_ENDINGS)}); {advice}")
    return found


class TableRow(NamedTuple):
    """A row of a table; a bad one has a message and no values."""

    number: int
    """Number from 1; bad rows count."""
    where: str
    """Name of the row in messages."""
    values: dict[str, Any]
    bad: str | None = None


class Table:
    """A table that is read once, row by row; ``-`` is standard input.

    With `is_cut`, a half-written row at the end is left out, without an error. ArgumentError or OSError if the table is
    missing or of another format.
    """

    separator = ","
    """The character between cells of CSV."""
    columns: list[str]
    """In JSON lines, where each row has its own, the columns of the first good row."""

    def __init__(self, path: Path, kind: Format | None = None, *, is_cut: bool = False) -> None:
        self.are_fixed = format_of(path, kind) == "csv"
        """Whether all rows have these columns."""
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
            self._rows = self._open_csv() if self.are_fixed else self._open_json_lines()
        except ArgumentError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if str(self.path) != "-":
            self._file.close()

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

    def _open_csv(self) -> Iterator[TableRow]:
        # Keep bytes that are not UTF-8, to report the row instead of the file.
        lines = (line.decode("utf-8", "surrogateescape") for line in self._lines())
        csv.field_size_limit(2**31 - 1)  # the largest value that every platform accepts
        head = next(lines, "")
        self.separator = "\t" if self.path.suffix.lower() == ".tsv" else self._separator_in(head)
        records = csv.reader(itertools.chain([head], lines), delimiter=self.separator, strict=True)
        try:
            self.columns = next(records, [])
        except csv.Error as error:
            raise ArgumentError(
                f"{self.name}: line 1: {_reason(error)}; if all lines end so, convert them: tr '\\r' '\\n' < OLD > NEW"
            ) from error
        if not self.columns:
            raise ArgumentError(f"{self.name}: empty; a CSV table begins with a line of column names")
        if not _is_utf8(self.columns):
            raise ArgumentError(f"{self.name}: line 1: not UTF-8; {to_utf8('CP1252')}")
        twice = sorted({column for column in self.columns if self.columns.count(column) > 1})
        if twice:
            raise ArgumentError(f"{self.name}: two columns have the same name: {', '.join(map(repr, twice))}")
        return self._csv_rows(records)

    def _separator_in(self, head: str) -> str:
        """Return what the first line has most of; spreadsheets write semicolons in Europe."""
        count = re.sub(r'"[^"]*"?', "", head).count
        first, second, _ = sorted(",;\t", key=count, reverse=True)
        if 0 < count(first) == count(second):
            raise ArgumentError(
                f"{self.name}: line 1: as many {first!r} as {second!r} outside of quotes, so it is not clear which one "
                "separates cells; put quotes around names that have one"
            )
        return first

    def _csv_rows(self, records: Iterator[list[str]]) -> Iterator[TableRow]:
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
            if not _is_utf8(record):
                bad = f"not UTF-8; {to_utf8('CP1252')}"
            elif len(record) != len(self.columns):
                bad = f"{len(record)} fields for {len(self.columns)} columns"
            number += 1
            values = {} if bad else dict(zip(self.columns, record, strict=True))
            yield TableRow(number, f"{self.name}, line {line}", values, bad)

    def _open_json_lines(self) -> Iterator[TableRow]:
        ahead, rows = list[TableRow](), self._json_rows()
        for row in rows:
            ahead.append(row)
            if row.bad is None:
                break
        self.columns = list(ahead[-1].values) if ahead else []
        return itertools.chain(ahead, rows)

    def _json_rows(self) -> Iterator[TableRow]:
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
    if "new-line character" in str(error):  # csv's message has a hint for programmers
        return "a carriage return without a line break, outside of quotes"
    return str(error).replace("end of data", "end of data inside of quotes")


def _is_utf8(cells: list[str]) -> bool:
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


@dataclass(frozen=True, kw_only=True)
class RowsOptions:
    """The table to read, and the table to write."""

    table: TableArgument
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The table to write, in CSV or JSON lines. Each row is appended as soon as it is known, and rows that "
            "are there already are left out: run the command again to continue. - is standard output.",
        ),
    ] = Path("-")
    prefix: Annotated[str, "Text before the names of the added columns."] = ""
    on_error: Annotated[OnRowError, "For a row without an answer: stop, or report and skip it."] = "stop"
    input_format: InputFormatOption = None

    @property
    def is_streamed(self) -> bool:
        """Whether rows go to standard output, a pipe or a device, which hold no rows of an earlier run."""
        return str(self.output) == "-" or (self.output.exists() and not self.output.is_file())

    @property
    def has_rows(self) -> bool:
        """Whether the output has rows of an earlier run."""
        return not self.is_streamed and self.output.is_file() and self.output.stat().st_size > 0

    def open(self) -> closing[Table]:
        """Open the table to read, for a ``with`` statement; ArgumentError if the output cannot be written."""
        if str(self.output) == "-" and sys.stdout is None:
            raise ArgumentError("--output: standard output is closed; use a file")
        if not self.is_streamed:
            require_output("--output", self.output, self.table)
            format_of(self.output)
        return closing(Table(self.table, self.input_format))


class RowJob(ABC):
    """Answers rows.

    Attributes
    ----------
    added : list of str
        The columns that are added.
    doing : str
        What the job does with the table, for a message.
    n_ctx : int
        The default context, in tokens, which all rows in progress share.
    """

    added: list[str]
    doing: str
    n_ctx = 4096

    def check(self, llm: Llama) -> None:  # noqa: B027 - most fit any model
        """Raise an error if the job does not fit the model."""

    @abstractmethod
    def ask(self, values: dict[str, Any]) -> Any:
        """Return what the model reads of a row; ArgumentError if there is nothing."""

    @abstractmethod
    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        """Yield an answer or a TokenTrieError for each row, in order."""

    @abstractmethod
    def read(self, answer: Any, row: TableRow) -> list[Any]:
        """Return the values of the added columns, and count the row."""

    @abstractmethod
    def summarize(self, rest: str) -> None:
        """Print what was counted; the last line ends with `rest`."""


def run_job(job: RowJob, table: Table, options: RowsOptions, model: ModelOptions) -> None:
    """Answer the rows of a table that the output does not have, and append each as soon as it is known."""
    results = _Results(options, table, [options.prefix + name for name in job.added])
    if not status.is_terminal:
        say(f"{job.doing} {table.name}")
    llm = model.load(job.n_ctx)
    job.check(llm)  # a mistake in the options is not reported as one of the first row
    with closing(results):
        results.begin()
        try:
            n_left_out = _answer_rows(job, llm, table, results, options.on_error)
        except (TokenTrieError, OSError, KeyboardInterrupt):
            if results.n_written and not options.is_streamed:
                say(f"{results.n_written:,} rows were added to {options.output}; the same command continues after them")
            raise
    found = f", {results.n_found:,} were there already" if results.n_found else ""
    job.summarize(found + (f", {n_left_out:,} left out" if n_left_out else ""))


def _answer_rows(job: RowJob, llm: Llama, table: Table, results: _Results, on_error: OnRowError) -> int:
    """Answer rows; return the number of those left out because of an error."""
    progress = Progress(table.size, "rows")
    in_progress: deque[TableRow] = deque()
    n_left_out = 0

    def leave_out(row: TableRow, message: str) -> None:
        nonlocal n_left_out
        if on_error == "stop":
            raise ArgumentError(f"{row.where}: {message} (--on-error skip leaves such rows out)")
        n_left_out += 1
        progress.clear()
        say(f"{row.where}: {message}")

    def asked() -> Iterator[Any]:
        for row in table.rows():
            try:
                if row.bad is not None:
                    raise ArgumentError(row.bad)
                results.check(row.values)
                if results.has(row):
                    continue
                one = job.ask(row.values)
            except ArgumentError as error:
                leave_out(row, str(error))
            else:
                in_progress.append(row)
                yield one

    with progress:
        for n, answer in enumerate(job.answer(llm, asked()), 1):
            row = in_progress.popleft()
            try:
                if isinstance(answer, TokenTrieError):
                    raise answer
                results.write(row, job.read(answer, row))
            except TokenTrieError as error:
                leave_out(row, str(error.__cause__ or error))
            progress.move(n, table.read * n / (n + len(in_progress)))  # rows are read before they are answered
    return n_left_out


class _Results:
    """The output of a run: the rows of a table, with the columns that are added.

    ArgumentError if a column of the table has the name of an added one, or the file has other columns.
    """

    def __init__(self, options: RowsOptions, table: Table, added: list[str]) -> None:
        self._path, self._is_streamed = options.output, options.is_streamed
        self._columns, self._added = table.columns, added
        self._kind: Format = format_of(table.path, options.input_format) if self._is_streamed else format_of(self._path)
        self._separator = "\t" if self._path.suffix.lower() == ".tsv" else table.separator
        self.n_written = 0
        self.n_found = 0
        """Number of rows of the table that an earlier run wrote."""
        self._known: Counter[bytes] = Counter()
        self._end: int | None = None  # the end of the last whole row
        self._file: io.FileIO | None = None
        self.check(table.columns)
        if not options.has_rows:
            return
        with closing(Table(self._path, self._kind, is_cut=True)) as written:
            if written.are_fixed:
                self._require_columns(written.columns, str(self._path))
            self._end = written.read
            for row in written.rows():
                if row.bad is not None:
                    raise ArgumentError(f"--output: {row.where}: {row.bad}")
                self._require_columns(row.values, row.where)
                self._known[self._key(row.values)] += 1
                self._end = written.read

    def _require_columns(self, columns: Iterable[str], where: str) -> None:
        names, own = [*columns], [*self._columns, *self._added]
        if self._kind == "jsonl":  # each row may have columns of its own
            names, own = names[-len(self._added) :], self._added
        if names != own:
            raise ArgumentError(
                f"--output: {where} has the columns {', '.join(names)}, and this run writes {', '.join(own)}; name "
                "another file, or remove this one"
            )

    def begin(self) -> None:
        """Open the file, remove a half-written row at its end, and write the head of a new one."""
        if str(self._path) == "-":
            self._file = io.FileIO(1, "wb", closefd=False)
        else:
            self._file = io.FileIO(self._path, "wb" if self._is_streamed else "ab")
        if self._end is not None:
            self._file.truncate(self._end)
        elif self._kind == "csv":
            self._put(csv_line([*self._columns, *self._added], self._separator))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def check(self, columns: Iterable[str]) -> None:
        """Raise ArgumentError for columns of a row that cannot be written."""
        clash = next((name for name in columns if name in self._added), None)
        if clash is not None:
            raise ArgumentError(
                f"column {clash!r} has the name of an added column; rename the added columns with --prefix"
            )
        new = next((name for name in columns if name not in self._columns), None)
        if self._kind == "csv" and new is not None:
            raise ArgumentError(f"column {new!r}, which the first row does not have")

    def has(self, row: TableRow) -> bool:
        """Whether an earlier run wrote a row; equal rows count once each."""
        key = self._key(row.values) if self._known else b""
        if not self._known[key]:
            return False
        self._known[key] -= 1
        self.n_found += 1
        return True

    def write(self, row: TableRow, values: list[Any]) -> None:
        """Append a row; OSError if the disk is full: the rows before it stay whole."""
        added = dict(zip(self._added, values, strict=True))
        if self._kind == "csv":
            cells = [*(row.values.get(name) for name in self._columns), *values]
            self._put(csv_line(cells, self._separator))
        else:
            self._put(to_json({**row.values, **added}).encode() + b"\n")
        self.n_written += 1

    def _key(self, values: Mapping[str, Any]) -> bytes:
        """Return a digest of the table's part of a row, which the file holds as text if it is CSV."""
        if self._kind == "csv":
            own: Any = [text_of(values.get(name)) for name in self._columns]
        else:
            own = {name: value for name, value in values.items() if name not in self._added}
        return hashlib.blake2b(to_json(own, sort_keys=True).encode(), digest_size=16).digest()

    def _put(self, data: bytes) -> None:
        assert self._file is not None
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error


def csv_line(cells: Iterable[Any], separator: str) -> bytes:
    """Return a row of CSV, whose separator `Table` finds again."""
    line, end = io.StringIO(), ",;\t\r\n"  # the writer quotes fields with one of these characters
    csv.writer(line, delimiter=separator, lineterminator=end).writerow(map(text_of, cells))
    return line.getvalue().removesuffix(end).encode() + b"\n"


def prompt_of(template: Template, values: dict[str, Any], chat: bool) -> Prompt:
    """Return the prompt of a row; ArgumentError if a column is missing, or all that are in it are empty."""
    prompt = as_prompt(template.fill(values), chat)
    require_content({name: values[name] for name in template.columns})
    return prompt


def require_content(values: Mapping[str, Any]) -> None:
    """Raise ArgumentError if all columns that the model reads of a row are empty."""
    if all(map(is_nothing, values.values())):
        raise ArgumentError(f"nothing to read in {', '.join(values)}")


def draw_counts(titles: tuple[str, str], counts: Mapping[str, int], n: int) -> None:
    """Print a table of counts with their parts of n rows, if there are rows."""
    drawn = Drawn(box=None, header_style="bold")
    for i, title in enumerate((*titles, "%")):
        drawn.add_column(title, justify="right" if i else "left")
    for name, count in counts.items():
        drawn.add_row(plain(name), f"{count:,}", f"{100 * count / max(n, 1):.1f}")
    if n:
        status.print(drawn)
