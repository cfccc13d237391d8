"""The requests of docs/serve.md, as they are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from serving import Serving

PAGE = Path(__file__).parents[3] / "docs" / "serve.md"

pytestmark = pytest.mark.skipif(not PAGE.exists() or shutil.which("curl") is None, reason="needs the tree, and curl")


def test_the_requests_of_the_page_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    shell = "\n".join(text for language, text in blocks if language == "sh")
    folder = re.findall(r"^(?:mkdir|echo) .*$", shell, re.MULTILINE)
    subprocess.run(["sh", "-c", "\n".join(folder)], check=True)
    with Serving(None, "--sets", "sets") as server:
        requests = re.findall(r"^curl .*?'$", shell, re.DOTALL | re.MULTILINE)
        assert len(requests) == 4
        for request in requests:
            command = request.replace("localhost:8000", server.url.removeprefix("http://"))
            done = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True)
            assert "error" not in json.loads(done.stdout), done.stdout
        for source in (text for language, text in blocks if language == "python"):
            exec(compile(source.replace("http://localhost:8000", server.url), PAGE.name, "exec"), {})
    assert capsys.readouterr().out.split()[0] in ("billing", "technical")


def test_each_sampler_that_the_page_says_is_left_out_is_listed(url: str) -> None:
    (row,) = re.findall(r"^\|.*`mirostat`.*\|$", PAGE.read_text(), re.MULTILINE)
    names = re.findall(r"`(\w+)`", row)
    assert len(names) == 10
    body = {"prompt": "a", "max_tokens": 1, **dict.fromkeys(names, 2)}
    told = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
    assert sorted(told["choices"][0]["x_ignored"]) == sorted(names)
