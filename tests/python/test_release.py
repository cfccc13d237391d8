from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "release-check"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="needs the source tree")


def test_every_line_of_the_threat_model_names_an_existing_test() -> None:
    page = (SCRIPT.parents[1] / "docs" / "promises.md").read_text().partition("\n## Threats\n")[2]
    lines = [line for line in page.splitlines() if line.startswith("|")][2:]
    assert all("::" in line for line in lines)
    assert list(runpy.run_path(str(SCRIPT))["threats"]()) == []


def test_the_files_of_a_release_have_one_version() -> None:
    found = [problem for problem in runpy.run_path(str(SCRIPT))["problems"]() if "has version" in problem]
    assert [problem for problem in found if not problem.startswith("CHANGELOG")] == []
