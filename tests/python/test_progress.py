import fcntl
import os
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import pytest
import token_trie
from token_trie.errors import ArgumentError
from token_trie.progress import Progress


def run(n: int, wanted: bool = True) -> None:
    with Progress(n, "prompts", wanted=wanted) as shown:
        for i in range(1, n + 1):
            shown.move(i)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("token_trie.progress.SILENT_SECONDS", 1e-9)
    monkeypatch.setattr("token_trie.progress.SECONDS_BETWEEN_LINES", 0.0)


@contextmanager
def terminal() -> Iterator[list[str]]:
    """Make standard error a terminal; afterwards, the list holds what was written to it."""
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    drawn: list[str] = []
    with os.fdopen(reader, "rb", 0) as screen, os.fdopen(writer, "w", encoding="utf-8") as file:
        with redirect_stderr(file):
            yield drawn
        file.write("end")
        file.flush()
        text = ""
        while not text.endswith("end"):
            text += screen.read(4096).decode()
        drawn.append(text.removesuffix("end"))


@pytest.mark.usefixtures("often")
def test_without_a_terminal_lines_report_the_progress(capsys: Any) -> None:
    run(7)
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.split(",")[0] for line in said.err.splitlines()] == [f"{n} prompts" for n in range(1, 8)]
    assert said.err.endswith("(100%)\n")


@pytest.mark.usefixtures("often")
def test_on_a_terminal_a_bar_shows_progress_and_is_removed_at_the_end() -> None:
    with terminal() as drawn, Progress(7, "prompts") as shown:
        for n in range(1, 8):
            shown.move(n)
            shown._bar.refresh()
    assert "100%|" in drawn[0]
    assert "7 prompts" in drawn[0]
    assert "\n" not in drawn[0]
    *_, last, rest = drawn[0].split("\r")
    assert (last.strip(), rest) == ("", "")


@pytest.mark.usefixtures("often")
def test_a_line_written_beside_a_bar_is_on_a_line_of_its_own() -> None:
    with terminal() as drawn, Progress(7, "prompts") as shown:
        shown.move(3)
        shown._bar.refresh()
        shown.clear()
        print("row 4: empty", file=sys.stderr)
    before, _, _ = drawn[0].partition("row 4: empty")
    assert "3 prompts" in before
    assert before.split("\r")[-1] == ""


@pytest.mark.usefixtures("often")
def test_records_show_their_tokens_before_the_first_is_done_and_then_the_time_left(llm: Any, capsys: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "required": ["a", "b"],
    }
    prompts = [f"Mail {i}: the order of {i} red scarfs is late.\nJSON:" for i in range(4)]
    records = list(token_trie.fill_many(llm, prompts, schema, max_tokens=12, n_parallel=2, progress=True))
    assert len(records) == 4
    lines = [line.split(", ") for line in capsys.readouterr().err.splitlines()]
    n_done = [int(line[0].split()[0]) for line in lines]
    n_tokens = [int(line[1].split()[0]) for line in lines if line[1].endswith(" tokens")]
    assert n_done == sorted(n_done)
    assert (n_done[0], n_done[-1]) == (0, 4)
    assert n_tokens == sorted(n_tokens)
    n_all = sum(one.stats.n_prompt + one.stats.n_tokens for one in records)
    assert n_all - len(records) <= n_tokens[-1] <= n_all  # the end of a record may be forced after its last answer
    before = [line for line, n in zip(lines, n_done, strict=True) if n == 0 and line[1].endswith(" tokens")]
    assert len(before) >= 2
    assert all(line[-1].startswith("at least ") and line[-1].endswith(" left") for line in before)
    assert all((" left" in line[-1]) == (n < 4) for line, n in zip(lines, n_done, strict=True) if n > 0)


@pytest.mark.usefixtures("often")
def test_what_has_begun_tells_how_long_all_takes_at_least(monkeypatch: Any, capsys: Any) -> None:
    seconds = iter((0.0, 10.0, 10.0, 20.0, 20.0))
    monkeypatch.setattr("token_trie.progress.time.monotonic", lambda: next(seconds))
    with Progress(60, "prompts") as shown:
        shown.move(0, 0.0, 500, 16)
        shown.move(1, 1.5, 900, 16)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("(0%), at least 28 s left")  # 10 s for 16 of 60
    assert lines[1].endswith("(2%), 13 min left")


def test_a_run_of_less_than_a_second_shows_nothing(capsys: Any) -> None:
    with terminal() as drawn:
        run(7)
    assert drawn == [""]
    run(7)
    assert capsys.readouterr() == ("", "")


def test_where_standard_error_is_closed_nothing_is_shown(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    run(7)


@pytest.mark.usefixtures("often")
def test_without_progress_nothing_is_shown(capsys: Any) -> None:
    run(7, wanted=False)
    assert capsys.readouterr() == ("", "")


def test_without_tqdm_progress_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    run(7, wanted=False)
    with pytest.raises(ArgumentError, match=r"pip install 'token-trie\[cli\]'"):
        run(7)
