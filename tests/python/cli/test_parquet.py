from __future__ import annotations

import datetime
import json
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from labelling import Cli, without_figures
from token_trie.engines.data import reader_of

arrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")

NANOSECONDS = 1_600_000_000_123_456_789
EVE = datetime.datetime(2020, 9, 13, 12, 26, 40, 123456)


def column(values: list[Any], storage: Any, kind: Any) -> Any:
    return arrow.array(values, storage).cast(kind)


def times() -> Any:
    days, seconds = arrow.int32(), arrow.int64()
    inside = arrow.list_(arrow.struct([("t", arrow.timestamp("ns"))]))
    return arrow.table(
        {
            "text": ["good", "bad", "so so"],
            "ns": column([NANOSECONDS, NANOSECONDS // 1000 * 1000, None], seconds, arrow.timestamp("ns")),
            "second": column([NANOSECONDS // 10**9 * 10**9 + 1, 0, -1], seconds, arrow.timestamp("ns")),
            "zone": column([NANOSECONDS, 10**9, 0], seconds, arrow.timestamp("ns", "Europe/Berlin")),
            "time": column([1, 1000, None], seconds, arrow.time64("ns")),
            "inside": arrow.array([[{"t": NANOSECONDS}], [], None], inside),
            "pairs": arrow.array([[("a", 1)], [], None], arrow.map_(arrow.string(), arrow.time64("ns"))),
            "day": column([2**31 - 1, 0, -(10**9)], days, arrow.date32()),
            "year": column([2**53, 0, -(2**53)], seconds, arrow.timestamp("ms", "Mars/Olympus")),
            "us": column([NANOSECONDS // 1000, 0, 1], seconds, arrow.timestamp("us")),
            "long": column([2**62, 1, None], seconds, arrow.duration("s")),
        }
    )


AS_TEXT = {
    "ns": ["2020-09-13 12:26:40.123456789", "2020-09-13 12:26:40.123456", None],
    "second": ["2020-09-13 12:26:40.000000001", "1970-01-01 00:00:00", "1969-12-31 23:59:59.999999999"],
    "zone": ["2020-09-13 14:26:40.123456789+02:00", "1970-01-01 01:00:01+01:00", "1970-01-01 01:00:00+01:00"],
    "time": ["00:00:00.000000001", "00:00:00.000001", None],
    "inside": [[{"t": "2020-09-13 12:26:40.123456789"}], [], None],
    "pairs": [[["a", "00:00:00.000000001"]], [], None],
    "day": ["5881580-07-11", "1970-01-01", "-2735938-12-29"],
    "year": ["287396-10-12 08:59:00.992Z", "1970-01-01 00:00:00.000Z", "-283457-03-21 15:00:59.008Z"],
    "us": [str(EVE), "1970-01-01 00:00:00", "1970-01-01 00:00:00.000001"],
    "long": ["4611686018427387904 s", "0:00:01", None],
}


def test_times_that_python_has_not_are_their_exact_text(cli: Cli) -> None:
    table, output = cli.folder / "in.parquet", cli.folder / "out.jsonl"
    parquet.write_table(times(), table)
    done = cli.label(table, output=output, prompt="{text} {zone} {day}")
    assert done.code == 0, done.err
    rows = cli.rows(output)
    assert {name: [row[name] for row in rows] for name in AS_TEXT} == AS_TEXT
    before = output.read_bytes()
    assert cli.label(table, "--resume", output=output, prompt="{text} {zone} {day}").code == 0
    assert output.read_bytes() == before


BIG = 2**63 - 1
DURATION = re.compile(r"(?:(-?\d+) days?, )?(\d+):(\d\d):(\d\d)(?:\.(\d+))?|(-?\d+) s")


def seconds(text: str) -> Fraction:
    """Read a duration, or the time of a day."""
    found = DURATION.fullmatch(text)
    assert found is not None, text
    days, hours, minutes, rest, behind, whole = found.groups()
    if whole:
        return Fraction(int(whole))
    parts = int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(rest)
    return parts + Fraction(int(behind or 0), 10 ** len(behind or ""))


@given(
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.one_of(st.integers(-BIG, BIG), st.integers(-(10**11), 10**11), st.integers(-BIG // 10**9, BIG // 10**9)),
)
def test_the_text_of_a_time_is_exact(unit: str, value: int) -> None:
    def read(number: int, storage: Any, kind: Any) -> str:
        (cell,) = column([number], storage, kind)
        return str(reader_of(kind)(cell))

    text = read(value, arrow.int64(), arrow.timestamp(unit))
    assert np.datetime64(text.replace(" ", "T"), unit).astype(int) == value
    if abs(value) < 2**31:
        text = read(value, arrow.int32(), arrow.date32())
        assert np.datetime64(text, "D").astype(int) == value
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    text = read(value, arrow.int64(), arrow.duration(unit))
    assert text == f"{value} {unit}" or seconds(text) == Fraction(value, per_second)
    if unit in ("us", "ns") and 0 <= value < 86400 * per_second:
        assert seconds(read(value, arrow.int64(), arrow.time64(unit))) == Fraction(value, per_second)


def test_the_columns_of_a_parquet_table_stay_as_they_are(cli: Cli) -> None:
    table, output = cli.folder / "in.parquet", cli.folder / "out.parquet"
    whole = times().append_column("float", arrow.array([float("nan"), float("inf"), None]))
    whole = whole.append_column("category", arrow.array(["a", "b", None]).dictionary_encode())
    whole = whole.append_column(
        arrow.field("large", arrow.large_binary(), nullable=False), arrow.array([b"\xff", b"", b"x"], "large_binary")
    )
    whole = whole.append_column("decimal", arrow.array([1, None, 3], arrow.decimal128(20, 3)))
    whole = whole.replace_schema_metadata({"whose": "mine"})
    whole = arrow.concat_tables([whole] * 150)
    parquet.write_table(whole, table)
    expected = parquet.read_table(table)
    kept = [i for i in range(450) if i % 3 != 2]
    assert cli.label(table, "--on-error", "skip", output=output, prompt="{text} {ns}").code == 0
    found = parquet.read_table(output)
    assert found.column("row").to_pylist() == [i + 1 for i in kept]
    own = found.select(expected.column_names)
    assert own.schema.equals(expected.schema, check_metadata=True)
    assert own.drop_columns(["float"]).equals(expected.take(kept).drop_columns(["float"]))
    assert str(own.column("float").to_pylist()) == str(expected.take(kept).column("float").to_pylist())


def test_a_struct_with_two_fields_of_one_name_makes_a_bad_row(cli: Cli) -> None:
    table, output = cli.folder / "in.parquet", cli.folder / "out.jsonl"
    twice = arrow.StructArray.from_arrays(
        [arrow.array([1, 2]), arrow.array([3, 4])], names=["a", "a"], mask=arrow.array([False, True])
    )
    parquet.write_table(arrow.table({"text": ["x", "y"], "pair": twice}), table)
    done = cli.label(table, output=output)
    assert done.code == 1
    assert "in.parquet, row 1: a struct with two fields of one name: 'a'" in done.err
    assert cli.label(table, "--resume", "--on-error", "skip", output=output).code == 0
    assert [(row["text"], row["pair"]) for row in cli.rows(output)] == [("y", None)]


def test_bytes_are_the_text_that_they_spell(cli: Cli) -> None:
    table, outputs = cli.folder / "in.parquet", [cli.folder / name for name in ("text.jsonl", "bytes.jsonl")]
    for output, kind in zip(outputs, (arrow.string(), arrow.binary()), strict=True):
        columns = {"text": arrow.array(["naïve", "x"], kind), "tags": arrow.array([["é"], None], arrow.list_(kind))}
        parquet.write_table(arrow.table(columns), table)
        assert cli.label(table, "--on-error", "skip", output=output, prompt="{text} {tags}").code == 0
    texts, spelled = map(cli.rows, outputs)
    assert texts == spelled
    parquet.write_table(arrow.table({"text": [b"x", b"\xff"]}), table)
    done = cli.label(table, output=cli.folder / "other.jsonl", prompt="{text}")
    assert "row 2: column 'text', which the prompt has: bytes that are not UTF-8" in done.err


@pytest.mark.parametrize("to", ["jsonl", "csv", "parquet"])
def test_numbers_that_are_none_are_null_in_json(cli: Cli, to: str) -> None:
    table, output = cli.folder / "in.parquet", cli.folder / f"out.{to}"
    numbers = [float("nan"), float("inf"), -float("inf"), 0.5]
    columns = {"text": list("abcd"), "n": numbers, "deep": [[{"n": n}] for n in numbers]}
    parquet.write_table(arrow.table(columns), table)
    assert cli.label(table, output=output, prompt="{text} {n}").code == 0
    if to == "parquet":
        rows = parquet.read_table(output).to_pylist()
        assert str([row["n"] for row in rows]) == str(numbers)
    else:
        rows = cli.rows(output)
        nulls = [None, None, None, 0.5]
        texts = ["NaN", "Infinity", "-Infinity", "0.5"]
        assert [row["n"] for row in rows] == (texts if to == "csv" else nulls)
        deep = [json.loads(row["deep"]) if to == "csv" else row["deep"] for row in rows]
        assert deep == [[{"n": n}] for n in nulls]
        assert cli.label(table, "--resume", output=output, prompt="{text} {n}").code == 0
    assert len(without_figures(rows)) == 4
