from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from token_trie.engines.data import cells_of, plain
from token_trie.sets.prompt import text_of

pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")

NANOSECOND = 1_704_164_645_000_000_001


def texts(column: Any) -> list[str | None]:
    cells = map(plain, cells_of(column))
    return [None if cell is None else text_of(cell) for cell in cells]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (np.array([0.1, np.nan, 1e20], np.float32), ["0.1", None, "1e+20"]),
        (np.array([0.1, 2], np.float16), ["0.1", "2.0"]),
        (np.array([0.1, 1e300]), ["0.1", "1e+300"]),
        (np.array([2**63 - 1]), ["9223372036854775807"]),
        (np.array([True, False]), ["true", "false"]),
        (np.array(["a", None], object), ["a", None]),
        (np.array([b"caf\xc3\xa9"]), ["café"]),
        (np.array(["2024-01-02T03:04:05", "NaT"], "datetime64[ns]"), ["2024-01-02 03:04:05", None]),
        (np.array(["2024-01-02T03:04:05.25"], "datetime64[ms]"), ["2024-01-02 03:04:05.250000"]),
        (np.array([NANOSECOND], "datetime64[ns]"), ["2024-01-02 03:04:05.000000001"]),
        (np.array([5, 86_401], "timedelta64[s]"), ["0:00:05", "1 day, 0:00:01"]),
        (np.array([5_000_000_000, "NaT"], "timedelta64[ns]"), ["0:00:05", None]),
        (np.array([-1], "timedelta64[ns]"), ["-1 day, 23:59:59.999999999"]),
        (np.array([datetime.date(2024, 1, 2), None], object), ["2024-01-02", None]),
        (np.array([Decimal("1.50")], object), ["1.50"]),
        (np.array([{"a": 1, "b": ["x"]}], object), ['{"a": 1, "b": ["x"]}']),
    ],
    ids=lambda given: str(given.dtype) if isinstance(given, np.ndarray) else "",
)
def test_a_cell_reads_the_same_from_numpy_pandas_and_arrow(column: np.ndarray, expected: list[str | None]) -> None:
    assert texts(column) == expected
    assert texts(list(column)) == expected
    assert texts(pandas.Series(column)) == expected
    assert texts(pandas.DataFrame({"column": column})["column"].iloc[::-1]) == expected[::-1]
    in_arrow = arrow.array(column)
    for held in (in_arrow, arrow.chunked_array([in_arrow]), list(in_arrow), in_arrow.to_pandas()):
        assert texts(held) == expected


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([np.array([5]), np.array([5, 6])], ["[5]", "[5, 6]"]),
        ([np.array([np.nan]), np.array([])], ["[null]", "[]"]),
        ([np.array([0.1], np.float32)], ["[0.1]"]),
        ([np.array(["hi", None], object)], ['["hi", null]']),
        ([np.array(["2024-01-02"], "datetime64[ns]")], ['["2024-01-02 00:00:00"]']),
    ],
)
def test_arrays_in_cells_are_lists(lists: list[Any], expected: list[str]) -> None:
    column = np.empty(len(lists), object)
    column[:] = lists
    in_arrow = arrow.array(lists)
    for held in (lists, column, pandas.Series(lists), in_arrow, in_arrow.to_pandas()):
        assert texts(held) == expected
    assert texts(np.array([[1, 2], [3, 4]])) == ["[1, 2]", "[3, 4]"]


def test_narrow_floats_have_their_own_text_wherever_they_are() -> None:
    small = arrow.array([0.1, None], arrow.float32())
    for column in (
        small,
        small.dictionary_encode(),
        pandas.Series([0.1, None], dtype="Float32"),
        pandas.Series(small, dtype=pandas.ArrowDtype(arrow.float32())),
    ):
        assert texts(column) == ["0.1", None]
    struct = arrow.array(
        [{"a": 0.1, "b": [0.1]}], arrow.struct({"a": arrow.float32(), "b": arrow.list_(arrow.float32())})
    )
    assert texts(struct) == ['{"a": 0.1, "b": [0.1]}']


def test_cells_of_extensions_and_runs_read_as_their_values() -> None:
    lists = arrow.array([[0.1, 2], None], arrow.list_(arrow.float32(), 2))
    tensors = arrow.ExtensionArray.from_storage(arrow.fixed_shape_tensor(arrow.float32(), [2]), lists)
    assert texts(tensors) == ["[0.1, 2.0]", None]
    runs = arrow.RunEndEncodedArray.from_arrays([1, 2], arrow.array([0.1, None], arrow.float32()))
    assert texts(runs) == ["0.1", None]
    uuids = arrow.ExtensionArray.from_storage(arrow.uuid(), arrow.array([b"0" * 16], arrow.binary(16)))
    assert texts(uuids) == ["30303030-3030-3030-3030-303030303030"]
    assert texts(arrow.array([b"caf\xc3\xa9"], arrow.binary_view())) == ["café"]


def test_time_zones_are_kept() -> None:
    column = pandas.Series(pandas.to_datetime(["2024-01-02T03:04:05.5"]).tz_localize("Europe/Rome"))
    assert texts(column) == texts(arrow.array(column)) == ["2024-01-02 03:04:05.500000+01:00"]


def test_times_beyond_those_of_python_are_their_exact_text() -> None:
    column = np.array(["20000-01-02T03:04:05"], "datetime64[s]")
    assert texts(column) == texts(arrow.array(column)) == ["20000-01-02 03:04:05"]
    column = np.array([2**60], "timedelta64[s]")
    assert texts(column) == texts(arrow.array(column)) == [f"{2**60} s"]


def test_a_text_that_means_nothing_is_none() -> None:
    for nothing in (
        None,
        float("nan"),
        np.float32("nan"),
        np.datetime64("NaT"),
        pandas.NaT,
        pandas.NA,
        arrow.scalar(None),
    ):
        assert plain(nothing) is None


def test_bytes_that_are_no_text_are_refused() -> None:
    for cell in (b"\xff", np.bytes_(b"\xff"), arrow.scalar(b"\xff")):
        with pytest.raises(UnicodeDecodeError):
            plain(cell)
