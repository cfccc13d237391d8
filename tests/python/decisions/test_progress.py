from typing import Any

import pytest
from token_trie.decisions.progress import Progress


def run(n: int, wanted: bool = True) -> None:
    with Progress(n, "prompts", wanted=wanted) as shown:
        for i in range(1, n + 1):
            shown.move(i)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("token_trie.decisions.progress.SECONDS_BETWEEN_LINES", 0.0)


def test_where_there_is_no_terminal_lines_say_how_far_it_is(capsys: Any) -> None:
    run(7)
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.split(",")[0] for line in said.err.splitlines()] == [f"{n} prompts" for n in range(1, 8)]
    assert said.err.endswith("(100%)\n")


def test_on_a_terminal_a_bar_does(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    run(7)
    assert "7 prompts" in capsys.readouterr().err


def test_nothing_is_shown_that_nobody_wants(capsys: Any) -> None:
    run(7, wanted=False)
    assert capsys.readouterr() == ("", "")
