"""The table that is written: rows are appended, and rows that are there are not answered again."""

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
from token_trie.cli.tables import Table, csv_line


@pytest.mark.parametrize("to", ["csv", "jsonl"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0.05, 1))
def test_wherever_the_file_is_cut_the_run_continues(cli: Cli, to: str, cut: float) -> None:
    output, whole = cli.folder / f"out.{to}", cli.folder / f"whole.{to}"
    for file in (output, whole):
        file.unlink(missing_ok=True)
    table = cli.table(TEXTS)
    assert cli.label(table, output=whole).code == 0
    written = whole.read_bytes()
    head = written.index(b"\n") + 1 if to == "csv" else 0
    output.write_bytes(written[: head + round(cut * (len(written) - head))])
    done = cli.label(table, output=output)
    assert done.code == 0, done.err
    assert without_figures(cli.rows(output)) == without_figures(cli.rows(whole))


@given(st.lists(st.lists(st.text(st.sampled_from('a\r\n",;\t\0 é')), min_size=2, max_size=2)), st.sampled_from(",;\t"))
def test_csv_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, records: list[list[str]], separator: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.csv"
    columns = [",;a\t", "\r"]
    path.write_bytes(b"".join(csv_line(cells, separator) for cells in [columns, *records]))
    with closing(Table(path, "csv", is_cut=True)) as table:
        assert table.columns == columns
        assert [[*row.values.values()] for row in table.rows()] == records
        assert table.read == path.stat().st_size


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_rows_that_are_there_are_not_answered_again(cli: Cli, name: str) -> None:
    output = cli.folder / name
    assert cli.label(cli.table(["Pizza", "Paris", "Pizza"]), output=output).code == 0
    before = output.read_bytes()
    done = cli.label(cli.table(["Pizza", "Paris", "Pizza"]), output=output)
    assert (done.code, output.read_bytes()) == (0, before)
    assert "0 rows labelled, 3 were there already" in done.err
    # One row is new, and one has changed; the order does not matter.
    table = cli.folder / "in.csv"
    table.write_text("id,text\n2,Pizza\n1,Paris, France\n3,new\n0,Pizza\n".replace("Paris, France", '"Paris, France"'))
    done = cli.label(table, output=output)
    assert "2 rows labelled, 2 were there already" in done.err
    assert output.read_bytes().startswith(before)
    assert [row["text"] for row in cli.rows(output)] == ["Pizza", "Paris", "Pizza", "Paris, France", "new"]


def test_equal_rows_are_answered_once_each(cli: Cli) -> None:
    table = cli.folder / "in.csv"
    table.write_text("text\n" + "Pizza\n" * 2)
    assert cli.label(table).code == 0
    table.write_text("text\n" + "Pizza\n" * 5)
    assert "3 rows labelled, 2 were there already" in cli.label(table).err
    assert len(cli.rows()) == 5


def test_cells_of_any_length_and_kind_of_line_break_are_known_again(cli: Cli) -> None:
    table, texts = cli.folder / "in.jsonl", ["a\rb", "x" * 200_000 + "\r", "\r\n"]
    table.write_text("".join(json.dumps({"n": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    assert cli.label(table, "--on-error", "skip", prompt="{n}").code == 0
    assert [row["text"] for row in cli.rows()] == texts
    before = cli.out.read_bytes()
    assert cli.label(table, prompt="{n}").code == 0
    assert cli.out.read_bytes() == before


def test_the_table_is_not_written_over(cli: Cli) -> None:
    table = cli.table(TEXTS)
    before = table.read_bytes()
    done = cli.label(table, output=cli.folder / "." / "in.csv")
    assert (done.code, "is another file of this command" in done.err) == (1, True)
    assert table.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, ["--probabilities"], "this run writes id, text, answer, probability, margin, mass, p_yes"),
        ("name,age\nAnn,7\n", [], "has the columns name, age, and this run writes id, text"),
        ("id,text,answer,probability,margin,mass\n1,2\n1,2\n", [], "line 2: 2 fields for 6 columns"),
    ],
)
def test_a_file_of_something_else_is_refused(cli: Cli, content: str | None, options: list[str], message: str) -> None:
    table = cli.table(TEXTS)
    if content is None:
        cli.label(table)
    else:
        cli.out.write_text(content)
    before = cli.out.read_bytes()
    done = cli.label(table, *options)
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
    assert b"the same command continues after them" in done.stderr
    assert cli.out.stat().st_size == 3000
    assert cli.label(table).code == 0
    assert [row["text"] for row in cli.rows()] == TEXTS * 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_device_is_an_error_of_one_line(cli: Cli) -> None:
    done = cli.label(cli.table(TEXTS), output=Path("/dev/full"))
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
    assert first == b"id,text,answer,probability,margin,mass\n"
    assert "Exception ignored" not in err
    assert "Traceback" not in err


def test_an_interrupt_says_how_to_continue(cli: Cli) -> None:
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
    assert "the same command continues after them" in err
    assert "Traceback" not in err
