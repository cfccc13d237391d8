"""Bodies that nobody means well with: whatever comes, the answer is a 4xx at worst, and in time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from serving import Serving

pytest.importorskip("schemathesis", reason="needs Python 3.11")
CASES = os.environ.get("HOSTILE_CASES", "8")  # of each operation, about


def test_cases_made_from_the_description_are_answered_or_refused(model: Path, tmp_path: Path) -> None:
    with Serving(model, "--time-limit", "2") as serving:
        command = [str(Path(sys.executable).with_name("st")), "run", f"{serving.url}/openapi.json"]
        checks = ["--checks", "not_a_server_error", "--request-timeout", "30", "--phases", "fuzzing"]
        command += [*checks, "--max-examples", CASES]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout[-4000:]
        assert httpx.get(f"{serving.url}/health").status_code == 200
