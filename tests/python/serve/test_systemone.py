from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typesafe_sdk import Choice, Noul, Score, TypeSafeClient

BILLING = {"billing": "Payments, invoices, refunds", "technical": "Bugs and outages"}


def test_the_conformance_suite_finds_nothing(server: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    jevcompat = Path(sys.executable).with_name("jevcompat")
    run = subprocess.run([jevcompat, "test", server, "--json", report], capture_output=True, text=True)
    assert "MUST 32/32, SHOULD 12/12" in run.stdout, run.stdout
    assert run.returncode == 0


def test_typesafes_client_reads_every_kind_of_answer(server: str) -> None:
    questions = {
        "team": Choice(instructions="Which team?", criteria=BILLING),
        "urgent": Noul(instructions="Is it urgent?"),
        "mood": Score(instructions="How angry is it?", criteria=["calm", "angry"]),
    }
    with TypeSafeClient(api_key="none", base_url=server) as client:
        answers = client.system_one(state="I was charged twice.", questions=questions, model="jev-latest")
    assert answers.choices["team"].choice == "billing"
    assert sum(answers.choices["team"].probabilities.values()) == pytest.approx(1)
    assert 0 <= answers.nouls["urgent"].noul <= 1
    assert 0 <= answers.scores["mood"].score <= 1


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"state": "x", "questions": {"q": {"type": "choice", "criteria": {"a": 1, "b": None}}}}, ["questions", "q"]),
        ({"state": "x", "questions": {"q": {"type": "choice", "criteria": {"": None, "b": None}}}}, ["questions", "q"]),
        ({"state": "x", "questions": {"": {"type": "noul"}}}, ["questions", ""]),
        ({"state": "x", "assets": {"a": {}}, "questions": {"q": {"type": "noul"}}}, ["assets"]),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(server: str, body: object, place: list[str]) -> None:
    answer = httpx.post(
        f"{server}/v1/systemone", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][: len(place) + 1] == ["body", *place]


def test_a_state_asked_about_again_is_not_evaluated_again(server: str) -> None:
    state = "The parcel has not come. " * 40
    body = {"state": state, "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}
    first, again = (httpx.post(f"{server}/v1/systemone", json=body).json()["usage"] for _ in range(2))
    assert first["x_cached_tokens"] < 10
    assert again["x_cached_tokens"] > 200
