from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from token_trie import TokenTrie


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from token_trie.cli import main; main()", *args]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, env={"COLUMNS": "120"}, timeout=900
    )


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    path = tmp_path / "payload.json"
    path.write_text(
        TokenTrie.from_sequences({"READ": [23646], "READ_FILE": [23646, 79, 19258], "COPY": [23646]}).payload()
    )
    return path


def test_choose_prints_answer_tokens_and_time() -> None:
    result = run("choose", "--prompt", "The capital of France is", "--choice", "Paris", "--choice", "Rome")
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    assert "' Paris' 7042" in result.stdout
    assert " ms after " in result.stdout


def test_choose_json_is_json_and_reads_choices_and_prompt_from_files(tmp_path: Path) -> None:
    choices = tmp_path / "choices.txt"
    choices.write_text("\ufeffBerlin\r\nRome\n\n")
    result = run("choose", "-p", "-", "--choices-file", str(choices), "--json", stdin="The capital of Italy is")
    decision = json.loads(result.stdout)
    assert (decision["value"], decision["index"]) == ("Rome", 1)
    assert decision["stats"]["n_passes"] < len(decision["tokens"])


def test_choose_sampled_is_reproducible() -> None:
    args = [
        "choose",
        "-p",
        "A city:",
        "-c",
        "Rome",
        "-c",
        "Berlin",
        "-c",
        "Oslo",
        "--mode",
        "sampled",
        "--seed",
        "7",
        "--chat",
        "--json",
    ]
    answers = [json.loads(run(*args).stdout)["value"] for _ in range(2)]
    assert answers[0] == answers[1]


def test_inspect_draws_the_trie(payload: Path, model_paths: dict[str, Path]) -> None:
    result = run("inspect", str(payload), "--model", str(model_paths["smollm2"]))
    assert "'READ' 23646  COPY" in result.stdout
    assert "'_' 79 'FILE' 19258  READ_FILE" in result.stdout
    assert "2 leaves, 4 nodes" in result.stdout
    assert "READ has the same tokens as COPY" in result.stdout
    assert result.stderr == ""
    assert "23646  COPY" in run("inspect", "-", stdin=payload.read_text()).stdout


def test_inspect_prints_no_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "escapes.json"
    path.write_text(TokenTrie.from_sequences({"\x1b[31mRED\x1b]0;title\x07": [1]}).payload())
    result = run("inspect", str(path))
    assert "\x1b" not in result.stdout
    assert "\\x1b[31mRED" in result.stdout
    assert "1 leaf," in result.stdout


def test_inspect_counts_what_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "many.json"
    path.write_text(TokenTrie.from_sequences({str(i): [i] for i in range(500)}).payload())
    assert "… 490 more branches" in run("inspect", str(path), "--max-lines", "10").stdout


def test_demo_answers_with_actions_beside_a_grammar() -> None:
    result = run("demo")
    assert result.returncode == 0, result.stderr
    assert "GBNF grammar" in result.stdout
    assert "times as fast" in result.stdout


def test_version_names_what_it_runs_on() -> None:
    assert "llama-cpp-python" in run("--version").stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["choose", "-p", "x"], "no choices: give some with --choice or --choices-file"),
        (["choose", "-p", "x", "-c", "a", "-m", "nowhere.gguf"], "--model: no file 'nowhere.gguf'"),
        (["choose", "-p", "x", "-c", "a", "-m", __file__], "--model: "),
        (["choose", "-p", "x", "-c", "a", "-c", ""], "choices[1]: empty"),
        (["inspect", "nowhere.json"], "nowhere.json"),
        (["inspect", "-"], "payload: broken JSON at byte 1"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(args: list[str], message: str) -> None:
    result = run(*args)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", [[], ["choose"], ["inspect"], ["demo"]])
def test_help_shows_examples(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.returncode == 0
    assert "Example" in result.stdout
