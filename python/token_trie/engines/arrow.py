"""Cells of Arrow as values of Python; one that no type of Python holds, such as nanoseconds, as its exact text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import methodcaller
from typing import Any

import numpy as np

from token_trie.errors import ArgumentError

_plain: Callable[[Any], Any] = methodcaller("as_py")


def import_pyarrow() -> tuple[Any, Any]:
    """Import it, or say what to install."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ArgumentError(f"Parquet tables need pyarrow: pip install 'token-trie[tables]' ({error})") from error
    return pyarrow, pyarrow.parquet


@cache
def reader_of(kind: Any) -> Callable[[Any], Any]:
    """Return a function that makes a value of Python of a cell, a ``pyarrow.Scalar`` of this type.

    For a cell that Python has no value for, the function raises ArgumentError, or what ``as_py`` raises.
    """
    types = import_pyarrow()[0].types
    read: Callable[[Any], Any]
    if types.is_temporal(kind):
        read = _temporal
    elif types.is_float16(kind) or types.is_float32(kind):
        narrow = kind.to_pandas_dtype()
        read = lambda cell: float(str(narrow(cell.as_py())))  # noqa: E731 - the shortest that is read as this one
    elif types.is_dictionary(kind):
        inner = reader_of(kind.value_type)
        read = _plain if inner is _plain else lambda cell: inner(cell.value)
    elif types.is_map(kind):
        key, item = reader_of(kind.key_type), reader_of(kind.item_type)
        read = _plain if key is item is _plain else lambda cell: [(key(e[0]), item(e[1])) for e in cell.values]
    elif types.is_struct(kind):
        read = _struct_reader(kind)
    elif hasattr(kind, "value_type"):  # lists of all kinds
        inner = reader_of(kind.value_type)
        read = _plain if inner is _plain else lambda cell: [inner(value) for value in cell.values]
    elif hasattr(kind, "storage_type"):  # extensions
        inner = reader_of(kind.storage_type)
        read = _plain if inner is _plain else lambda cell: inner(cell.value)
    else:
        read = _plain
    return read if read is _plain else lambda cell: read(cell) if cell.is_valid else None


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
    """Return Python's own date, time or duration where it has it, else its text in the same form."""
    arrow, _ = import_pyarrow()
    kind = cell.type
    unit: Any = getattr(kind, "unit", "D" if arrow.types.is_date32(kind) else "ms")
    try:
        if unit != "ns":
            return cell.as_py()
        microseconds, nanoseconds = divmod(cell.value, 1000)
        return with_nanoseconds(arrow.scalar(microseconds, _in_microseconds(kind)).as_py(), nanoseconds)
    except (ValueError, OverflowError, LookupError):  # out of Python's years, or in a time zone that is not known here
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
    """Return the text of a time in microseconds with what is behind these."""
    text = str(value)
    if not nanoseconds:
        return text
    offset = text[19:] if getattr(value, "tzinfo", None) and "." not in text else ""
    whole, _, behind = text.removesuffix(offset).partition(".")
    return f"{whole}.{behind[:6] or '000000'}{nanoseconds:03}{behind[6:]}{offset}"
