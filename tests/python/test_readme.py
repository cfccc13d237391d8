from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
import token_trie

README = Path(__file__).parents[2] / "README.md"
MAKEFILE = README.parent / "Makefile"

pytestmark = pytest.mark.skipif(not README.exists(), reason="needs the source tree")


def blocks(language: str, page: Path = README) -> list[str]:
    return re.findall(rf"```{re.escape(language)}\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_python_of_the_readme_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec", dont_inherit=True), namespace)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "Paris 0"
    assert printed[1].startswith("Mood.BAD negative -0.")
    assert printed[-2] == "descriptors[0].leaves[0].tokens[1]: 300000 is outside the vocabulary (49152 tokens)"
    assert printed[-1] == "Paris, of course | Paris"


def test_the_python_of_the_engines_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("python", README.parent / "docs" / "engines.md")
    exec(compile(block, "engines.md", "exec", dont_inherit=True), {})
    assert capsys.readouterr().out == "[7]\n[2 9]\n"


def test_the_python_of_the_page_on_questions_runs(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    for block in blocks("python", README.parent / "docs" / "questions.md"):
        exec(compile(block, "questions.md", "exec", dont_inherit=True), namespace)
    assert capsys.readouterr().out.startswith("billing {'billing': 0.")


def test_the_python_of_the_page_on_trust_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("python", README.parent / "docs" / "trust.md")
    exec(compile(block, "trust.md", "exec", dont_inherit=True), {})
    assert "fitted" in capsys.readouterr().out


def test_the_python_of_the_page_on_catalogues_runs(
    smollm2: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    has_torch = importlib.util.find_spec("torch") is not None
    namespace: dict[str, object] = {"llm": smollm2}
    for block in blocks("python", README.parent / "docs" / "catalogues.md"):
        if has_torch or "import torch" not in block:
            exec(compile(block, "catalogues.md", "exec", dont_inherit=True), namespace)
    assert "Paris" in capsys.readouterr().out


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


def test_every_make_command_of_the_readme_exists() -> None:
    for command in re.findall(r"^make (\S+)", README.read_text(), re.MULTILINE):
        assert re.search(rf"^{command}:", MAKEFILE.read_text(), re.MULTILINE), command
