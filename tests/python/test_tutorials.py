from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorials.md"

pytestmark = [
    pytest.mark.skipif(not PAGE.exists(), reason="needs the source tree"),
    pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash"),
]


def follow(title: str, folder: Path) -> str:
    """Run the commands of a tutorial in an empty folder, and return their output."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert section is not None
    script = ["set -eu"]
    for file, text, commands in re.findall(r'```python title="(.*?)"\n(.*?)```|```sh\n(.*?)```', section[1], re.DOTALL):
        if file:
            (folder / file).write_text(text)
        else:
            script.append(commands)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_table_is_labelled(tmp_path: Path) -> None:
    printed = follow("Label a table", tmp_path).splitlines()
    assert printed[0].startswith("id,text,value,probability,confidence,mass")
    for name in ("routed.csv", "better.csv"):
        rows = (tmp_path / name).read_text().splitlines()
        assert len(rows) == 5
        assert all("billing" in row or "technical" in row for row in rows[1:])


def test_an_agent_takes_its_turn(tmp_path: Path) -> None:
    name, done = follow("An agent's turn", tmp_path).splitlines()
    assert re.match(r"weather \{'city': '(Oslo|Paris|Rome)'\}|set_alarm \{'hour': -?\d+, 'minute': -?\d+\}", name)
    assert done.startswith(("weather of ", "alarm at "))


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_decisions_are_served(tmp_path: Path) -> None:
    assert "billing" in follow("Decisions over HTTP", tmp_path)


def test_a_catalogue_is_chosen_from(tmp_path: Path) -> None:
    printed = follow("A catalogue", tmp_path).splitlines()
    assert printed[-2].strip() == "Green wool scarf"
    assert "scarf" not in printed[-1]
