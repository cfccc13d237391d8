from __future__ import annotations

import json
import resource
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from commands import Command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from labelling import COMMAND, TEXTS, Cli, without_figures
from token_trie.cli.rows import writer_of
from token_trie.cli.tables import TableRow, open_table


@pytest.mark.parametrize("to", ["csv", "jsonl", "parquet"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1))
def test_wherever_the_file_is_cut_the_run_goes_on(cli: Cli, to: str, cut: float) -> None:
    output = cli.folder / f"out.{to}"
    growing = output.with_name(f"{output.name}.rows") if to == "parquet" else output
    if to == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
    for file in cli.folder.glob("out*"):
        file.unlink()
    table = cli.folder / "in.jsonl"
    lines = [json.dumps({"id": str(i), "text": text}) + "\n" for i, text in enumerate(TEXTS)]
    table.write_text("".join([*lines, "no row\n"]))
    assert cli.label(table, output=output).code == 1
    written = growing.read_bytes()
    growing.write_bytes(beginning := written[: round(cut * len(written))])
    table.write_text("".join(lines))
    done = cli.label(table, "--resume", output=output)
    if done.code == 1:
        # Of a file without a row of it nobody can tell that it is such a run's.
        assert "no row of such a run" in done.err
        assert to == "parquet" or beginning.count(b"\n") == 0
        assert growing.read_bytes() == beginning
        return
    rows = parquet.read_table(output).to_pylist() if to == "parquet" else cli.rows(output)
    assert cli.label(table, output=cli.folder / "out.whole.jsonl").code == 0
    expected = [
        {name: str(value) if to == "csv" else value for name, value in row.items()}
        for row in cli.rows(cli.folder / "out.whole.jsonl")
    ]
    assert without_figures(rows) == without_figures(expected)
    assert f"{len(TEXTS)} rows labelled" in done.err


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.parquet"])
def test_a_run_that_was_killed_goes_on(cli: Cli, name: str) -> None:
    if name == "out.parquet":
        pytest.importorskip("pyarrow")
    output = cli.folder / name
    texts = [f"{text} {i}" for i in range(40) for text in TEXTS]
    table = cli.table(texts)
    command = cli.arguments(table, output=output)
    growing = output.with_name(f"{name}.rows") if name == "out.parquet" else output
    for n_more in (20, 100):
        size = growing.stat().st_size if growing.exists() else 0
        with Command([*command, "--resume"], stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 300
            while not growing.exists() or growing.stat().st_size < size + 60 * n_more:
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        with growing.open("ab") as file:
            file.write(b'7,"half a row')
    done = cli.label(table, "--resume", output=output)
    assert done.code == 0, done.err
    if name == "out.parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(output).to_pylist()
    else:
        rows = cli.rows(output)
    assert [row["text"] for row in rows] == texts
    assert [int(row["row"]) for row in rows] == list(range(1, len(texts) + 1))
    assert f"{len(texts):,} rows labelled" in done.err


@given(st.lists(st.lists(st.text(st.sampled_from('a\r\n",;\t\0 é')), min_size=2, max_size=2)), st.sampled_from(",;\t"))
def test_csv_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, records: list[list[str]], separator: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.csv"
    writer, columns = writer_of("csv", separator, None, {}), [",;a\t", "\r"]
    values = [dict(zip(columns, record, strict=True)) for record in records]
    lines = [writer.encode(columns, TableRow(i, "", row), {}) for i, row in enumerate(values, 1)]
    path.write_bytes(writer.head(columns) + b"".join(lines))
    with closing(open_table(path, "csv", is_cut=True)) as table:
        assert table.columns == columns
        assert [[*row.values.values()] for row in table.rows()] == records
        assert table.read == path.stat().st_size


def test_cells_of_any_length_and_kind_of_line_break_go_on(cli: Cli) -> None:
    table, texts = cli.folder / "in.jsonl", ["a\rb", "x" * 200_000 + "\r", "\r\n"]
    table.write_text("".join(json.dumps({"n": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    assert cli.label(table, "--on-error", "skip", prompt="{n}").code == 0
    assert [row["text"] for row in cli.rows()] == texts
    before = cli.out.read_bytes()
    assert cli.label(table, "--resume", prompt="{n}").code == 0
    assert cli.out.read_bytes() == before


def test_a_whole_table_needs_nothing_more(cli: Cli) -> None:
    table = cli.table(TEXTS)
    cli.label(table)
    before = cli.out.read_bytes()
    assert cli.label(table, "--resume").code == 0
    assert cli.out.read_bytes() == before
    again = cli.label(table)
    assert (again.code, cli.out.read_bytes()) == (1, before)
    assert "exists; continue it with --resume, or remove it" in again.err


def test_the_table_is_not_written_over(cli: Cli) -> None:
    table = cli.table(TEXTS)
    before = table.read_bytes()
    for options in ([], ["--resume"]):
        done = cli.label(table, *options, output=cli.folder / "." / "in.csv")
        assert (done.code, "in.csv' is the file to read; name another one" in done.err) == (1, True)
    assert table.read_bytes() == before


def changed(cli: Cli, what: str) -> tuple[list[str], str]:
    """Arguments that do not go with the file that was written, or that file changed; and what is said of it."""
    table = cli.folder / "in.csv"
    lines = cli.out.read_text().splitlines(keepends=True)
    if what == "choices":
        return [*cli.arguments(table, "--resume"), "-c", "maybe"], "was written with other choices"
    if what == "prompt":
        return cli.arguments(table, "--resume", prompt="{text}?"), "was written with another prompt, option or profile"
    if what == "columns":
        return cli.arguments(table, "--resume", "--probabilities"), "this run writes id, text, answer"
    if what == "foreign":
        cli.out.write_text("name,age\nAnn,7\n")
        return cli.arguments(table, "--resume"), "has the columns name, age; this run writes"
    if what == "broken":
        cli.out.write_text("".join([lines[0], lines[1], "1,2\n", *lines[2:]]))
        return cli.arguments(table, "--resume"), "line 3: 2 fields for 8 columns"
    if what == "twice":
        cli.out.write_text("".join([*lines[:2], *lines[1:]]))
        return cli.arguments(table, "--resume"), "row 1 after row 1"
    if what == "shorter":
        cli.table(TEXTS[:2])
        return cli.arguments(table, "--resume"), "has 2 rows, and row 8 was written before"
    assert what == "table"
    cli.table([*TEXTS[:-1], "another"])
    return cli.arguments(table, "--resume"), "differs from row"


@pytest.mark.parametrize("what", ["choices", "prompt", "columns", "foreign", "broken", "twice", "shorter", "table"])
def test_what_does_not_go_on_with_the_file_is_refused(cli: Cli, what: str) -> None:
    cli.label(cli.table(TEXTS))
    arguments, message = changed(cli, what)
    before = cli.out.read_bytes()
    done = cli.call(arguments)
    assert done.code == 1
    assert message in done.err
    assert cli.out.read_bytes() == before


def limited() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))


def test_where_there_is_no_more_room_the_rows_before_stay(cli: Cli) -> None:
    table = cli.table(TEXTS * 20)
    command = [*COMMAND, *cli.arguments(table)]
    done = subprocess.run(command, capture_output=True, check=False, preexec_fn=limited, timeout=600)
    assert done.returncode == 1
    assert b"File too large" in done.stderr
    assert b"--resume continues after them" in done.stderr
    assert cli.out.stat().st_size == 3000
    assert cli.label(table, "--resume").code == 0
    assert [row["text"] for row in cli.rows()] == TEXTS * 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_device_is_an_error_of_one_line(cli: Cli) -> None:
    done = cli.label(cli.table(TEXTS), "--output-format", "csv", output=Path("/dev/full"))
    assert done.code == 1
    assert "error: /dev/full: No space left on device" in done.err


def test_a_reader_that_leaves_gets_whole_rows_until_then(cli: Cli) -> None:
    table = cli.table(TEXTS * 40)
    command = cli.arguments(table, output=Path("-"))
    with Command(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait(timeout=600) == 1
    assert first == b"id,text,answer,probability,margin,mass,row,run\n"
    assert "Exception ignored" not in err
    assert "Traceback" not in err


def test_an_interrupt_says_how_to_go_on(cli: Cli) -> None:
    table = cli.table(TEXTS * 100)
    command = cli.arguments(table)
    with Command(command, stderr=subprocess.PIPE) as process:
        while not cli.out.exists() or cli.out.stat().st_size < 1000:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        err = process.stderr.read().decode()
        assert process.wait(timeout=600) != 0
    assert "--resume continues after them" in err
    assert "Traceback" not in err
