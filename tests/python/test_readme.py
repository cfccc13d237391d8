from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import llama_cpp
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
    assert len(README.read_text().splitlines()) <= 150


def test_the_python_of_the_page_on_python_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    run(DOCS / "python.md")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Mood.BAD negative -0.")
    assert printed[-2] == "descriptors[0].leaves[0].tokens[1]: 300000 is outside the vocabulary (49152 tokens)"
    assert printed[-1] == "Paris, of course | Paris"


def test_the_loop_of_the_page_on_tools_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run(DOCS / "tools.md")
    assert capsys.readouterr().out.startswith("user Do I need an umbrella in Oslo?\nassistant ")


def test_the_python_of_the_engines_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run(DOCS / "engines.md")
    assert capsys.readouterr().out == "[7]\n[2 9]\n"


def test_the_python_of_the_page_on_questions_runs(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    for block in blocks("python", DOCS / "questions.md"):
        exec(compile(block, "questions.md", "exec", dont_inherit=True), namespace)
    assert capsys.readouterr().out.startswith("billing {'billing': 0.")


def test_the_python_of_the_page_on_trust_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_paths: dict[str, Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("token_trie.demo_model", lambda: str(model_paths["tiny"]))
    (block,) = blocks("python", DOCS / "trust.md")
    exec(compile(block, "trust.md", "exec", dont_inherit=True), {})
    assert "fitted" in capsys.readouterr().out


def test_the_python_of_the_page_on_catalogues_runs(
    smollm2: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    has_torch = importlib.util.find_spec("torch") is not None
    namespace: dict[str, object] = {"llm": smollm2}
    for block in blocks("python", DOCS / "catalogues.md"):
        if has_torch or "import torch" not in block:
            exec(compile(block, "catalogues.md", "exec", dont_inherit=True), namespace)
    assert "Paris" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_the_cpp_of_the_readme_compiles(tmp_path: Path) -> None:
    (block,) = blocks("c++")
    lines = block.splitlines()
    includes = [line for line in lines if line.startswith("#")]
    body = [line for line in lines if not line.startswith("#")]
    parameters = "const llama_vocab * vocab, const char * payload_json, llama_sampler * chain"
    source = tmp_path / "readme.cpp"
    source.write_text("\n".join(["#include <cstdio>", *includes, f"void run({parameters}) {{", *body, "}"]))
    ours = Path(token_trie.__file__).parent / "include"
    theirs = Path(llama_cpp.__file__).parents[1] / "include"
    subprocess.run(
        ["c++", "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", f"-I{ours}", f"-I{theirs}", str(source)], check=True
    )


def test_the_reference_of_the_command_line_is_what_its_help_says() -> None:
    page = DOCS / "reference" / "command-line.md"
    make = [sys.executable, "-m", "typer", "token_trie.cli", "utils", "docs", "--name", "token-trie"]
    made = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    assert page.read_text().strip() == made.strip(), f"python -m typer {' '.join(make[3:])} --output {page.name}"


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
