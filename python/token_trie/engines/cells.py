"""Cells of columns as Python's own values: a cell reads the same from numpy, pandas and Arrow."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from token_trie.engines.arrow import reader_of, with_nanoseconds


def cells_of(column: Any) -> list[Any]:
    """Return a column's cells, each for `plain`."""
    if _library(column) != "pandas":
        return list(column)
    # As tolist() widens floats, whose shortest text is then another.
    return list(column.to_numpy()) if getattr(column.dtype, "kind", "") == "f" else list(column.tolist())


def plain(cell: Any) -> Any:
    """Return a cell as Python's own; None for what stands for none, and text for a time that Python cannot hold.

    Raises
    ------
    ValueError
        Bytes are no UTF-8, or what Arrow has cannot be read.
    """
    if _library(cell) == "pyarrow":
        cell = reader_of(cell.type)(cell)
    elif isinstance(cell, datetime.timedelta) and hasattr(cell, "to_timedelta64"):  # pandas', written in its own way
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
    except (TypeError, ValueError):  # of pandas' NA
        return None


def _library(thing: Any) -> str:
    return type(thing).__module__.partition(".")[0]


def _own(scalar: np.generic) -> Any:
    if isinstance(scalar, np.floating):
        return float(str(scalar))  # the shortest that is read as this one
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
