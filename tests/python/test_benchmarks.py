from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "docs/results").glob("*.json"))

pytestmark = pytest.mark.skipif(not RESULTS, reason="needs the source tree")


def test_the_page_of_benchmarks_is_made_of_the_results_beside_it(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs/results", tmp_path / "docs/results")
    files = [str(path.relative_to(ROOT)) for path in RESULTS]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "bench", "page", *files], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "docs/benchmarks.md").read_text() == (ROOT / "docs/benchmarks.md").read_text()


def test_the_help_explains_every_mode() -> None:
    modes = [path.stem for path in (ROOT / "bench/modes").glob("[!_]*.py") if path.stem != "strict"]
    modes += ["strict-guided", "strict-trie-ffi"]
    command = [sys.executable, "-m", "bench", "--help"]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert [mode for mode in modes if f"{mode}: " not in shown] == []


def test_the_figures_that_the_readme_opens_with_are_of_these_results() -> None:
    files = (ROOT / f"docs/results/{mode}.json" for mode in ("sampler", "decide", "score"))
    run, decisions, scores = (json.loads(file.read_text()) for file in files)
    readme = (ROOT / "README.md").read_text()
    for each in (run, decisions, scores):
        assert each["command"].partition(" --output")[0] in readme.replace("\n", " ")
    (chosen,) = (table for table in scores["tables"] if table["title"].startswith("choose without a mode"))
    (ms,) = (row[chosen["columns"].index(">ms")] for row in chosen["rows"] if "gemma" in row[0] and "30" in row[1])
    assert f"with a proof | {ms} ms |" in readme
    table = re.search(r"\| constraint a token .*?\n\n", readme, re.DOTALL)
    assert table is not None
    lines = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in table[0].splitlines()[2:] if line]
    lines = [line for line in lines if not line[0].startswith("`choose`")]
    contenders = {"no constraint": "unconstrained", "GBNF in llama.cpp": "GBNF", "token-trie": "token-trie"}
    contenders |= {name: f"{name} (torch.compile)" for name in ("llguidance", "xgrammar")}
    modes = {"unconstrained": "free", "GBNF": "strict-guided", "token-trie": "strict-trie-ffi"}
    gemma = {row["mode"]: row[">p50"] for row in decisions["rows"] if "gemma" in row["model"] and "30" in row["set"]}
    seen = set()
    for who, decision, *figures in lines:
        (name,) = (value for key, value in contenders.items() if who.startswith(key))
        assert decision == (f"{gemma[modes[name]]:.1f} ms" if name in modes else "")
        for quantity, shown in zip(("mask", "step", "build"), figures, strict=True):
            if shown:
                measured = median(run["rows"], name, quantity)
                digits = len(shown.partition(".")[2].partition(" ")[0])
                assert shown == f"{measured:,.{digits}f} µs", (who, quantity)
                seen.add((name, quantity))
    assert len(seen) == 13


def median(rows: list[dict[str, Any]], contender: str, quantity: str) -> float:
    (row,) = (
        row
        for row in rows
        if row["set"] == "30 actions" and (row["contender"], row["quantity"]) == (contender, quantity)
    )
    return float(row["median_us"])
