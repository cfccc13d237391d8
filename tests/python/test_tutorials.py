from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = [
    pytest.mark.skipif(not DOCS.exists(), reason="needs the source tree"),
    pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash"),
]


def without_numbers(text: str) -> str:
    """Return a text with a mark for each number and digest, and one space for several."""
    return re.sub(r"\s+", " ", re.sub(r"[0-9a-f]{8}(-[0-9a-f]{8})+|\d[\d.,–]*(e-\d+)?", "#", text))


def follow(title: str, folder: Path, page: str = "tutorial.md") -> str:
    """Run the commands of a section of a page in an empty folder, and return their output, which the page shows."""
    section = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE
    )
    assert section is not None
    script = ["set -eu"]
    for file, text, commands in re.findall(r'```\w+ title="(.*?)"\n(.*?)```|```sh\n(.*?)```', section[1], re.DOTALL):
        if file:
            (folder / file).write_text(text)
        else:
            script.append(commands)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for shown in re.findall(r"```text\n(.*?)```", section[1], re.DOTALL):
        assert without_numbers(shown) in without_numbers(done.stdout)
    return done.stdout


def test_a_table_is_labelled_evaluated_and_labelled_better(tmp_path: Path) -> None:
    printed = follow("Label a table", tmp_path).splitlines()
    assert printed[0].startswith("id,text,value,probability,confidence,mass")
    rows = (tmp_path / "routed.csv").read_text().splitlines()
    assert [row.split(",")[2] for row in rows[1:]] == ["billing", *["technical"] * 3]
    rows = (tmp_path / "better.csv").read_text().splitlines()
    assert [row.split(",")[2] for row in rows[1:]] == ["billing", "technical"] * 2


def test_an_agent_calls_tools_until_it_answers(tmp_path: Path) -> None:
    printed = follow("An agent with tools", tmp_path).strip()
    assert printed.startswith("get_weather {'city': 'Oslo'}\n")
    assert printed.count("get_weather {") <= 4


@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("node") is None, reason="needs curl and node")
def test_decisions_are_served_to_javascript(tmp_path: Path) -> None:
    team, urgent = follow("Decisions over HTTP, from JavaScript", tmp_path).splitlines()
    assert team.startswith("billing { billing: 0.")
    assert 0 <= float(urgent) <= 1


def test_a_catalogue_is_chosen_from(tmp_path: Path) -> None:
    printed = follow("A catalogue with a filter", tmp_path).splitlines()
    assert printed[-2:] == ["A10530 Green wool scarf by Fjord no", "A00530 Red wool scarf by Fjord yes"]


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_cpp_program_is_built_and_ends_with_its_answer(tmp_path: Path) -> None:
    assert follow("A whole program", tmp_path, "c.md").endswith("\n play_music\n")
