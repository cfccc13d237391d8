"""`Labeller`: labels for batches of rows, in the workers of Ray, Dask, Spark, datasets or Daft."""

from __future__ import annotations

import datetime
import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sized
from functools import cache
from operator import methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.calibration import over_rows
from token_trie.decisions.choose import ChoiceRequest
from token_trie.decisions.decision import Decision
from token_trie.decisions.many import choose_many
from token_trie.decisions.options import ChooseOptions
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.options import check_counts
from token_trie.records.fill import Record, fill_many, read_for_many, read_template
from token_trie.records.plan import Object, Union, types_in
from token_trie.sets.prompt import Template, text_of
from token_trie.trust.calibration import Calibration

_plain: Callable[[Any], Any] = methodcaller("as_py")


def import_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet; ArgumentError with the command that installs them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ArgumentError(f"Parquet tables need pyarrow: pip install 'token-trie[tables]' ({error})") from error
    return pyarrow, pyarrow.parquet


@cache
def reader_of(kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts a cell, a ``pyarrow.Scalar`` of this type, to a Python value.

    It raises ArgumentError, or the error of ``as_py``, for a cell without a Python value.
    """
    types = import_pyarrow()[0].types
    read: Callable[[Any], Any]
    if types.is_temporal(kind):
        read = _temporal
    elif types.is_float16(kind) or types.is_float32(kind):
        narrow = kind.to_pandas_dtype()
        read = lambda cell: float(str(narrow(cell.as_py())))  # noqa: E731 - the shortest text of this float
    elif types.is_binary(kind) or types.is_large_binary(kind) or kind == "binary_view":
        read = _text_of_bytes
    elif types.is_dictionary(kind) or types.is_run_end_encoded(kind) or hasattr(kind, "storage_type"):
        inner = reader_of(getattr(kind, "storage_type", None) or kind.value_type)
        read = _plain if inner is _plain else lambda cell: inner(cell.value)
    elif types.is_map(kind):
        key, item = reader_of(kind.key_type), reader_of(kind.item_type)
        read = _plain if key is item is _plain else lambda cell: [(key(e[0]), item(e[1])) for e in cell.values]
    elif types.is_struct(kind):
        read = _struct_reader(kind)
    elif hasattr(kind, "value_type"):  # lists of all kinds
        inner = reader_of(kind.value_type)
        read = _plain if inner is _plain else lambda cell: [inner(value) for value in cell.values]
    else:
        read = _plain
    return read if read is _plain else lambda cell: read(cell) if cell.is_valid else None


def _text_of_bytes(cell: Any) -> str | bytes:
    """Return the text of bytes, as some programs write texts without their type; the bytes if they are not UTF-8."""
    try:
        return str(cell.as_py(), "utf-8")
    except UnicodeDecodeError:
        return bytes(cell.as_py())


def _struct_reader(kind: Any) -> Callable[[Any], Any]:
    names = [field.name for field in kind]
    twice = next((name for name in names if names.count(name) > 1), None)
    inner = [reader_of(field.type) for field in kind]
    if twice is None and all(read is _plain for read in inner):
        return _plain

    def read(cell: Any) -> Any:
        if twice is not None:
            raise ArgumentError(f"a struct with two fields of one name: {twice!r}")
        return {name: read(cell[i]) for i, (name, read) in enumerate(zip(names, inner, strict=True))}

    return read


def _temporal(cell: Any) -> Any:
    """Return a date, time or duration of Python; if Python cannot hold it, its text in the same format."""
    arrow, _ = import_pyarrow()
    kind = cell.type
    unit: Any = getattr(kind, "unit", "D" if arrow.types.is_date32(kind) else "ms")
    try:
        if unit != "ns":
            return cell.as_py()
        microseconds, nanoseconds = divmod(cell.value, 1000)
        return with_nanoseconds(arrow.scalar(microseconds, _in_microseconds(kind)).as_py(), nanoseconds)
    except (ValueError, OverflowError, LookupError):  # outside Python's years, or in an unknown time zone
        if not arrow.types.is_timestamp(kind) and not arrow.types.is_date(kind):
            return f"{cell.value} {unit}"
        text = str(np.datetime64(cell.value, unit)).replace("T", " ")
        if arrow.types.is_date(kind):
            return text.partition(" ")[0]
        return text + "Z" if kind.tz else text


def _in_microseconds(kind: Any) -> Any:
    arrow, _ = import_pyarrow()
    if arrow.types.is_timestamp(kind):
        return arrow.timestamp("us", kind.tz)
    return arrow.time64("us") if arrow.types.is_time(kind) else arrow.duration("us")


def with_nanoseconds(value: Any, nanoseconds: int) -> str:
    """Return the text of a time in microseconds, with the digits of its nanoseconds added."""
    text = str(value)
    if not nanoseconds:
        return text
    offset = text[19:] if getattr(value, "tzinfo", None) and "." not in text else ""
    whole, _, fraction = text.removesuffix(offset).partition(".")
    return f"{whole}.{fraction[:6] or '000000'}{nanoseconds:03}{fraction[6:]}{offset}"


def cells_of(column: Any) -> list[Any]:
    """Return the cells of a column; `plain` converts each."""
    if _library(column) != "pandas":
        return list(column)
    # tolist() would widen floats, which changes their shortest text.
    return list(column.to_numpy()) if getattr(column.dtype, "kind", "") == "f" else list(column.tolist())


def plain(cell: Any) -> Any:
    """Return a cell as a Python value: None for a missing one, text for a time that Python cannot hold.

    ValueError for bytes that are not UTF-8, and for a cell that Arrow cannot convert.
    """
    if _library(cell) == "pyarrow":
        cell = reader_of(cell.type)(cell)
    elif isinstance(cell, datetime.timedelta) and hasattr(
        cell, "to_timedelta64"
    ):  # a Timedelta of pandas, whose text differs
        cell = cell.to_timedelta64()
    if isinstance(cell, np.generic):
        cell = _own(cell)
    elif hasattr(cell, "__array__"):
        array = np.asarray(cell)
        return list(map(plain, array)) if array.ndim else plain(array[()])
    if isinstance(cell, (bytes, bytearray, memoryview)):
        return bytes(cell).decode()
    if isinstance(cell, dict):
        return {str(name): plain(inner) for name, inner in cell.items()}
    if isinstance(cell, (list, tuple)):
        return list(map(plain, cell))
    try:
        return None if cell is None or bool(cell != cell) else cell
    except (TypeError, ValueError):  # NA of pandas
        return None


def _library(thing: Any) -> str:
    return type(thing).__module__.partition(".")[0]


def _own(scalar: np.generic) -> Any:
    if isinstance(scalar, np.floating):
        return float(str(scalar))  # the shortest text of this float
    if not isinstance(scalar, (np.datetime64, np.timedelta64)) or np.isnat(scalar):
        return scalar.item()
    unit, n_units = np.datetime_data(scalar.dtype)
    number = int(scalar.astype(np.int64)) * n_units
    if unit == "ns":
        microseconds, nanoseconds = divmod(number, 1000)
        return with_nanoseconds(type(scalar)(microseconds, "us").item(), nanoseconds)
    own = scalar.item()
    if not isinstance(own, int):
        return own
    return f"{number} {unit}" if isinstance(scalar, np.timedelta64) else str(scalar).replace("T", " ")


_llamas: dict[tuple[Any, ...], Llama] = {}
_opening = threading.Lock()


def loaded(path: str, n_ctx: int, n_gpu_layers: int, n_threads: int | None) -> Llama:
    """Return the process's Llama for a file and parameters, loaded once; ArgumentError if it cannot be loaded."""
    try:
        stat = os.stat(path)
        file = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
        key = *file, n_ctx, n_gpu_layers, n_threads, os.getpid()
        with _opening:
            if key not in _llamas:
                threads = {} if n_threads is None else {"n_threads": n_threads, "n_threads_batch": n_threads}
                options: dict[str, Any] = {"n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, "verbose": False, **threads}
                _llamas[key] = llama_cpp.Llama(path, **options)
            return _llamas[key]
    except (OSError, ValueError) as error:
        raise ArgumentError(f"model: {error}") from error


COLUMNS = {"label": str, "probability": float, "margin": float, "mass": float, "error": str}
"""The columns that a `Labeller` adds to a batch, in this order: texts, and float64."""


class _Worker(ABC):
    """Answers each row of a batch: a small object that can be pickled, whose model is loaded when it is first called.

    `added` are the columns that it adds, str or float; the last is ``error``.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        prompt: str,
        added: Mapping[str, type],
        columns: Mapping[str, str] | None,
        n_ctx: int,
        n_gpu_layers: int,
        n_threads: int | None,
        n_parallel: int | None,
        options: dict[str, Any],
    ) -> None:
        check_counts(n_ctx=n_ctx)
        if n_parallel is not None:
            check_counts(2, n_parallel=n_parallel)
        for name in ("on_error", "as_ready", "progress", "sets", "probabilities"):
            if name in options:
                raise TypeError(f"{type(self).__name__}() takes no {name!r}")
        unknown = [name for name in columns or {} if name not in added]
        if unknown:
            raise ArgumentError(f"columns: {unknown[0]!r} is none of {', '.join(added)}")
        self.model = os.fspath(model)
        self.template = Template(prompt, has_escapes=False, what="prompt")
        self.added = added
        self.columns = {name: (columns or {}).get(name, name) for name in added}
        self.n_ctx, self.n_gpu_layers, self.n_threads = n_ctx, n_gpu_layers, n_threads
        self.n_parallel = n_parallel
        self.options = options

    @abstractmethod
    def _answers(self, llm: Llama, prompts: Iterator[Any]) -> Iterator[Any]:
        """Yield an answer or a TokenTrieError for each prompt."""

    @abstractmethod
    def _values(self, answer: Any) -> dict[str, Any]:
        """Return the values of the columns, None where there is nothing; texts and numbers."""

    def __call__(self, batch: Any) -> Any:
        """Return a batch with the answers to its rows.

        Parameters
        ----------
        batch : dict of arrays or lists, pandas.DataFrame, or pyarrow.Table or RecordBatch
            The result has the same type. For an empty batch, no model is loaded.
        """
        kind = type(batch).__module__.partition(".")[0]
        if isinstance(batch, Mapping):
            return {**batch, **self._answered(batch.items())}
        if kind == "pandas":
            pandas: Any = sys.modules["pandas"]
            made = self._answered(batch.items())
            return batch.assign(
                **{name: pandas.array(each, "string") if each.dtype == object else each for name, each in made.items()}
            )
        if kind == "pyarrow":
            import pyarrow

            for name, values in self._answered(zip(batch.schema.names, batch.columns, strict=True)).items():
                type_ = pyarrow.string() if values.dtype == object else pyarrow.float64()
                batch = batch.append_column(pyarrow.field(name, type_), pyarrow.array(values, type_))
            return batch
        raise ArgumentError(f"batch: {type(batch).__name__} where a dict, a DataFrame or an Arrow table belongs")

    def _answered(self, named: Iterable[tuple[Any, Any]]) -> dict[str, npt.NDArray[Any]]:
        columns = [(str(name), column) for name, column in named]
        n = self._check(columns)
        given = {name: cells_of(column) for name, column in columns if name in self.template.columns}
        found: dict[str, npt.NDArray[Any]] = {
            name: np.full(n, "", object) if kind is str else np.full(n, np.nan) for name, kind in self.added.items()
        }
        rows: list[int] = []

        def prompts() -> Iterator[Any]:
            for i in range(n):
                try:
                    prompt = self.template.fill({name: _cell(name, cells[i]) for name, cells in given.items()})
                except ArgumentError as error:
                    found["error"][i] = str(error)
                else:
                    rows.append(i)
                    yield prompt

        if n == 0:
            return {self.columns[name]: values for name, values in found.items()}
        llm = loaded(self.model, self.n_ctx, self.n_gpu_layers, self.n_threads)
        for k, answer in enumerate(self._answers(llm, prompts())):
            try:
                if isinstance(answer, TokenTrieError):
                    raise answer
                values = self._values(answer)
            except TokenTrieError as error:
                found["error"][rows[k]] = str(error.__cause__ or error)
                continue
            for name, value in values.items():
                if value is not None:
                    found[name][rows[k]] = value
        return {self.columns[name]: values for name, values in found.items()}

    def _check(self, columns: list[tuple[str, Any]]) -> int:
        """Return the number of rows; ArgumentError for columns that are not those of a batch."""
        names = [name for name, _ in columns]
        self.template.check(names, "batch: ")
        for name in self.template.columns:
            if names.count(name) > 1:
                raise ArgumentError(f"batch: {names.count(name)} columns {name!r}, which the prompt has")
        for name in self.columns.values():
            if name in names:
                raise ArgumentError(f"batch: it has a column {name!r} already; columns={{…}} names another")
        first, n = columns[0][0], _count(*columns[0])
        for name, column in columns:
            if _count(name, column) != n:
                raise ArgumentError(f"batch: column {name!r} has {len(column):,} rows, where {first!r} has {n:,}")
        return n


class Labeller(_Worker):
    r"""Labels each row of a batch with one of a set of choices, by a model's answer to a prompt about the row.

    It is small and can be pickled. A process loads the model when it first labels, once for each file and parameters.
    `COLUMNS` are added to the batch. A row that fails has an ``error``, an empty label and NaN.

    Parameters
    ----------
    model : str or os.PathLike
        A GGUF file, at the same path on all machines.
    prompt : str
        A template with columns in braces, and ``{{`` for a brace. Cells are data: names of control tokens stay text.
    choices
        The labels, as for `choose`, including a `TokenTrie`. A label is the text that the model writes.
    calibration : str, os.PathLike, Calibration, Contextual or Weights, optional
        As for `choose`, except "batch"; or the path of a `Calibration`'s file.
    columns : mapping of str to str, optional
        Other names for columns of `COLUMNS`, for batches that have such columns already.
    n_ctx, n_gpu_layers, n_threads : int
        Parameters of the Llama. Where several workers share a machine, give each its share of the cores.
    n_parallel : int, optional
        As for `choose_many`.
    **options
        Options of `choose`, such as ``leaf_end``, for the modes that give probabilities.

    Raises
    ------
    ArgumentError
        At once: a prompt without columns, wrong choices, options out of range or that do not fit together. When called:
        a column of the prompt is missing or duplicate, an added column exists already, columns differ in length, or the
        model cannot be loaded.
    TypeError
        There is no such option.

    Notes
    -----
    A cell reads the same from numpy, pandas and Arrow: a number has its shortest text, lists and dicts are JSON, bytes
    are UTF-8. A missing value (None, NaN, NaT, NA) is that row's error. Names of columns are converted to texts.

    Examples
    --------
    >>> labeller = Labeller("model.gguf", "Review: {text}\nSentiment:", ["positive", "negative"])  # doctest: +SKIP
    >>> labeller({"text": ["Loved it.", "It broke."]})["label"]                                    # doctest: +SKIP
    array(['positive', 'negative'], dtype=object)
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        prompt: str,
        choices: Any,
        *,
        calibration: Any = None,
        columns: Mapping[str, str] | None = None,
        n_ctx: int = 4096,
        n_gpu_layers: int = 0,
        n_threads: int | None = None,
        n_parallel: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, prompt, COLUMNS, columns, n_ctx, n_gpu_layers, n_threads, n_parallel, options)
        if over_rows(calibration) is not None:
            raise ArgumentError(
                "calibration: 'batch' would depend on how the engine cuts the batches; fit a Calibration of "
                'kind="batch" on some rows, and give that'
            )
        known = None if _is_file(calibration) else calibration
        self.options = {"mode": "exact", "probabilities": True, **options}
        read = ChooseOptions.read("Labeller", {**self.options, "calibration": known})
        self.choices = ChoiceRequest.read(choices, read).choices
        self.calibration = calibration

    def _answers(self, llm: Llama, prompts: Iterator[Any]) -> Iterator[Decision[Any] | TokenTrieError]:
        calibration = Calibration.load(self.calibration) if _is_file(self.calibration) else self.calibration
        options: dict[str, Any] = {**self.options, "calibration": calibration, "n_parallel": self.n_parallel}
        return choose_many(llm, prompts, self.choices, on_error="return", **options)

    def _values(self, answer: Decision[Any]) -> dict[str, Any]:
        probability = None if answer.probabilities is None else answer.probabilities[answer.index]
        return {"label": answer.text, "probability": probability, "margin": answer.margin, "mass": answer.mass}


class RecordColumns:
    """Columns for records that are valid by a schema: one for each property of an object, one for another value.

    Attributes
    ----------
    schema : object
        The JSON Schema.
    types : dict of str to str
        The columns with their types in Arrow: string, int64, float64 or bool, and string where values are not flat.
    """

    def __init__(self, schema: object, taken: Container[str]) -> None:
        template = read_template(schema)
        self.schema = template.schema
        parts = template.node.options if isinstance(template.node, Union) else (template.node,)
        only, *others = [part for part in parts if types_in(part) != {"null"}] or parts
        given = only.fields if isinstance(only, Object) and not others else ()
        self._is_object = bool(given)
        fields = {field.name: field.node for field in given} or {"record": template.node}
        self._column_of: dict[str, str] = {}
        for name in fields:
            column = name
            while column in taken or (column != name and column in fields) or column in self._column_of.values():
                column = f"record_{column}"
            self._column_of[name] = column
        types = (_ARROW_TYPES.get(types_in(node) - {"null"}, "string") for node in fields.values())
        self.types = dict(zip(self._column_of.values(), types, strict=True))

    def values(self, text: str) -> dict[str, Any]:
        """Return the JSON values of a record by their columns; None for an absent one."""
        record = json.loads(text)
        fields = record if self._is_object and isinstance(record, dict) else {"record": record}
        return {column: fields.get(name) for name, column in self._column_of.items()}


_ARROW_TYPES = {
    frozenset({"integer"}): "int64",
    frozenset({"number"}): "float64",
    frozenset({"integer", "number"}): "float64",
    frozenset({"boolean"}): "bool",
}


class Extractor(_Worker):
    r"""Writes a record for each row of a batch, by a model's answer to a prompt about the row.

    It is small and can be pickled, as a `Labeller`. Each property of the schema is a column: numbers are float64, and
    NaN where absent; all other values are texts, empty where absent, and JSON if they are not texts. The last column is
    ``error``, which is empty unless the row failed, as it does by an integer that is no float64.

    Parameters
    ----------
    model, prompt, n_ctx, n_gpu_layers, n_threads, n_parallel
        As for `Labeller`.
    schema
        As for `fill`. A type has to be importable by the workers.
    columns : mapping of str to str, optional
        Other names for the added columns.
    **options
        Options of `fill`, except ``on_text``.

    Raises
    ------
    ArgumentError
        As for `Labeller`; at once for a schema that is not supported.
    TypeError
        There is no such option.

    Examples
    --------
    >>> schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    >>> extractor = Extractor("model.gguf", "{text}\nAs JSON:", schema)    # doctest: +SKIP
    >>> extractor({"text": ["Two, please.", "Seven!"]})["n"]                # doctest: +SKIP
    array([2., 7.])
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        prompt: str,
        schema: Any,
        *,
        columns: Mapping[str, str] | None = None,
        n_ctx: int = 4096,
        n_gpu_layers: int = 0,
        n_threads: int | None = None,
        n_parallel: int | None = None,
        **options: Any,
    ) -> None:
        self.record_columns = RecordColumns(schema, ("error",))
        added = {
            name: float if kind in ("int64", "float64") else str for name, kind in self.record_columns.types.items()
        }
        super().__init__(
            model, prompt, {**added, "error": str}, columns, n_ctx, n_gpu_layers, n_threads, n_parallel, options
        )
        read_for_many("Extractor", "fill", options)
        self.schema = schema

    def _answers(self, llm: Llama, prompts: Iterator[Any]) -> Iterator[Record[Any] | TokenTrieError]:
        return fill_many(llm, prompts, self.schema, on_error="return", n_parallel=self.n_parallel, **self.options)

    def _values(self, answer: Record[Any]) -> dict[str, Any]:
        return {
            name: value if value is None else _number(name, value) if self.added[name] is float else text_of(value)
            for name, value in self.record_columns.values(answer.text).items()
        }


def _number(name: str, value: float) -> float:
    """Return a number of JSON as a float; ArgumentError for an integer that is none."""
    try:
        if float(value) == value:
            return float(value)
    except OverflowError:
        pass
    raise ArgumentError(f"column {name!r}: {value} has more digits than a float64")


def _is_file(calibration: Any) -> bool:
    return isinstance(calibration, (str, os.PathLike))


def _count(name: str, column: Any) -> int:
    if not isinstance(column, Sized) or isinstance(column, (str, bytes)) or getattr(column, "ndim", 1) == 0:
        raise ArgumentError(f"batch: column {name!r} is {type(column).__name__}, where a list or an array belongs")
    return len(column)


def _cell(name: str, cell: Any) -> Any:
    try:
        return plain(cell)
    except UnicodeDecodeError as error:
        raise ArgumentError(f"column {name!r}: not UTF-8 ({error})") from error
    except (ArithmeticError, LookupError, NotImplementedError, ValueError) as error:
        raise ArgumentError(f"column {name!r}: {error}") from error
