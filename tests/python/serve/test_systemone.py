from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from typesafe_sdk import Choice, Noul, Score, TypeSafeClient

BILLING = {"billing": "Payments, invoices, refunds", "technical": "Bugs and outages"}


def test_the_conformance_suite_finds_nothing(url: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    jevcompat = Path(sys.executable).with_name("jevcompat")
    run = subprocess.run([jevcompat, "test", url, "--json", report], capture_output=True, text=True)
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
def test_what_does_not_fit_is_an_error_with_its_position(server: str, body: object, place: list[str]) -> None:
    answer = httpx.post(
        f"{server}/v1/systemone", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][: len(place) + 1] == ["body", *place]


def test_a_state_asked_about_again_is_not_evaluated_again(server: str) -> None:
    state = "The kettle leaks when it boils. " * 40
    body = {"state": state, "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}
    usages = [httpx.post(f"{server}/v1/systemone", json=body, timeout=60).json()["usage"] for _ in range(4)]
    first, *again = (usage["x_cached_tokens"] for usage in usages)
    # Other tests may have left the words before the state in the cache, or requests that need its space.
    assert max(again) - first > 200


TEAM = {
    "type": "choice",
    "instructions": "Which team should handle this?",
    "criteria": {"billing": "Payments and charges", "technical": "Bugs and outages", "sales": None},
}


def ask(server: str, **fields: object) -> dict[str, Any]:
    body = {"state": "I was charged twice.", "questions": {"team": TEAM}, **fields}
    answer = httpx.post(f"{server}/v1/systemone", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["answers"]["team"]
    return found


def test_an_answer_says_how_its_probabilities_were_made(server: str) -> None:
    assert ask(server)["x_calibration"] == "contextual"
    raw = ask(server, x_calibration=None)
    assert raw["x_calibration"] == "raw"
    assert 0 < raw["x_mass"] < 1
    assert raw["x_source"] == "sum"


def test_what_is_reproducible_is_the_same_bit_by_bit(server: str) -> None:
    alone = ask(server, x_reproducible=True)
    others = {str(i): {**TEAM, "instructions": f"Which team, of {i}?"} for i in range(5)}
    assert ask(server, x_reproducible=True, questions={**others, "team": TEAM}) == alone


def test_orders_average_over_lists(server: str) -> None:
    one, all_three = (ask(server, x_form="listed", x_orders=n)["probabilities"] for n in (1, 3))
    assert one != all_three
    assert sum(all_three.values()) == pytest.approx(1)
    assert ask(server, x_form="letters", x_orders=8)["choice"] in TEAM["criteria"]


@pytest.mark.parametrize(("field", "value"), [("x_form", "none"), ("x_orders", 0), ("x_reproducible", 1)])
def test_an_unknown_option_is_an_error_with_its_position(server: str, field: str, value: object) -> None:
    body = {"state": "x", "questions": {"team": TEAM}, field: value}
    systemone = httpx.post(f"{server}/v1/systemone", json=body)
    assert systemone.status_code == 422
    assert systemone.json()["detail"][0]["loc"][:2] == ["body", field]
