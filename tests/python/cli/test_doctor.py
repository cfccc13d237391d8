from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import child_process
import commands
import gguf
import pytest
from tiny_model import write_tiny_model


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return commands.run("doctor", *options)


def findings(*options: str, works: bool = True) -> dict[str, Any]:
    done = run("--json", *options)
    assert done.returncode == (0 if works else 1), done.stderr
    told = json.loads(done.stdout)
    assert told["works"] is works
    assert all(found["verdict"] == "good" or found["change"] for found in told["findings"])
    return {found["about"]: found for found in told["findings"]}


def test_a_model_that_is_fit_is_said_to_be(model_paths: dict[str, Path]) -> None:
    found = findings("-m", str(model_paths["smollm2"]))
    for about in ("cache", "chat template", "end tokens", "labels", "context", "questions", "memory"):
        assert found[about]["verdict"] == "good", found[about]
    assert "134,515,008 parameters" in found["model"]["text"]
    assert "<|im_end|> (2)" in found["end tokens"]["text"]
    assert "52 of 52" in found["labels"]["text"]
    assert "8,192" in found["context"]["text"]
    assert " ms for a question about " in found["speed"]["text"]
    assert "92 MiB of weights, 180 MiB for 8,192 tokens (22.5 KiB a token)" in found["memory"]["text"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="sets processors of Linux")
def test_without_an_option_there_are_no_more_threads_than_processors_that_the_process_may_use(
    model_paths: dict[str, Path],
) -> None:
    code = f"""
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from pathlib import Path
from token_trie.cli.options import ModelOptions
llm = ModelOptions(model=Path({str(model_paths["tiny"])!r})).load(64)
assert (llm.n_threads, llm.n_threads_batch) == (1, 1)
"""
    child_process.run(model_paths["tiny"], code)


def test_what_a_model_lacks_is_reported_with_what_to_change(model_paths: dict[str, Path]) -> None:
    found = findings("-m", str(model_paths["recurrent"]), "--threads", str((os.cpu_count() or 1) + 1))
    expected = {
        "chat template": "chat_format",
        "labels": "letters",
        "context": "long states",
        "questions": "it guesses",
        "threads": "--threads ",
    }
    assert {about: found[about]["verdict"] for about in expected} == dict.fromkeys(expected, "fair")
    for about, change in expected.items():
        assert change in found[about]["change"]
    assert "64 states of " in found["cache"]["text"]


def test_a_turn_that_ends_with_no_end_token_is_seen(tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<turn_end>{% endfor %}"
    model = tmp_path / "turns.gguf"
    write_tiny_model(model, more=[("<turn_end>", gguf.TokenType.CONTROL)], said={"tokenizer.chat_template": template})
    found = findings("-m", str(model))
    assert found["end tokens"]["verdict"] == "fair"
    assert "turns end with <turn_end> (" in found["end tokens"]["change"]


def test_a_model_that_writes_nothing_is_not_asked(tmp_path: Path) -> None:
    model = tmp_path / "embedding.gguf"
    write_tiny_model(model, said={"llama.attention.causal": False})
    found = findings("-m", str(model), works=False)
    assert found["model"]["verdict"] == "poor"
    assert "questions" not in found


def test_a_table_has_a_line_each(model_paths: dict[str, Path]) -> None:
    done = run("-m", str(model_paths["tiny"]), "--n-gpu-layers", "-1")
    assert done.returncode == 0, done.stderr
    assert "✓ end tokens" in done.stdout
    assert "! chat template" in done.stdout
    assert "→ give prompts as text" in done.stdout
