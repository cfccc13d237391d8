from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from token_trie import choose, score

CHOICE = {
    "type": "choice",
    "instructions": "Which?",
    "criteria": {"a": "Paris", "b": "Pizza", "c": "Parish", "d": "no"},
}
TEXTS = ["Paris", "Pizza", "Parish", "no"]


def explain(url: str, question: object, state: str = "Hungry.") -> httpx.Response:
    return httpx.post(f"{url}/v1/x_explain", json={"state": state, "questions": {"q": question}}, timeout=60)


def explained_by(url: str, question: object, state: str = "Hungry.") -> Any:
    answer = explain(url, question, state)
    assert answer.status_code == 200, answer.text
    return answer.json()


def path(branches: list[Any], i: int) -> list[Any]:
    """Return the branches from the root to one."""
    return ([] if branches[i]["parent"] is None else path(branches, branches[i]["parent"])) + [branches[i]]


def test_the_answer_is_the_one_that_is_given_without_an_explanation(url: str) -> None:
    body = {"state": "Hungry.", "questions": {"q": CHOICE}}
    answer = httpx.post(f"{url}/v1/systemone", json=body).json()["answers"]["q"]
    explained = explained_by(url, CHOICE)
    assert explained["answer"]["choice"] == answer["choice"]
    assert explained["answer"]["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-3)
    assert {each["option"]: each["probability"] for each in explained["options"]} == explained["answer"][
        "probabilities"
    ]


def test_masses_and_shares_are_those_of_score(url: str, precise: Any) -> None:
    explained = explained_by(url, CHOICE)
    prompt, branches = explained["prompt"], explained["branches"]
    assert prompt.endswith("Hungry.\n\nQuestion: Which?\nAnswer:")
    whole = np.exp(score(precise, "Hungry.\n\nQuestion: Which?\nAnswer:", TEXTS, leaf_end="any"))
    steps = np.exp(score(precise, "Hungry.\n\nQuestion: Which?\nAnswer:", TEXTS, branches=True))
    leaves = {row["options"][0]: i for i, row in enumerate(branches) if row["options"]}
    assert [branches[leaves[name]]["mass"] for name in "abcd"] == pytest.approx(whole / whole.sum(), abs=1e-3)
    products = [np.prod([row["share"] for row in path(branches, leaves[name])]) for name in "abcd"]
    assert products == pytest.approx(steps, abs=1e-3)
    assert [each["raw"] for each in explained["options"]] == pytest.approx(np.log(whole), abs=1e-2)
    before = score(precise, "N/A\n\nQuestion: Which?\nAnswer:", TEXTS, leaf_end="any")
    assert [each["prior"] for each in explained["options"]] == pytest.approx(before, abs=1e-2)


def test_greedy_ends_where_choose_does(url: str, precise: Any) -> None:
    for state in ("Hungry.", "yes", "Pizza or Paris?", "no no no"):
        explained = explained_by(url, CHOICE, state)
        greedy = choose(precise, f"{state}\n\nQuestion: Which?\nAnswer:", TEXTS, mode="greedy")
        assert explained["greedy"] == ["abcd"[greedy.index]]
        ends = [row for row in explained["branches"] if row["options"] and row["greedy"]]
        assert [row["options"] for row in ends] == [explained["greedy"]]
        [answer] = [row for row in explained["branches"] if row["options"] and row["answer"]]
        assert answer["options"] == [explained["answer"]["choice"]]


@pytest.mark.parametrize(
    "how",
    [
        {"x_form": "listed", "x_orders": 2},
        {"x_form": "letters", "x_orders": 3},
        {"x_calibration": None},
    ],
)
def test_every_form_is_explained_by_what_it_reads(url: str, how: dict[str, Any]) -> None:
    for question in (CHOICE, {"type": "noul", "instructions": "Is it?"}):
        body = {"state": "Hungry.", "questions": {"q": question}, **how}
        answer = httpx.post(f"{url}/v1/systemone", json=body).json()["answers"]["q"]
        explained = httpx.post(f"{url}/v1/x_explain", json=body).json()
        key = "noul" if question["type"] == "noul" else "probabilities"
        assert explained["answer"][key] == pytest.approx(answer[key], abs=2e-3)
        assert explained["answer"]["x_calibration"] == answer["x_calibration"]
        drawn = {name for row in explained["branches"] for name in row["options"] or []}
        assert drawn == {each["option"] for each in explained["options"]}


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ({"type": "noul", "instructions": "Is it?"}, ["true", "false"]),
        ({"type": "score", "criteria": ["low", "middle", "high"]}, ["0", "1", "2"]),
        ({"type": "choice", "criteria": {"one": "the same", "other": "the same"}}, ["one", "other"]),
        ({"type": "choice", "criteria": {str(i): f"number {i}" for i in range(255)}}, [str(i) for i in range(255)]),
    ],
)
def test_every_option_has_its_numbers_and_its_branch_or_is_counted(url: str, question: Any, names: list[str]) -> None:
    explained = explained_by(url, question)
    assert [each["option"] for each in explained["options"]] == names
    branches = explained["branches"]
    drawn = [name for row in branches for name in row["options"] or []]
    assert len(drawn) == len(set(drawn))
    if len(names) < 10:
        assert set(drawn) == set(names)
    else:
        assert len(drawn) + sum(row["more"]["texts"] for row in branches if row["more"]) == len(names)


def test_more_than_one_question_is_refused_with_the_position(url: str) -> None:
    body = {"state": "x", "questions": {"a": CHOICE, "b": CHOICE}}
    refused = httpx.post(f"{url}/v1/x_explain", json=body)
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"] == ["body", "questions"]
    bad = explain(url, {"type": "choice", "criteria": {"": None, "b": None}})
    assert bad.json()["detail"][0]["loc"] == ["body", "questions", "q"]
