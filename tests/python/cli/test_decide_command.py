from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import commands
import pytest
from token_trie import Choice, Predicate, Score, decide

STATE = "I was charged twice for my order."
QUESTIONS = [
    "--choice",
    "team=Which team should handle this?:billing=payments and charges,technical",
    "--predicate",
    "urgent=Is it urgent?",
    "--score",
    "mood=How angry is the customer?:calm,furious",
]


def run(*options: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return commands.run("decide", *options, input=given)


@pytest.mark.parametrize("way", ["standard input", "option", "file"])
def test_answers_are_those_of_decide(any_model: Any, tiny: Any, tmp_path: Path, way: str) -> None:
    llm = any_model if way == "option" else tiny
    file = tmp_path / "state.txt"
    file.write_text(f"{STATE}\n")
    options = {"standard input": (), "option": ("--state", STATE), "file": ("--state-file", str(file))}[way]
    done = run(
        *QUESTIONS,
        *options,
        *("-m", llm.model_path, "--reproducible"),
        given=f"{STATE}\n" if way == "standard input" else None,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    questions: dict[str, Any] = {
        "team": Choice("Which team should handle this?", {"billing": "payments and charges", "technical": None}),
        "urgent": Predicate("Is it urgent?"),
        "mood": Score("How angry is the customer?", ["calm", "furious"]),
    }
    expected = decide(llm, STATE, questions, reproducible=True)
    assert told["team"]["choice"] == expected["team"].value
    assert told["team"]["probabilities"] == pytest.approx(expected["team"].probabilities)
    assert told["urgent"]["noul"] == pytest.approx(expected["urgent"].probability)
    assert told["mood"]["score"] == pytest.approx(expected["mood"].score)


def test_a_request_is_what_the_server_takes(tmp_path: Path) -> None:
    question = {"type": "choice", "instructions": {"ask": "Which?"}, "criteria": {"a": {"is": "this"}, "b": None}}
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"model": "any", "state": {"x": 1}, "questions": {"q": question}}))
    done = run("--request", str(file), "--reproducible")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)["q"]
    assert set(answer["probabilities"]) == {"a", "b"}


def test_context_comes_before_the_state_as_the_server_has_it(any_model: Any) -> None:
    question = {"type": "choice", "instructions": "Which?", "criteria": {"a cat": None, "a dog": None}}
    body = {"context": "It barks.", "state": {"pet": "Rex"}, "questions": {"q": question}}
    done = run("--request", "-", "--raw", "--form", "listed", "--orders", "2", "--reproducible", given=json.dumps(body))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)["q"]
    expected = decide(
        any_model,
        'It barks.\n\n{"pet": "Rex"}',
        Choice("Which?", ["a cat", "a dog"]),
        form="listed",
        calibration=None,
        orders=2,
        reproducible=True,
    )
    assert answer["x_calibration"] == expected.calibration == "raw"
    assert answer["probabilities"] == pytest.approx(expected.probabilities)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no question"),
        (["--choice", "team"], "--choice: 'team' is not NAME=QUESTION:OPTION"),
        (["--choice", "team=Which?:a"], "is not NAME=QUESTION:OPTION"),
        (["--choice", "Which?:a,b"], "is not NAME=QUESTION"),
        (["--choice", "team=Which?:billing=see: notes,sales"], "not clear which colon ends the question"),
        (["--choice", "when=Which time?:10:30,11:30,noon"], "not clear which colon ends the question"),
        (["--choice", "team=Which?:a,a"], "occurs twice"),
        (["--predicate", "a=b", "--predicate", "a=c"], "the name 'a' occurs twice"),
        (["--predicate", "a=b", "--request", "x.json"], "--request"),
        (["--predicate", "a=b", "--state", "x", "--state-file", "y"], "use only one of them"),
        (["--predicate", "a=b", "--state", " "], "the state is empty"),
        (["--request", "-"], "--request: -: not JSON"),
    ],
)
def test_faults_are_reported_before_a_model_is_loaded(options: list[str], message: str) -> None:
    done = run("-m", "none.gguf", *options, given="{")
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())


def test_an_invalid_request_is_reported_with_its_position() -> None:
    done = run("--request", "-", given=json.dumps({"state": "x", "questions": {"q": {"type": "choice"}}}))
    assert done.returncode == 1
    assert "questions.q.criteria" in done.stderr


def test_images_are_refused() -> None:
    body = {"state": "x", "questions": {"q": {"type": "noul"}}, "images": ["data:image/png;base64,"]}
    done = run("--request", "-", given=json.dumps(body))
    assert done.returncode == 1
    assert "images are for vision models" in done.stderr


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"x_form": "listed"}, "--request: x_form: use the option"),
        ({"questions": {"q": {"type": "noul", "instruction": "Is it?"}}}, "unknown key instruction; is instructions"),
        ({"questions": {"q": {"type": "noul", "criteria": {"yes": "It is"}}}}, "questions.q.criteria.yes"),
    ],
)
def test_a_key_that_is_not_taken_here_is_refused(wrong: dict[str, Any], place: str) -> None:
    done = run("--request", "-", given=json.dumps({"state": "x", "questions": {"q": {"type": "noul"}}} | wrong))
    assert done.returncode == 1
    assert place in " ".join(done.stderr.split())
