from __future__ import annotations

import ctypes
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from labelling import Cli
from token_trie import ArgumentError, TokenTrie, score
from token_trie.cli import ask
from token_trie.cli.options import interrupted_after, read_choices


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return commands.run(*args, input=stdin)


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    path = tmp_path / "payload.json"
    path.write_text(
        TokenTrie.from_sequences({"READ": [23646], "READ_FILE": [23646, 79, 19258], "COPY": [23646]}).payload()
    )
    return path


def test_choose_prints_answer_tokens_and_time() -> None:
    args = ["choose", "--prompt", "The capital of France is", "--choice", "Paris", "--choice", "Rome"]
    result = run(*args)
    assert result.returncode == 0, result.stderr
    assert re.search(r"Paris +█", result.stdout)
    assert "It is proved that no answer left out is more probable." in result.stdout
    assert " ms after " in result.stdout
    assert re.search(r"' Paris' \d+", run(*args, "--mode", "greedy").stdout)


def test_choose_json_is_json_and_reads_choices_and_prompt_from_files(tmp_path: Path) -> None:
    choices = tmp_path / "choices.txt"
    choices.write_text("\ufeffBerlin\r\nRome\n\n")
    asked = ["choose", "--choices-file", str(choices), "--json", "-p"]
    decision = json.loads(run(*asked, "-", stdin="The capital of Italy is\n").stdout)
    assert (decision["value"], decision["index"]) == ("Rome", 1)
    assert decision["tokens"] == json.loads(run(*asked, "The capital of Italy is").stdout)["tokens"]
    assert decision["stats"]["n_passes"] < len(decision["tokens"])


EXPLAIN = ["choose", "--explain"]
FRANCE = ["choose", "-p", "The capital of France is", "-c", "Rome", "-c", "Paris", "-c", "Rome"]


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize("mode", [["greedy"], ["sampled", "--seed", "1"]])
def test_json_of_a_walk_has_what_a_walk_knows(mode: list[str]) -> None:
    numbers = json.loads(run(*FRANCE, "--mode", *mode, "--json").stdout)
    assert numbers["value"] == numbers["text"] == ["Rome", "Paris", "Rome"][numbers["index"]]
    assert numbers["logprob"] is None
    assert numbers["branch_logprob"] < 0
    assert [numbers[name] for name in ("probabilities", "mass", "ranked", "fits")] == [None] * 4
    again = json.loads(run(*FRANCE, "--mode", *mode, "--json").stdout)
    assert again["tokens"] == numbers["tokens"]


@pytest.mark.parametrize("mode", [["exact", "--n-best", "2"], ["aligned", "--seed", "1"]])
def test_json_of_whole_answers_has_all_numbers_aligned_with_the_choices(mode: list[str], any_model: Any) -> None:
    result = run(*FRANCE, "--mode", *mode, "--top", "2", "--json")
    numbers = json.loads(result.stdout, parse_constant=no_constant)
    rome, paris = np.exp(score(any_model, "The capital of France is", ["Rome", "Paris"], leaf_end="longest"))
    expected = np.array([rome, paris, rome]) / (rome + paris)
    assert numbers["probabilities"] == pytest.approx(expected, abs=0.01)
    assert numbers["mass"] == pytest.approx(rome + paris, abs=0.05)
    assert numbers["margin"] == pytest.approx((paris - rome) / (rome + paris), abs=0.01)
    assert numbers["entropy"] == pytest.approx(-sum(p * np.log(p) for p in expected[:2]), abs=0.05)
    assert [(answer["value"], answer["index"]) for answer in numbers["ranked"]] == [("Paris", 1), ("Rome", 0)]
    assert (numbers["value"], numbers["index"]) == ("Paris", 1)
    assert [answer["value"] for answer in numbers["candidates"]] == (["Paris", "Rome"] if "exact" in mode else [])


@pytest.mark.parametrize("options", [["--mode", "beam", "--beam-width", "1"], ["--mode", "exact", "--max-nodes", "1"]])
def test_json_of_a_search_has_candidates_and_null_for_what_is_unknown(options: list[str]) -> None:
    result = run(
        "choose", "-p", "A:", "-c", "ab cd ef", "-c", "ab ce", "-c", "xy zz", *options, "--n-best", "3", "--json"
    )
    numbers = json.loads(result.stdout, parse_constant=no_constant)
    assert [numbers[name] for name in ("probabilities", "mass", "entropy", "margin", "ranked")] == [None] * 5
    assert numbers["candidates"][0]["value"] == numbers["value"]
    assert numbers["gap"] is None or numbers["gap"] >= 0


def test_whole_answers_are_ranked_with_bars() -> None:
    text = run(*FRANCE, "--top", "1").stdout
    assert re.search(r"Paris +█+.? +(\d\d\.\d|>99\.9) %", text)
    assert "… 1 more" in text
    assert re.search(r"The model gives the whole set (only )?\d+\.\d+ %", text)
    assert re.search(r"Margin \S+ %, entropy 0\.\d\d nats", text)
    assert "█" in run(*FRANCE, "--mode", "beam").stdout


def test_a_set_that_does_not_fit_is_said_not_to() -> None:
    text = run("choose", "-p", "The capital of France is", "-c", "xylophone", "-c", "zinc", "--top", "2").stdout
    assert re.search(r"The model gives the whole set only \S+ % – none of these may fit\.", text)


def test_explain_draws_in_the_terminal_or_prints_json() -> None:
    args = [*EXPLAIN, "-p", "The capital of France is", "-c", "Paris", "-c", "Paris, of course", "-c", "Rome"]
    text = run(*args).stdout
    assert "After “ Paris”, greedy takes “,”" in text
    assert re.search(r"the end”?  \S+ %  \S+ %  Paris  ← exact", text)
    whole = json.loads(run(*args, "--json").stdout, parse_constant=no_constant)
    assert (whole["greedy"]["value"], whole["exact"]["value"]) == ("Paris, of course", "Paris")
    assert whole["answers"][0]["text"] == "Paris"
    assert sum(answer["probability"] for answer in whole["answers"]) == pytest.approx(1)
    assert whole["sentence"].startswith("After “ Paris”, greedy takes “,”")


def test_doctor_draws_a_set(payload: Path, model_paths: dict[str, Path]) -> None:
    result = run("doctor", str(payload), "--model", str(model_paths["smollm2"]))
    assert "'READ' 23646  COPY" in result.stdout
    assert "'_' 79 'FILE' 19258  READ_FILE" in result.stdout
    assert "2 leaves, 4 nodes" in result.stdout
    assert "READ has the same tokens as COPY" in result.stdout
    assert result.stderr == ""
    assert "23646  COPY" in run("doctor", "-", stdin=payload.read_text()).stdout


def test_doctor_prints_no_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "escapes.json"
    path.write_text(TokenTrie.from_sequences({"\x1b[31mRED\x1b]0;title\x07": [1]}).payload())
    result = run("doctor", str(path))
    assert "\x1b" not in result.stdout
    assert "\\x1b[31mRED" in result.stdout
    assert "1 leaf," in result.stdout


def test_doctor_counts_what_it_leaves_out_of_a_set(tmp_path: Path) -> None:
    path = tmp_path / "many.json"
    path.write_text(TokenTrie.from_sequences({str(i): [i] for i in range(500)}).payload())
    assert "… 300 more branches" in run("doctor", str(path)).stdout


def test_doctor_finds_a_file_of_a_set_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "items.trie"
    TokenTrie.from_sequences({str(i): [i, i + 1] for i in range(500)}).save(path)
    assert "500 leaves" in run("doctor", str(path)).stdout
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    damaged = run("doctor", str(path))
    assert (damaged.returncode, "items.trie" in damaged.stderr) == (1, True)


def test_demo_answers_with_actions_beside_a_grammar(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = dict(list(ask.REQUESTS.items())[:2])
    monkeypatch.setattr(ask, "REQUESTS", requests)
    monkeypatch.setattr(ask, "ACTIONS", {name: ask.ACTIONS[name] for name in ("get_weather", *requests.values())})
    result = cli.call(["demo", "--threads", "1"])
    assert result.code == 0, result.err
    assert "2 actions, 49,152 tokens of vocabulary" in result.out
    assert "GBNF grammar" in result.out
    assert "times as fast" in result.out
    assert "times in 2; median" in result.out


def test_version_names_what_it_runs_on() -> None:
    assert "llama-cpp-python" in run("--version").stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["choose", "-p", "x"], "no choices: use --choice or --choices-file"),
        (["choose", "-p", "x", "-c", "a", "-m", "nowhere.gguf"], "--model: no file 'nowhere.gguf'"),
        (["choose", "-p", "x", "-c", "a", "-m", __file__], "; it needs a whole GGUF file"),
        (["choose", "-p", "x", "-c", "a", "-c", ""], "choices[1]: empty"),
        (["choose", "-p", "x", "-c", "a", "--mode", "beam", "--beam-width", "0"], "beam_width: 0 is not a count"),
        (
            ["choose", "-p", "x", "-c", "a", "--mode", "greedy", "--top", "2"],
            "--top: not with --mode greedy",
        ),
        ([*EXPLAIN, "-p", "x"], "no choices: use --choice or --choices-file"),
        (["choose", "-p", "word " * 300, "-c", "a", "--n-ctx", "256"], "; --n-ctx sets its size"),
        (
            [*EXPLAIN, "-p", "word " * 300, "-c", "a", "--n-ctx", "256"],
            "do not fit the context of 256 tokens",
        ),
        (["doctor", "nowhere.json"], "nowhere.json"),
        (["doctor", "-"], "payload: broken JSON at byte 1"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(args: list[str], message: str) -> None:
    result = run(*args)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "stdin", "message"),
    [
        (["choose", "-p", "-", "-c", "a"], None, "-: standard input is closed"),
        (["choose", "-p", "x", "--choices-file", "-"], None, "-: standard input is closed"),
        (["doctor", "-"], None, "-: standard input is closed"),
        (["choose", "-p", "-", "-c", "a"], b"caf\xe9", "-: not UTF-8"),
        ([*EXPLAIN, "-p", "x", "--choices-file", "-"], b"caf\xe9", "-: not UTF-8"),
        (["doctor", "-"], b"\xff\xfe", "-: not UTF-8"),
        (["choose", "-p", "-", "--choices-file", "-"], b"yes\nno\n", "only one of them can be standard input"),
    ],
)
def test_what_standard_input_cannot_give_is_one_line(args: list[str], stdin: bytes | None, message: str) -> None:
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    if stdin is None:
        command = [sys.executable, "-c", "from token_trie.cli import main; main()", *args]
        process = subprocess.Popen(command, preexec_fn=lambda: os.close(0), **pipes)
    else:
        process = commands.Command(args, **pipes)
    err = process.communicate(stdin, timeout=900)[1].decode()
    assert process.returncode == 1
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ('["yes", "no"]', ["yes", "no"]),
        ('[\n  "yes",\n  "a\\nb"\n]\n', ["yes", "a\nb"]),
        ("yes\rno\r\nmaybe\n\n", ["yes", "no", "maybe"]),
        ("[yes]\n[no]", ["[yes]", "[no]"]),
        ("[yes] or\nno", ["[yes] or", "no"]),
        ("['yes', 'no']", "neither a JSON list of texts"),
        ('[\n"yes",\n"no",\n]', "neither a JSON list of texts"),
        ('{"yes": "good", "no": "bad"}', "JSON that is no list of texts"),
        ('["yes", 1]', "JSON that is no list of texts"),
        ("[]", []),
    ],
)
@pytest.mark.parametrize("is_stdin", [False, True])
def test_choices_of_a_file_are_its_lines_or_a_json_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, choices: list[str] | str, is_stdin: bool
) -> None:
    path = Path("-") if is_stdin else tmp_path / "choices"
    if is_stdin:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + text.encode())))
    else:
        path.write_bytes(text.encode())
    if isinstance(choices, list):
        assert read_choices(path) == choices
    else:
        with pytest.raises(ArgumentError, match=choices):
            read_choices(path)


@pytest.mark.parametrize("command", [[], ["choose"], ["doctor"], ["demo"]])
def test_help_shows_examples(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.returncode == 0
    assert "Example" in result.stdout


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac may have it")
def test_the_bench_says_in_a_line_that_a_device_is_not_there() -> None:
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-m", "bench", "--mode", "decide", "--device", "metal"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, timeout=300)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "--device metal: llama.cpp sees none here; see token-trie doctor\n"


def test_an_interrupt_in_a_callback_of_native_code_is_raised_after_it() -> None:
    reached: list[str] = []
    call = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    @interrupted_after()
    def load() -> None:
        call()
        reached.append("the end")

    try:
        with pytest.raises(KeyboardInterrupt):
            load()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached == ["the end"]
