from __future__ import annotations

import csv
import re
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelling import Cli
from token_trie.cli.tables import Table
from token_trie.errors import ArgumentError


def bad_table(cli: Cli, kind: str) -> tuple[Path, dict[int, str]]:
    """Return a table with three good rows, and what is said of lines that are bad."""
    path = cli.folder / f"in.{kind}"
    if kind == "csv":
        path.write_bytes(
            b'id,text\n0,good\n1,caf\xe9\n\n2,"two\nlines"\n3\n4,a,b\n5,nul\0\n6,' + b"x " * 3000 + b"\n7,good\n8, \n"
        )
        return path, {
            3: "not UTF-8; convert it: iconv -f CP1252 -t UTF-8 < OLD > NEW",
            7: "1 fields for 2 columns",
            8: "3 fields for 2 columns",
            9: "NUL",
            10: "tokens do not fit the context of 512",
            12: "nothing to read in text",
        }
    lines: list[bytes] = [
        b'{"text": "good"}',
        b'{"text": "caf\xe9"}',
        b"",
        b'{"text": "good", "n": {"deep": 1}}',
        b'{"text": 1',
        b"[1]",
        b'{"text": NaN}',
        b'{"text": null}',
        b'{"txt": "x"}',
        b'{"text": "\\ud800"}',
        b"[" * 100_000,
        b'{"text": "x", "answer": 1}',
        b'{"text": "x", "n": [-1e999]}',
        b'{"text": 7.5}',
        b'{"text": " "}',
    ]
    path.write_bytes(b"\n".join(lines))
    return path, {
        2: "not UTF-8",
        5: "not JSON",
        6: "list instead of an object",
        7: "NaN is not JSON",
        8: "nothing in column 'text'",
        9: "no column 'text', which the prompt has; there are txt",
        10: "not UTF-8",
        11: "not JSON",
        12: "column 'answer' has the name of an added column; rename the added columns with --prefix",
        13: "not JSON",
        15: "nothing to read in text",
    }


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_bad_rows_are_named_by_their_lines_and_left_out(cli: Cli, kind: str) -> None:
    table, said = bad_table(cli, kind)
    output = cli.folder / f"out.{kind}"
    done = cli.label(table, "--on-error", "skip", output=output)
    assert done.code == 0, done.err
    reported = [line for line in done.err.splitlines() if line.startswith(f"{table}, line ")]
    assert len(reported) == len(said)
    for line, message in said.items():
        (one,) = (report for report in reported if report.startswith(f"{table}, line {line}: "))
        assert message in one
    rows = cli.rows(output)
    assert [row["text"] for row in rows] == (["good", "two\nlines", "good"] if kind == "csv" else ["good", "good", 7.5])
    assert f"3 rows labelled, {len(said)} left out" in done.err
    before = output.read_bytes()
    done = cli.label(table, "--on-error", "skip", output=output)
    assert (done.code, output.read_bytes()) == (0, before)
    assert f"0 rows labelled, 3 were there already, {len(said)} left out" in done.err


def test_a_bad_row_ends_the_run_after_those_before(cli: Cli) -> None:
    table, _ = bad_table(cli, "csv")
    done = cli.label(table)
    assert done.code == 1
    assert f"error: {table}, line 3: not UTF-8" in done.err
    assert "--on-error skip leaves such rows out" in done.err
    assert [row["text"] for row in cli.rows()] == ["good"]
    assert cli.label(table, "--on-error", "skip").code == 0
    assert [row["id"] for row in cli.rows()] == ["0", "2", "7"]


@pytest.mark.parametrize(
    ("ending", "lines", "message"),
    [
        ('2,"un"quoted,\n', "line 4", "',' expected after '\"'"),
        ('2,"she said\n"hi",\n', "lines 4 to 5", "',' expected after '\"'"),
        ("2,a\rb,\n", "line 4", "a carriage return without a line break, outside of quotes; the rest"),
        ('2,"never closed,\n', "lines 4 to 6", "unexpected end of data inside of quotes"),
    ],
)
def test_where_a_row_ends_is_never_guessed(cli: Cli, ending: str, lines: str, message: str) -> None:
    table = cli.folder / "in.csv"
    beginning = 'id,text,note\n0,"two\nlines",\n'
    table.write_bytes((beginning + ending + "3,good,\n4,good,\n").encode())
    done = cli.label(table, "--on-error", "skip")
    assert done.code == 1
    assert f"error: {table}, {lines}: {message}" in done.err
    assert [row["id"] for row in cli.rows()] == ["0"]
    table.write_text(beginning + "2,mended,\n3,good,\n4,good,\n")
    assert cli.label(table).code == 0
    assert [row["id"] for row in cli.rows()] == ["0", "2", "3", "4"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("name", ["in.csv", "in.jsonl", "choices.txt"])
def test_a_text_in_utf16_is_refused_with_what_to_do(cli: Cli, name: str, encoding: str) -> None:
    table, path = cli.table(["good"]), cli.folder / name
    text = {"in.csv": "id,text\r\n0,good\r\n", "in.jsonl": '{"text": "good"}\n', "choices.txt": "yes\nno\n"}[name]
    path.write_bytes(text.encode(encoding))
    done = cli.label(table, "--choices-file", str(path)) if name == "choices.txt" else cli.label(path)
    assert done.code == 1
    assert f"error: {path}: not UTF-8 but UTF-16 or UTF-32; convert it: iconv" in done.err
    assert not (cli.out.exists() and cli.rows())


@pytest.mark.parametrize("text", ["id,text\r0,good\r1,good\r", '"text"\r"good"\r', "text\rgood"])
def test_a_table_whose_lines_end_in_carriage_returns_is_refused_with_what_to_do(cli: Cli, text: str) -> None:
    path = cli.folder / "in.csv"
    path.write_bytes(text.encode())
    done = cli.label(path, "--on-error", "skip")
    assert done.code == 1
    assert f"error: {path}: line 1: a carriage return without a line break, outside of quotes" in done.err
    assert "tr '\\r' '\\n'" in done.err
    path.write_bytes(path.read_bytes().replace(b"\r", b"\n"))
    assert cli.label(path, "--on-error", "skip").code == 0


@pytest.mark.parametrize(("separator", "name"), [(";", "in.csv"), ("\t", "in.csv"), ("\t", "in.tsv")])
def test_a_table_of_a_spreadsheet_keeps_its_separator(cli: Cli, separator: str, name: str) -> None:
    lines = ["text;date;a,b", '"to; Paris, now";2026-01-05;', '"no ""tab""";;3,5', ""]
    table, output = cli.folder / name, cli.folder / name.replace("in", "out")
    table.write_text("\ufeff" + "\r\n".join(line.replace(";", separator) for line in lines), "utf-8")
    assert cli.label(table, "-p", "{text} {date}", output=output).code == 0
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter=separator))
    assert [(row["text"].replace("\t", ";"), row["date"], row["a,b"]) for row in rows] == [
        ("to; Paris, now", "2026-01-05", ""),
        ('no "tab"', "", "3,5"),
    ]
    whole = output.read_bytes()
    output.write_bytes(whole[: whole.index(b"\n", whole.index(b"\n") + 1) + 1])
    assert cli.label(table, "-p", "{text} {date}", output=output).code == 0
    assert output.read_bytes() == whole


def test_a_semicolon_in_a_name_separates_nothing(cli: Cli) -> None:
    table = cli.folder / "in.csv"
    for head in ("text,first;second,n", '"text; of a mail",m,n'):
        table.write_text(f"{head}\nParis,1,2\n")
        with closing(Table(table, "csv")) as opened:
            assert [*next(opened.rows()).values.values()] == ["Paris", "1", "2"]


def test_a_name_that_leaves_the_separator_open_is_refused_except_where_the_ending_says_it(cli: Cli) -> None:
    for head, row, what in (("sum, net;to", "12,5;Anna", "',' as ';'"), ("a\tb, c", "1,2\tx", "',' as '\\t'")):
        table = cli.folder / "in.csv"
        table.write_text(f"{head}\n{row}\n")
        done = cli.label(table, prompt="{a}")
        assert (done.code, f"line 1: as many {what} outside of quotes" in done.err) == (1, True)
    table = table.rename(cli.folder / "in.tsv")
    with closing(Table(table, "csv")) as opened:
        assert [row.values for row in opened.rows()] == [{"a": "1,2", "b, c": "x"}]


@settings(max_examples=500)
@given(st.text(st.sampled_from('ab",\n\r')))
def test_csv_is_read_as_by_a_reader_of_its_grammar(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.csv"
    path.write_bytes(b"a,b\n" + text.encode())
    found: list[list[str] | None] = []
    is_whole = True
    with closing(Table(path, "csv")) as table:
        try:
            for row in table.rows():
                found.append(list(row.values.values()) if row.bad is None else None)
        except ArgumentError:
            is_whole = False
    # A field with quotes has nothing beside them and doubles those inside; one without has no line break.
    field = r'"(?:[^"]|"")*"|(?!")[^,\r\n]*'
    record = re.compile(rf"((?:{field})(?:,(?:{field}))*)\r*(?:\n|\Z)")
    expected: list[list[str] | None] = []
    end = 0
    while end < len(text) and (match := record.match(text, end)):
        end = match.end()
        if match[1]:
            fields = re.findall(rf"(?:\A|,)({field})", match[1])
            fields = [one[1:-1].replace('""', '"') if one.startswith('"') else one for one in fields]
            expected.append(fields if len(fields) == 2 else None)
    assert found == expected
    assert is_whole == (end == len(text))


def test_a_cell_may_be_as_long_as_a_book(cli: Cli) -> None:
    book = '7,"of ""pages""\n' * 40_000
    assert len(book) > 4 * 131_072
    table = cli.folder / "in.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["text", "note"], ["a", book], [book, ""], ["b", "short"]])
    done = cli.label(table, "--on-error", "skip")
    assert done.code == 0, done.err
    assert [(row["text"], row["note"]) for row in cli.rows()] == [("a", book), ("b", "short")]
    assert f"{table}, line 40003: " in done.err
    assert "2 rows labelled, 1 left out" in done.err


def test_json_of_other_columns_than_the_first_is_no_row_of_csv(cli: Cli) -> None:
    table = cli.folder / "in.jsonl"
    table.write_text('{"text": "a", "n": [1]}\n{"text": "b", "m": 1}\n{"text": "c"}\n')
    done = cli.label(table, "--on-error", "skip")
    assert "line 2: column 'm', which the first row does not have" in done.err
    assert [(row["text"], row["n"]) for row in cli.rows()] == [("a", "[1]"), ("c", "")]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", [], "empty; a CSV table begins with a line of column names"),
        (b"id,name\n1,2\n", [], "in.csv: no column 'text', which the prompt has; there are id, name"),
        (b"text,text\n", [], "two columns have the same name: 'text'"),
        (b"text,answer\n", [], "column 'answer' has the name of an added column"),
        (b"\xff\xfet\0e\0x\0t\0\n", [], "in.csv: not UTF-8 but UTF-16"),
        (b'"text\n', [], "line 1: unexpected end of data"),
        (b"text\n", ["-p", "no column"], "--prompt: no {column} in it"),
        (b"text\n", ["-p", "{text"], "--prompt: expected '}'"),
        (b"text\n", ["-c", ""], "choices[3]: empty"),
        (
            b"text\n",
            ["-o", "out.txt"],
            "out.txt: the format is not clear from the name (.csv, .tsv, .jsonl, .ndjson)",
        ),
        (b"text\n", ["-o", "out.xlsx"], "save the spreadsheet as 'CSV UTF-8'"),
        (b"text\n", ["-o", "/nowhere/out.csv"], "--output: no folder '/nowhere'"),
        (b"text\n", ["--prompt-file", "p.txt"], "--prompt and --prompt-file: use only one of them"),
        (b"text\n", ["-m", "nowhere.gguf"], "--model: no file 'nowhere.gguf'"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_writes_nothing(
    cli: Cli, content: bytes, options: list[str], message: str
) -> None:
    table = cli.folder / "in.csv"
    table.write_bytes(content)
    done = cli.label(table, *options)
    assert done.code == 1
    assert message in done.err
    assert "Traceback" not in done.err
    assert not cli.out.exists()
