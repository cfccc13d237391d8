"""``serve --reproducible``: answers that do not depend on what else is asked, of a quantized model."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Serving

STATES = ["I was charged twice.", "The app crashes when I open it, and the invoice is wrong, too."]
CRITERIA = {"billing": "Payments and charges", "technical": "Bugs and outages", "other": None}
TEAM = {"type": "choice", "instructions": "Which team?", "criteria": CRITERIA}
SCHEMA = {"type": "object", "properties": {"team": {"enum": list(CRITERIA)}, "why": {"type": "string"}}}
VARYING = {"id", "created", "usage"}


def requests() -> list[tuple[str, dict[str, Any]]]:
    made: list[tuple[str, dict[str, Any]]] = []
    for state in STATES:
        messages = [{"role": "user", "content": state}]
        made += [
            ("systemone", {"state": state, "questions": {"a": TEAM, "b": {"type": "noul"}}}),
            ("systemone", {"state": state, "questions": {"a": TEAM}, "x_form": "listed", "x_orders": 2}),
            ("chat/completions", {"messages": messages, "guided_choice": list(CRITERIA)}),
            ("chat/completions", {"messages": messages, "guided_json": SCHEMA, "max_tokens": 12}),
            ("completions", {"prompt": state, "max_tokens": 12, "temperature": 0, "logprobs": 3}),
            ("completions", {"prompt": state, "max_tokens": 12, "seed": 3, "n": 2}),
        ]
    return made


def ask(url: str, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{url}/v1/{path}", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return {name: value for name, value in answer.json().items() if name not in VARYING}


def test_answers_are_the_same_whatever_else_is_asked(model: Path) -> None:
    given = requests()
    with Serving(model, "--reproducible") as serving:
        alone = [ask(serving.url, *one) for one in given]
    order = list(range(len(given)))
    random.Random(0).shuffle(order)
    with Serving(model, "--reproducible") as serving, ThreadPoolExecutor(6) as clients:
        found = dict(zip(order, clients.map(lambda i: ask(serving.url, *given[i]), order), strict=True))
        for i in order:
            assert found[i] == alone[i], given[i]
        thinks = {**given[0][1], "x_think": {"max_tokens": 4}}
        refused = httpx.post(f"{serving.url}/v1/systemone", json=thinks)
        assert refused.status_code == 422
        assert "think" in refused.text


def test_what_depends_on_earlier_answers_is_refused(model: Path) -> None:
    with (
        pytest.raises(AssertionError, match="--reproducible: goes without --calibration running"),
        Serving(model, "--reproducible", "--calibration", "running"),
    ):
        pass
