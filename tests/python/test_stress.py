from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("TOKEN_TRIE_STRESS_SECONDS", "16"))
"""Seconds of all runs together; longer runs find more."""


@pytest.mark.parametrize(("model", "seed"), [("tiny", 0), ("tiny", 1), ("recurrent", 0), ("hybrid", 0)])
def test_calls_of_many_threads_end_with_the_right_answers_or_our_errors(
    model_paths: dict[str, Path], model: str, seed: int
) -> None:
    script = Path(__file__).parent / "support" / "thread_stress.py"
    seconds = SECONDS / 4
    command = [sys.executable, str(script), str(model_paths[model]), str(seed), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 300, check=False)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr[-8000:]}"
    counts = ast.literal_eval(done.stdout)
    assert counts["right"] > 0, counts
    assert "InternalError" not in counts, counts
