from __future__ import annotations

from typing import Any

import httpx
import pytest

QUESTION = {
    "type": "choice",
    "instructions": "Which team should handle this?",
    "criteria": {"billing": "Payments and charges", "technical": "Bugs and outages", "sales": None},
}


def ask(server: str, **fields: object) -> dict[str, Any]:
    body = {"state": "I was charged twice.", "questions": {"team": QUESTION}, **fields}
    answer = httpx.post(f"{server}/v1/systemone", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["answers"]["team"]
    return found


def test_an_answer_says_how_its_probabilities_were_made(server: str) -> None:
    assert ask(server)["x_calibration"] == "contextual"
    raw = ask(server, x_calibration=None)
    assert raw["x_calibration"] == "raw"
    assert 0 < raw["x_mass"] < 1


def test_what_is_reproducible_is_the_same_bit_by_bit(server: str) -> None:
    alone = ask(server, x_reproducible=True)
    others = {str(i): {**QUESTION, "instructions": f"Which team, of {i}?"} for i in range(5)}
    assert ask(server, x_reproducible=True, questions={**others, "team": QUESTION}) == alone


def test_orders_average_over_lists(server: str) -> None:
    one, all_three = (ask(server, x_form="listed", x_orders=n)["probabilities"] for n in (1, 3))
    assert one != all_three
    assert sum(all_three.values()) == pytest.approx(1)
    assert ask(server, x_form="letters", x_orders="auto")["choice"] in QUESTION["criteria"]


def test_it_tells_what_the_model_would_write_instead(server: str) -> None:
    assert "x_instead" not in ask(server)
    assert ask(server, x_instead=True)["x_instead"]


def test_a_close_answer_is_thought_about(server: str) -> None:
    assert ask(server, x_think={"max_tokens": 8, "margin": 1, "share": 1})["x_thought"]


@pytest.mark.parametrize(
    ("field", "value"), [("x_form", "none"), ("x_orders", 0), ("x_think", {"max_tokens": -1}), ("x_reproducible", 1)]
)
def test_what_is_no_option_is_told_with_its_place(server: str, field: str, value: object) -> None:
    body = {"state": "x", "questions": {"team": QUESTION}, field: value}
    systemone = httpx.post(f"{server}/v1/systemone", json=body)
    assert systemone.status_code == 422
    assert systemone.json()["detail"][0]["loc"][:2] == ["body", field]
