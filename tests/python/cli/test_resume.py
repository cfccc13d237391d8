"""Runs that go on: beside one another, and with a table that has changed since."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import Command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from labelling import TEXTS, Cli

RECORDS: list[dict[str, Any]] = [{"id": i, "text": text, "more": [0.5, None]} for i, text in enumerate(TEXTS)]
FORMATS = ["csv", "jsonl", "parquet"]


def growing(output: Path) -> Path:
    return output.with_name(f"{output.name}.rows") if output.suffix == ".parquet" else output


def labelled(cli: Cli, output: Path) -> list[dict[str, Any]]:
    if output.suffix == ".parquet":
        return list(pytest.importorskip("pyarrow.parquet").read_table(output).to_pylist())
    return cli.rows(output)


def write(table: Path, records: list[dict[str, Any]]) -> None:
    if table.suffix == ".parquet":
        arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
        parquet.write_table(arrow.Table.from_pylist(records), table)
    else:
        table.write_text("".join(json.dumps(record) + "\n" for record in records))


@dataclass
class Run:
    returncode: int = -1
    said: str = ""


@contextmanager
def halted(command: list[str], output: Path) -> Iterator[Run]:
    """Run a command until it has written something, and halt it; it goes on at the end."""
    run = Run()
    with Command(command, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 300
        while not output.exists() or output.stat().st_size < 2000:
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        try:
            yield run
        finally:
            process.send_signal(signal.SIGCONT)
            run.said = process.communicate(timeout=300)[1].decode()
            run.returncode = process.returncode


@pytest.mark.parametrize("to", FORMATS)
def test_an_output_is_of_one_run_at_a_time(cli: Cli, to: str) -> None:
    if to == "parquet":
        pytest.importorskip("pyarrow")
    output = cli.folder / f"out.{to}"
    texts = [f"{text} {i}" for i in range(100) for text in TEXTS]
    table = cli.table(texts)
    with halted(cli.arguments(table, "--resume", output=output), growing(output)) as first:
        before = growing(output).read_bytes()
        second = cli.label(table, "--resume", output=output)
        assert growing(output).read_bytes() == before
    assert second.code == 1
    assert f"error: --output: another run writes '{growing(output)}'" in second.err
    assert first.returncode == 0
    assert [row["text"] for row in labelled(cli, output)] == texts


def test_runs_that_begin_at_once_make_one_table(cli: Cli) -> None:
    table = cli.table(TEXTS * 20)
    command = cli.arguments(table, "--resume")
    runs = [Command(command, stderr=subprocess.PIPE) for _ in range(3)]
    said = [run.communicate(timeout=600)[1].decode() for run in runs]
    assert 0 in [run.returncode for run in runs]
    assert all(run.returncode == 0 or "another run writes" in err for run, err in zip(runs, said, strict=True))
    assert [row["text"] for row in cli.rows()] == TEXTS * 20


def test_a_file_that_another_run_has_put_away_is_not_gone_on_with(cli: Cli, monkeypatch: Any) -> None:
    table, moved = cli.table(TEXTS), cli.folder / "moved.csv"
    lock = fcntl.flock

    def late(file: Any, how: int) -> None:
        os.replace(cli.out, moved)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    done = cli.label(table, "--resume")
    assert (done.code, "another run writes" in done.err) == (1, True)
    assert moved.read_bytes() == b""


def test_parquet_is_written_before_another_run_may_begin(cli: Cli, monkeypatch: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table, output = cli.table(TEXTS), cli.folder / "out.parquet"

    class Watched(parquet.ParquetWriter):  # type: ignore[misc]
        def close(self) -> None:
            super().close()
            with growing(output).open("rb") as rows, pytest.raises(BlockingIOError):
                fcntl.flock(rows, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(parquet, "ParquetWriter", Watched)
    assert cli.label(table, output=output).code == 0
    assert not growing(output).exists()
    done = cli.label(table, "--resume", output=output)
    assert (done.code, "is complete" in done.err) == (1, True)
    assert not growing(output).exists()


def test_rows_that_are_replaced_under_a_run_do_not_become_its_table(cli: Cli) -> None:
    pytest.importorskip("pyarrow")
    output = cli.folder / "out.parquet"
    table = cli.table([f"{text} {i}" for i in range(100) for text in TEXTS])
    with halted(cli.arguments(table, output=output), growing(output)) as run:
        growing(output).unlink()
        growing(output).write_text("another run's")
    assert run.returncode == 1
    assert "was removed or replaced" in run.said
    assert not output.exists()
    assert growing(output).read_text() == "another run's"


def test_a_parquet_table_reads_its_input_once(cli: Cli) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pipe, output = cli.folder / "pipe", cli.folder / "out.parquet"
    os.mkfifo(pipe)
    command = cli.arguments(pipe, "--input-format", "csv", output=output)
    with Command(command, stderr=subprocess.PIPE) as process:
        pipe.write_bytes(cli.table(TEXTS).read_bytes())
        said = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 0, said
    assert parquet.read_table(output).column("text").to_pylist() == TEXTS


CHANGES = {"text": st.sampled_from(["", "other"]), "id": st.sampled_from([None, 70]), "more": st.just([0.5])}


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("of", ["jsonl", "parquet"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, len(TEXTS) - 2), change=st.sampled_from(sorted(CHANGES)), data=st.data())
def test_a_change_in_any_row_before_is_seen(cli: Cli, of: str, to: str, place: int, change: str, data: Any) -> None:
    if "parquet" in (of, to):
        pytest.importorskip("pyarrow")
    table, output = cli.folder / f"in.{of}", cli.folder / f"out.{to}"
    for file in cli.folder.glob("out*"):
        file.unlink()
    write(table, [*RECORDS, {"id": 8, "text": None, "more": []}])
    assert "nothing in column 'text'" in cli.label(table, output=output).err
    before = growing(output).read_bytes()

    whole = [*RECORDS, {"id": 8, "text": "mended", "more": []}]
    changed = {**whole[place], change: data.draw(CHANGES[change].filter(lambda value: value != whole[place][change]))}
    write(table, [*whole[:place], changed, *whole[place + 1 :]])
    done = cli.label(table, "--resume", output=output)
    assert done.code == 1
    where = f"line {place + 1}" if of == "jsonl" else f"row {place + 1}"
    assert f"error: {table}, {where} differs from row {place + 1} of '{growing(output)}'; the table" in done.err
    assert growing(output).read_bytes() == before

    # The order of an object's keys says nothing.
    write(table, [dict(reversed(record.items())) for record in whole] if of == "jsonl" else whole)
    assert cli.label(table, "--resume", output=output).code == 0
    assert [row["text"] for row in labelled(cli, output)] == [*TEXTS, "mended"]


def test_a_run_of_another_model_of_the_same_name_and_size_is_not_gone_on_with(cli: Cli) -> None:
    table = cli.table(TEXTS)
    cli.label(table)
    other = cli.folder / "other" / cli.model.name
    other.parent.mkdir()
    tensors = bytearray(cli.model.read_bytes())
    tensors[-64] ^= 1
    other.write_bytes(tensors)
    cli.model = other
    done = cli.label(table, "--resume", prompt="another: {text}")
    assert (done.code, "was written with another model" in done.err) == (1, True)
