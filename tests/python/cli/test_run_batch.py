from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import commands
import pytest
from labelling import Cli
from token_trie.cli.options import ModelOptions
from token_trie.cli.rows import lock

COMMAND = ["run-batch", "-m", "model.gguf", "-i", "in.jsonl", "-o", "out.jsonl"]


def request(i: int, **body: Any) -> dict[str, Any]:
    question = {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": None}}
    asked = {"model": "any", "state": f"Case {i}", "questions": {"q": question}, **body}
    return {"custom_id": f"case-{i}", "method": "POST", "url": "/v1/systemone", "body": asked}


@pytest.fixture
def folder(tmp_path: Path, model_paths: dict[str, Path]) -> Path:
    (tmp_path / "model.gguf").symlink_to(model_paths["tiny"])
    return tmp_path


def run(folder: Path, requests: list[Any], *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in requests))
    return commands.run(*COMMAND, *options, cwd=folder)


def answers(folder: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line["response"] for line in lines}


def test_every_request_has_an_answer_by_its_id_and_what_is_wrong_its_refusal(folder: Path) -> None:
    chosen = {"type": "choice", "name": "q", "instructions": "Which?", "choices": [{"value": "a"}, {"value": "b"}]}
    decided = {"model": "any", "input": "Case", "questions": [chosen]}
    other = {"custom_id": "other", "method": "POST", "url": "/v1/decisions", "body": decided}
    asked = [*(request(i) for i in range(100)), request(100, questions={}), other, {**request(101), "url": "/v1/none"}]
    done = run(folder, asked)
    assert done.returncode == 0, done.stderr
    told = answers(folder)
    assert set(told) == {each["custom_id"] for each in asked}
    for i in range(100):
        assert told[f"case-{i}"]["status_code"] == 200
        assert set(told[f"case-{i}"]["body"]["answers"]["q"]["probabilities"]) == {"a", "b"}
    assert told["case-100"]["status_code"] == 422
    assert told["case-101"]["status_code"] == 404
    assert told["other"]["body"]["answers"][0]["choice"] in ("a", "b")
    assert "103 answers" in done.stderr
    assert "2 of them refused" in done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: no custom_id"),
        (json.dumps(request(0)), "line 2: custom_id 'case-0' occurs twice"),
        (json.dumps({**request(1), "method": "GET"}), "line 2: method must be POST"),
        (json.dumps({**request(1), "url": "http://elsewhere/"}), "line 2: method must be POST"),
    ],
)
def test_a_line_that_is_no_request_is_reported_by_its_number(folder: Path, line: str, message: str) -> None:
    (folder / "in.jsonl").write_text(json.dumps(request(0)) + "\n" + line + "\n")
    done = commands.run(*COMMAND, cwd=folder)
    assert done.returncode == 1
    assert message in done.stderr.replace("\n", " ")


def test_a_run_that_was_killed_goes_on_and_answers_each_once(folder: Path) -> None:
    asked = [request(i) for i in range(1000)]
    (folder / "in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked))
    out = folder / "out.jsonl"
    with commands.Command(COMMAND, cwd=folder, stderr=subprocess.DEVNULL) as process:
        while not (out.exists() and out.stat().st_size):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    n_before = out.read_bytes().count(b"\n")
    assert n_before < len(asked)
    with out.open("ab") as file:
        file.write(b'{"id": "answer')  # a line that was not written to its end
    refused = commands.run(*COMMAND, cwd=folder)
    assert refused.returncode == 1
    assert "--resume" in refused.stderr
    done = run(folder, asked, "--resume")
    assert done.returncode == 0, done.stderr
    assert set(answers(folder)) == {each["custom_id"] for each in asked}


def test_urls_that_are_none_are_refused_and_the_others_are_answered(folder: Path) -> None:
    urls = ["/v1/systemone\n", "/v1/\0systemone", "/v1/\tx", "/" + "a" * 70_000, "/v1/\ud800", "//[", "/v1/%zz", "/é"]
    asked = [request(0), *({**request(i), "url": url} for i, url in enumerate(urls, 1)), request(9)]
    done = run(folder, asked)
    assert done.returncode == 0, done.stderr
    told = answers(folder)
    codes = [told[f"case-{i}"]["status_code"] for i in range(10)]
    assert codes == [200, 400, 400, 400, 400, 400, 405, 404, 404, 200]
    assert told["case-1"]["body"]["error"]["message"].startswith("url: Invalid non-printable ASCII character")
    assert "8 of them refused" in done.stderr
    assert run(folder, asked, "--resume").returncode == 0
    assert answers(folder) == told


def test_answers_are_utf8_whatever_a_custom_id_is(folder: Path) -> None:
    ids = ["\ud800", "a\udfffb", "\0", "\U0001f600 é", "\ud83d"]
    asked = [{**request(i), "custom_id": custom_id} for i, custom_id in enumerate(ids)]
    assert run(folder, asked[:4]).returncode == 0
    assert run(folder, asked, "--resume").returncode == 0
    text = (folder / "out.jsonl").read_bytes().decode()
    assert sorted(json.loads(line)["custom_id"] for line in text.splitlines()) == sorted(ids)
    assert "\U0001f600 é" in text


def test_what_goes_on_is_the_same_file_of_requests(folder: Path) -> None:
    assert run(folder, [request(0)]).returncode == 0
    assert run(folder, [request(0), request(1)], "--resume").returncode == 0
    assert set(answers(folder)) == {"case-0", "case-1"}
    changed = run(folder, [request(0, state="another"), request(1)], "--resume")
    assert changed.returncode == 1
    assert "'case-0' asked something else" in changed.stderr.replace("\n", " ")


def test_what_goes_on_is_answered_by_the_same_model_and_sets(folder: Path, model_paths: dict[str, Path]) -> None:
    (folder / "sets").mkdir()
    (folder / "sets" / "one.json").write_text('{"choices": ["a", "b"]}')
    assert run(folder, [request(0)], "--sets", "sets").returncode == 0
    written = (folder / "out.jsonl").read_bytes()
    two = [request(0), request(1)]
    model = folder / "model.gguf"
    for change, told in (
        (lambda: (folder / "sets" / "one.json").write_text('{"choices": ["a", "c"]}'), "other sets"),
        (lambda: (folder / "sets" / "two.json").write_text('{"choices": ["a", "b"]}'), "other sets"),
        (lambda: (model.unlink(), model.symlink_to(model_paths["bpe"])), "another model"),
    ):
        change()
        changed = run(folder, two, "--sets", "sets", "--resume")
        assert changed.returncode == 1
        assert told in changed.stderr.replace("\n", " ")
        assert (folder / "out.jsonl").read_bytes() == written
    (folder / "sets" / "one.json").write_text('{"choices": ["a", "b"]}')
    (folder / "sets" / "two.json").unlink()
    model.unlink()
    model.write_bytes(model_paths["tiny"].read_bytes())  # the same one elsewhere
    done = run(folder, two, "--sets", "sets", "--resume", "--threads", "1", "--n-ctx", "4096")
    assert done.returncode == 0, done.stderr
    assert set(answers(folder)) == {"case-0", "case-1"}


def test_what_no_json_text_can_say_is_refused_and_a_stream_is_its_text(folder: Path) -> None:
    completion = {"model": "any", "prompt": "Case", "max_tokens": 2, "stream": True}
    asked = [
        request(0, state="\ud800"),
        request(1, state=[float("nan")]),
        {"custom_id": "none", "url": "/v1/systemone"},
        {"custom_id": "stream", "url": "/v1/completions", "body": completion},
        request(2),
    ]
    done = run(folder, asked)
    assert done.returncode == 0, done.stderr
    told = answers(folder)
    assert [told[name]["status_code"] for name in ("case-0", "case-1", "none", "stream", "case-2")] == [
        422,
        422,
        422,
        200,
        200,
    ]
    assert told["stream"]["body"].startswith("data: {")


def test_requests_may_name_sets_that_a_server_keeps_and_have_more_options_than_a_server_takes(folder: Path) -> None:
    (folder / "sets").mkdir()
    (folder / "sets" / "pets.json").write_text(json.dumps({"choices": ["cat", "dog"]}))
    completion = {"model": "any", "prompt": "A", "structured_outputs": {"choice": {"set": "pets"}}}
    many = {"type": "choice", "criteria": {f"option {i}": None for i in range(300)}}
    asked = [
        {"custom_id": "set", "url": "/v1/completions", "body": completion},
        request(0, questions={"q": many}),
    ]
    done = run(folder, asked, "--sets", "sets")
    assert done.returncode == 0, done.stderr
    told = answers(folder)
    assert told["set"]["body"]["choices"][0]["text"] in ("cat", "dog")
    assert len(told["case-0"]["body"]["answers"]["q"]["probabilities"]) == 300


def test_an_output_with_nothing_in_it_is_begun(folder: Path) -> None:
    (folder / "out.jsonl").touch()
    assert run(folder, [request(0)]).returncode == 0
    assert set(answers(folder)) == {"case-0"}


def test_two_runs_do_not_write_one_file(folder: Path) -> None:
    with io.FileIO(folder / "out.jsonl", "a+b") as file:
        assert lock(file)
        done = run(folder, [request(0)])
    assert done.returncode == 1
    assert "another run writes 'out.jsonl'" in done.stderr.replace("\n", " ")


def test_the_requests_are_not_written_over(folder: Path) -> None:
    done = run(folder, [request(0)], "-o", "in.jsonl")
    assert (done.returncode, "'in.jsonl' is the file to read" in done.stderr.replace("\n", " ")) == (1, True)


@pytest.mark.parametrize("changed", ["requests", "model"])
def test_a_file_that_changes_under_a_run_is_an_error(folder: Path, cli: Cli, monkeypatch: Any, changed: str) -> None:
    requests, model, load = folder / "in.jsonl", folder / "other.gguf", ModelOptions.load
    requests.write_text("".join(json.dumps(request(i, padding="x" * 2000)) + "\n" for i in range(40)))
    shutil.copy(cli.model, model)

    def load_after_a_change(options: ModelOptions, n_ctx: int = 0) -> Any:
        if changed == "requests":
            with requests.open("ab") as file:
                file.truncate(requests.read_bytes().index(b"\n") + 1)
        else:
            tensors = bytearray(model.read_bytes())
            tensors[-64] ^= 1
            model.unlink()
            model.write_bytes(tensors)
        return load(options, n_ctx)

    monkeypatch.setattr(ModelOptions, "load", load_after_a_change)
    done = cli.call(["run-batch", "-m", str(model), "-i", str(requests), "-o", str(folder / "out.jsonl")])
    assert done.code == 1
    message = "bytes, and had" if changed == "requests" else "other.gguf' was changed meanwhile"
    assert message in " ".join(done.err.split())
