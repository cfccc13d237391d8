"""Rows in, rows out: a job answers each row of a table, and the file of results lets an interrupted run resume."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import stat
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as Drawn

from token_trie.cli.options import (
    InputFormatOption,
    ModelOptions,
    OnRowError,
    TableArgument,
    as_prompt,
    is_same_file,
    say,
    status,
)
from token_trie.cli.tables import Format, Table, TableRow, format_of, open_table
from token_trie.decisions.gold import is_nothing
from token_trie.engines.data import import_pyarrow
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.core import Llama
from token_trie.native.loaded import digest_of_model, model_file
from token_trie.progress import Progress
from token_trie.sets.prompt import Prompt, Template, text_of, to_json
from token_trie.show.trie import plain

_BATCH_ROWS = 1024
"""Rows of a Parquet row group."""


@dataclass(frozen=True, kw_only=True)
class RowsOptions:
    """The table to read, and the table to write."""

    table: TableArgument
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The table to write. Each row is written as soon as it is known; - is standard output.",
        ),
    ] = Path("-")
    prefix: Annotated[str, typer.Option(help="Text before the names of the added columns.")] = ""
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted run that wrote --output.")] = False
    on_error: Annotated[OnRowError, typer.Option(help="For a row without an answer: stop, or report and skip it.")] = (
        "stop"
    )
    input_format: InputFormatOption = None
    output_format: Annotated[
        Format | None, typer.Option(help="Format of --output. Default: by the ending of its name.")
    ] = None

    @property
    def formats(self) -> tuple[Format, Format]:
        """The formats of both tables; ArgumentError if they are not clear, or standard output is closed."""
        if str(self.output) == "-" and sys.stdout is None:
            raise ArgumentError("--output: standard output is closed; use a file")
        require_other(self.output, self.table)
        kind = format_of(self.table, self.input_format, "--input-format")
        if self.output_format is None and str(self.output) == "-":
            return kind, "csv" if kind == "csv" else "jsonl"
        return kind, format_of(self.output, self.output_format, "--output-format")

    def open(self) -> closing[Table]:
        """Open the table to read, for a ``with`` statement."""
        kind, _ = self.formats
        return closing(open_table(self.table, kind))


class RowJob(ABC):
    """Answers rows.

    Attributes
    ----------
    columns : dict of str to str
        The columns that are added, with their types in Arrow.
    marks : dict of str to list
        What answers depend on besides the model and the row, as JSON values, by the names of its changes ("other
        choices"). A run with other values cannot be resumed.
    doing : str
        What the job does with the table, for a message.
    n_ctx : int
        The default context, in tokens, which all rows under way share.
    """

    columns: dict[str, str]
    marks: dict[str, list[Any]]
    doing: str
    n_ctx = 4096

    def check(self, llm: Llama) -> None:  # noqa: B027 - most fit any model
        """Raise an error if the job does not fit the model; it may complete `marks`."""

    @abstractmethod
    def ask(self, values: dict[str, Any]) -> Any:
        """Return what the model reads of a row; ArgumentError if there is nothing."""

    @abstractmethod
    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        """Yield an answer or a TokenTrieError for each row, in order."""

    @abstractmethod
    def read(self, answer: Any) -> dict[str, Any]:
        """Return the values of the added columns."""

    @abstractmethod
    def count(self, values: Mapping[str, Any]) -> None:
        """Count a row that is written, now or by an earlier run; its values may be read from a text."""

    @abstractmethod
    def summarize(self, n_left_out: int) -> None:
        """Print what was counted."""


def run_job(job: RowJob, table: Table, options: RowsOptions, model: ModelOptions) -> None:
    """Answer the rows of a table that have no answer yet, and write each as soon as it is known."""
    kind, path = options.formats[1], options.output
    working = path.with_name(f"{path.name}.rows") if kind == "parquet" and str(path) != "-" else path
    with closing(OutputFile(working, options.resume)) as file:
        if kind == "parquet" and path.is_file() and not file.size:
            option = "--resume" if options.resume else "--output"
            raise ArgumentError(f"{option}: {str(path)!r} is complete; remove it to start again")
        results = ResultTable(file, kind, table, job.columns, options.prefix)
        if not status.is_terminal:
            say(f"{job.doing} {table.name}")
        llm = model.load(job.n_ctx)
        job.check(llm)  # a mistake in the options is not reported as one of the first row
        marks = {"another model": digest(digest_of_model(model_file(llm)))}
        marks |= {what: digest(*values) for what, values in job.marks.items()}
        results.begin(marks, job.count)
        try:
            n_left_out = _answer_rows(job, llm, table, results, options.on_error)
            results.finish()
            if kind == "parquet":
                _write_parquet(file, path)
        except (TokenTrieError, OSError, KeyboardInterrupt):
            if working.is_file() and results.n_written:
                say(f"{results.n_written:,} rows are in {file.name}; --resume continues after them")
            raise
    job.summarize(n_left_out)


def _answer_rows(job: RowJob, llm: Llama, table: Table, results: ResultTable, on_error: OnRowError) -> int:
    """Answer rows; return the number of those left out, now or by an earlier run."""
    progress = Progress(table.size, "rows")
    under_way: deque[TableRow] = deque()
    n_left_out = results.n_left_out

    def leave_out(row: TableRow, message: str) -> None:
        nonlocal n_left_out
        if on_error == "stop":
            raise ArgumentError(f"{row.where}: {message} (--on-error skip leaves such rows out)")
        n_left_out += 1
        progress.clear()
        say(f"{row.where}: {message}")

    def asked() -> Iterator[Any]:
        seen = 0
        for row in table.rows():
            seen, bad, one = row.number, row.bad, None
            try:
                if bad is None:
                    results.check(row)
                    one = job.ask(row.values)
            except ArgumentError as error:
                bad = str(error)
            if results.has(row, bad):
                continue
            if bad is None:
                under_way.append(row)
                yield one
            else:
                leave_out(row, bad)
        results.require_all(seen)

    with progress:
        for n, answer in enumerate(job.answer(llm, asked()), 1):
            row = under_way.popleft()
            try:
                if isinstance(answer, TokenTrieError):
                    raise answer
                values = job.read(answer)
                results.write(row, values)
                job.count(values)
            except TokenTrieError as error:
                leave_out(row, str(error.__cause__ or error))
            progress.move(n, table.read * n / (n + len(under_way)))  # rows are read before they are answered
    return n_left_out


def prompt_of(template: Template, values: dict[str, Any], chat: bool) -> Prompt:
    """Return the prompt of a row; ArgumentError if a column is missing, or all that are in it are empty."""
    prompt = as_prompt(template.fill(values), chat)
    require_content({name: values[name] for name in template.columns})
    return prompt


def require_content(values: Mapping[str, Any]) -> None:
    """Raise ArgumentError if all columns that the model reads of a row are empty."""
    if values and all(map(is_nothing, values.values())):
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


def digest(*parts: Any) -> str:
    """Return a digest of eight letters of JSON values."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def require_same_run(written: object, marks: Mapping[str, str]) -> None:
    """Raise ArgumentError unless the joined digests in a row are those of a run, and say what has changed."""
    for what, (own, other) in zip(marks, zip_longest(marks.values(), str(written).split("-")), strict=False):
        if own != other:
            raise ArgumentError(f"was written with {what}")


def require_other(output: Path, source: Path) -> None:
    """Raise ArgumentError if the output of a command is the file that it reads."""
    if str(output) != "-" and is_same_file(output, source):
        raise ArgumentError(f"--output: {str(output)!r} is the file to read; name another one")


class OutputFile:
    """A file, or standard output, that one run at a time appends to; if nothing is written, it is removed again.

    ArgumentError if it has content and `resume` does not allow that, or cannot be continued; or another run writes it.
    """

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self._cut: int | None = None
        self._is_kept = True
        self.is_standard_output = str(path) == "-"
        self.name = "standard output" if self.is_standard_output else str(path)
        if self.is_standard_output:
            if resume:
                raise ArgumentError("--resume: needs a file in --output")
            self._file = io.FileIO(1, "wb", closefd=False)
            return
        is_new, is_other = not path.exists(), path.exists() and not path.is_file()  # a device, or a pipe
        if is_other and resume and path.stat().st_size:
            raise ArgumentError(f"--resume: {self.name!r} is not a file that a run can continue")
        if not resume:
            self._require_empty()
        self._file = io.FileIO(path, "wb" if is_other else "a+b")
        try:
            if not is_other and (not lock(self._file) or not self.is_in_place()):
                raise ArgumentError(f"--output: another run writes {self.name!r}")
            if not resume:
                self._require_empty()
        except ArgumentError:
            self._file.close()
            raise
        self._is_kept = not is_new

    def _require_empty(self) -> None:
        if self.path.is_file() and self.path.stat().st_size:
            raise ArgumentError(f"--output: {self.name!r} exists; continue it with --resume, or remove it")

    def is_in_place(self) -> bool:
        """Whether the file was neither moved nor replaced."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        return False

    @property
    def size(self) -> int:
        """Bytes of the file; 0 for a device or a pipe."""
        found = os.fstat(self._file.fileno())
        return found.st_size if stat.S_ISREG(found.st_mode) and not self.is_standard_output else 0

    def cut(self, end: int) -> None:
        """Keep only the first bytes; the rest is removed when something is written."""
        self._cut = end

    def put(self, data: bytes) -> None:
        """Write bytes; OSError if the disk is full, after a part of them."""
        self._is_kept = True
        try:
            if self._cut is not None:
                self._file.truncate(self._cut)
                self._cut = None
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            raise OSError(error.errno or errno.EIO, error.strerror, self.name) from error

    def close(self) -> None:
        """Close the file, so that another run may continue it."""
        if not self._is_kept and self.is_in_place():
            with suppress(OSError):
                self.path.unlink()
        self._file.close()


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


class _JsonRows:
    """Writes rows as lines of JSON, each with its own columns."""

    has_columns = False
    """Whether all rows have the same columns."""

    def cells(self, columns: list[str], values: dict[str, Any]) -> dict[str, Any]:
        """Return what is written of values; of these cells, it is the same."""
        return values

    def head(self, columns: list[str]) -> bytes:
        """Return the head of the file."""
        return b""

    def encode(self, columns: list[str], row: TableRow, added: dict[str, Any]) -> bytes:
        """Return a row with the values of the table and those added."""
        return to_json({**row.values, **added}).encode() + b"\n"


class _CsvRows(_JsonRows):
    """Writes rows as lines of CSV."""

    has_columns = True

    def __init__(self, separator: str) -> None:
        self._separator = separator

    def cells(self, columns: list[str], values: dict[str, Any]) -> dict[str, Any]:
        return {column: text_of(values.get(column)) for column in columns}

    def head(self, columns: list[str]) -> bytes:
        line, end = io.StringIO(), ",;\t\r\n"  # the writer quotes fields with one of these characters
        csv.writer(line, delimiter=self._separator, lineterminator=end).writerow(columns)
        return line.getvalue().removesuffix(end).encode() + b"\n"

    def encode(self, columns: list[str], row: TableRow, added: dict[str, Any]) -> bytes:
        return self.head([*self.cells(columns, {**row.values, **added}).values()])


class _ArrowRows(_JsonRows):
    """Writes a stream of Arrow record batches, one a row, from which a Parquet table is made at the end.

    The columns of a Parquet table keep their types; those of other tables become texts. `added` has the types of other
    columns.
    """

    has_columns = True

    def __init__(self, own: Any, added: dict[str, str]) -> None:
        self._arrow, _ = import_pyarrow()
        self._own = own
        self._added = [self._arrow.field(name, self._arrow.type_for_alias(kind)) for name, kind in added.items()]
        self._written = io.BytesIO()
        self._stream: Any = None

    def cells(self, columns: list[str], values: dict[str, Any]) -> dict[str, Any]:
        return {name: None if values.get(name) is None else text_of(values[name]) for name in columns}

    def head(self, columns: list[str]) -> bytes:
        if self._stream is None:
            own = columns[: len(columns) - len(self._added)]
            schema = self._own or self._arrow.schema([(column, self._arrow.string()) for column in own])
            for field in self._added:
                schema = schema.append(field)
            self._head, self._stream = bytes(schema.serialize()), self._arrow.ipc.new_stream(self._written, schema)
            self._schema = schema
        return self._head

    def encode(self, columns: list[str], row: TableRow, added: dict[str, Any]) -> bytes:
        head, array = self.head(columns), self._arrow.array
        texts = self.cells(columns[: -len(self._added)], row.values).values()
        own = [array([text], self._arrow.string()) for text in texts] if self._own is None else row.batch.columns
        try:
            more = [array([self._typed(added[field.name], field.type)], field.type) for field in self._added]
        except (self._arrow.ArrowException, OverflowError) as error:
            raise ArgumentError(str(error)) from error
        self._stream.write_batch(self._arrow.RecordBatch.from_arrays([*own, *more], schema=self._schema))
        data = self._written.getvalue().removeprefix(head)
        self._written.seek(0)
        self._written.truncate()
        return data

    def _typed(self, value: Any, kind: Any) -> Any:
        return text_of(value) if value is not None and self._arrow.types.is_string(kind) else value


def writer_of(kind: Format, separator: str, own: Any, added: dict[str, str]) -> _JsonRows:
    """Return the writer of a format; a Parquet table has the columns of a schema, or else texts, and those added."""
    if kind == "parquet":
        return _ArrowRows(own, added)
    return _CsvRows(separator) if kind == "csv" else _JsonRows()


def _write_parquet(rows: OutputFile, path: Path) -> None:
    """Write a file of Arrow rows as a Parquet table, and remove it.

    ArgumentError if the file was replaced, or has a type that cannot be written; `path` is unchanged.
    """
    if not rows.is_in_place():
        raise ArgumentError(f"{rows.name!r} was removed or replaced")
    arrow, parquet = import_pyarrow()
    partial = path.with_name(f"{path.name}.partial")
    try:
        with rows.path.open("rb") as file:
            batches = arrow.ipc.open_stream(file)
            with parquet.ParquetWriter(partial, batches.schema) as writer:
                while some := list(islice(batches, _BATCH_ROWS)):
                    writer.write_table(arrow.Table.from_batches(some))
        partial.replace(path)
        rows.path.unlink()
    except arrow.ArrowException as error:
        raise ArgumentError(f"{path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


class ResultTable:
    """The rows of a file of results; each is written as soon as it is known.

    `added` are the columns added to those of the table, with their types; their names begin with `prefix`.
    ArgumentError if a column of the table has such a name.
    """

    def __init__(self, file: OutputFile, kind: Format, table: Table, added: dict[str, str], prefix: str) -> None:
        if kind == "parquet" and file.is_standard_output:
            raise ArgumentError("--output: a Parquet table is written to a file; name one")
        self.added = {prefix + column: type_ for column, type_ in (added | {"row": "int64", "run": "string"}).items()}
        self._names = list(added)
        self._row, self._run = prefix + "row", prefix + "run"
        self._marks: dict[str, str] = {}
        self._table = table
        self._file = file
        self._kind = kind
        separator = "\t" if file.path.suffix.lower() == ".tsv" else table.separator
        self._rows = writer_of(kind, separator, getattr(table, "schema", None), self.added)
        self.columns: list[str] | None = table.columns
        """The table's columns; None before the first row if each row has its own."""
        self._require_no_clash(table.columns or [], f"{table.name}: ")
        self._has_head = False
        self._last = 0  # number of the last row written
        self._old: Iterator[dict[str, Any]] = iter(())  # rows of an earlier run, to compare with the table
        self._oldest: dict[str, Any] | None = None  # the next of these
        self.n_written = 0
        self.n_left_out = 0  # by an earlier run

    def begin(self, marks: dict[str, str], count: Callable[[Mapping[str, Any]], None]) -> None:
        """Count the rows that an earlier run wrote; ArgumentError if the file is not of such a run.

        `marks` are digests of what the run depends on, by the names of its changes.
        """
        self._marks = marks
        if not self._file.size:
            return
        nothing = ArgumentError(f"--resume: {self._file.name!r} has no row of such a run; remove it to start again")
        try:
            written = open_table(self._file.path, self._kind, is_cut=True)
        except ArgumentError as error:
            raise nothing from error
        with closing(written):
            if written.columns is not None:
                self._require_columns(written.columns)
            end = written.read
            for row in written.rows():
                self._last = self._number_of(row, self._last)
                count({name: row.values[own] for name, own in zip(self._names, self.added, strict=False)})
                self.n_written += 1
                end = written.read
        if end == 0:
            raise nothing
        self.n_left_out = self._last - self.n_written
        self._has_head = True
        self._file.cut(end)
        self._old = self._read_again()
        self._oldest = next(self._old, None)

    def has(self, row: TableRow, bad: str | None) -> bool:
        """Whether a row was written; call it in order. ArgumentError if another row was written under its number."""
        if self._oldest is not None and int(self._oldest[self._row]) == row.number:
            own = {column: value for column, value in self._oldest.items() if column not in self.added}
            if bad or self._comparable(own) != self._comparable(row.values):
                raise ArgumentError(
                    f"{row.where} differs from row {row.number} of {self._file.name!r}; the table has changed"
                )
            self._oldest = next(self._old, None)
        return row.number <= self._last

    def require_all(self, n: int) -> None:
        """Raise ArgumentError if more than the table's n rows were written."""
        if n < self._last:
            raise ArgumentError(f"{self._table.name} has {n:,} rows, and row {self._last:,} was written before")

    def check(self, row: TableRow) -> None:
        """Raise ArgumentError for columns of a row that clash with those added."""
        if self._table.columns is not None:
            return
        self._require_no_clash(row.values, "")
        if self._rows.has_columns:
            if self.columns is None:
                self.columns = list(row.values)
            new = [column for column in row.values if column not in self.columns]
            if new:
                raise ArgumentError(f"column {new[0]!r}, which the first row does not have")

    def write(self, row: TableRow, values: Mapping[str, Any]) -> None:
        """Write a row; OSError if the disk is full: the rows before it stay whole.

        ArgumentError if a value does not fit the type of its column in Parquet.
        """
        added = dict(zip(self.added, [*values.values(), row.number, "-".join(self._marks.values())], strict=True))
        line = self._rows.encode(self._all_columns(), row, added)
        self._file.put(self._head() + line)
        self.n_written += 1
        self._last = row.number

    def finish(self) -> None:
        """Complete the file after the last row."""
        self._file.put(self._head())

    def _read_again(self) -> Iterator[dict[str, Any]]:
        with closing(open_table(self._file.path, self._kind, is_cut=True)) as written:
            for row in written.rows():
                yield row.values

    def _comparable(self, values: dict[str, Any]) -> str:
        return to_json(self._rows.cells(self.columns or [], values), sort_keys=True)

    def _all_columns(self) -> list[str]:
        return [*(self.columns or ()), *self.added]

    def _head(self) -> bytes:
        head = b"" if self._has_head else self._rows.head(self._all_columns())
        self._has_head = True
        return head

    def _require_no_clash(self, columns: Iterable[str], where: str) -> None:
        clash = [column for column in columns if column in self.added]
        if clash:
            raise ArgumentError(
                f"{where}column {clash[0]!r} has the name of an added column; rename the added columns with --prefix"
            )

    def _require_columns(self, columns: list[str]) -> None:
        read = [column for column in columns if column not in self.added]
        if not set(self.added) <= set(columns) or (self.columns is not None and read != self.columns):
            ours = ", ".join(self._all_columns())
            raise ArgumentError(
                f"--resume: {self._file.name!r} has the columns {', '.join(columns)}; this run writes {ours}"
            )
        self.columns = read

    def _number_of(self, row: TableRow, before: int) -> int:
        """Return the number of a written row in the table; ArgumentError if it is no row of this run."""
        try:
            if row.bad is not None:
                raise ArgumentError(row.bad)
            if not set(self.added) <= set(row.values):
                raise ArgumentError(f"has the columns {', '.join(row.values)}; this run adds {', '.join(self.added)}")
            require_same_run(row.values[self._run], self._marks)
            number = str(row.values[self._row])
            if not number.isdecimal() or int(number) <= before:
                raise ArgumentError(f"row {number} after row {before}: the file was changed")
            return int(number)
        except ArgumentError as error:
            raise ArgumentError(f"--resume: {row.where}: {error}") from error
