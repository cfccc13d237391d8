from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import token_trie
import typer
from token_trie.cli import app

README = Path(__file__).parents[2] / "README.md"
DOCS = README.parent / "docs"
MAKEFILE = README.parent / "Makefile"

pytestmark = pytest.mark.skipif(not README.exists(), reason="needs the source tree")


def blocks(language: str, page: Path = README) -> list[str]:
    fenced = re.findall(r"^```([^\n`]*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [block for named, block in fenced if named == language]


def run(page: Path, **namespace: object) -> None:
    for block in blocks("python", page):
        exec(compile(block, page.name, "exec", dont_inherit=True), namespace)


def test_the_python_of_the_readme_and_of_the_first_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run(README)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "Paris 0"
    assert printed[1].startswith("Mood.BAD 0.")
    run(DOCS / "index.md")
    assert capsys.readouterr().out == "Paris\n"


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 175


def test_the_python_of_the_page_on_python_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    run(DOCS / "python.md")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Mood.BAD negative -0.")
    assert "Paris, of course | Paris" in printed
    assert printed[-1] == "descriptors[0].leaves[0].tokens[1]: 300000 is outside the vocabulary (49152 tokens)"


def test_the_plan_of_the_page_on_python_says_the_same_alone_about_many_rows_after_a_text_and_as_a_task(
    precise: Any,
) -> None:
    (block,) = (block for block in blocks("python", DOCS / "python.md") if "def triage" in block)
    said: dict[str, Any] = {"llm": precise, "StreamHandle": token_trie.StreamHandle}
    exec(block.replace("range(2, 12)", "range(2, 202)").replace("print(", "found = (handle.tokens, "), said)
    assert len(said["many"]) == 200
    for team, urgent, reply in (said["many"][0], said["task"]):
        assert (team, reply) == (said["alone"][0], said["alone"][2])
        assert urgent == pytest.approx(said["alone"][1], abs=1e-4)
    assert said["found"][1] == said["alone"][0]


def test_the_python_of_the_page_on_records_and_tools_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run(DOCS / "records.md")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Alarm(hour=")
    assert "user Do I need an umbrella in Oslo?" in printed


def test_the_python_of_the_page_on_engines_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run(DOCS / "engines.md")
    assert capsys.readouterr().out == "[7]\n[2 9]\n"


def test_the_python_of_the_page_on_sets_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(DOCS / "sets.md")
    assert capsys.readouterr().out.startswith("3 ['READ', 'READ_FILE', 'SEND_EMAIL'] ")
    if importlib.util.find_spec("torch") is not None:
        (block,) = (block for block in blocks("py", DOCS / "engines.md") if block.startswith("import torch\n"))
        exec(compile(block, "engines.md", "exec", dont_inherit=True), {"TokenTrie": token_trie.TokenTrie})


def test_the_python_of_the_page_on_questions_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(DOCS / "decide.md")
    printed = capsys.readouterr().out
    assert printed.startswith("billing {'billing': 0.")
    assert "fitted" in printed


def test_the_cpp_of_the_readme_is_the_program_that_the_page_on_c_builds_and_runs() -> None:
    (block,) = blocks("c++")
    assert blocks('cpp title="choose.cpp"', DOCS / "c.md") == [block]


def test_the_docs_are_14_pages_of_2400_lines() -> None:
    pages = [*DOCS.rglob("*.md")]
    assert len(pages) <= 14
    assert sum(len(page.read_text().splitlines()) for page in pages) <= 2400


COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
PAGES = [README, *sorted((README.parent / ".github").glob("*.md")), *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_command_of_a_page_exists(page: Path) -> None:
    for command in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE):
        assert re.search(rf"^[a-z- ]*\b{command}\b.*:", MAKEFILE.read_text(), re.MULTILINE), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = link.partition("#")
        if file.startswith(("http", "mailto")):
            continue
        target = page.parent / file if file else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_of_the_command_line_on_a_page_exists(page: Path) -> None:
    lines = "\n".join(blocks("sh", page) + blocks("", page)).replace("\\\n", " ").splitlines()
    for line in lines:
        found = re.search(r"\btoken-trie ([a-z-]+)(.*?)(?:$|\s[#|]|\s&)", line)
        if found is None or found[1].startswith("-"):
            continue
        command = COMMANDS[found[1]]
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", re.sub(r"(\"[^\"]*\"|'[^']*')", "x", found[2])):
            assert option in options, line
