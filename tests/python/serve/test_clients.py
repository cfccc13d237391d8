"""Clients of both formats, as they are."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import decide
import pytest
from decide.backends.openai_decisions import OpenAIDecisionsBackend
from decide.backends.typesafe import TypeSafeBackend
from langchain_core.messages import HumanMessage
from langchain_openai import decisions
from typesafe_sdk import AsyncTypeSafeClient, Noul

pytestmark = pytest.mark.filterwarnings("ignore")
STATE = "I was charged twice."
TEAMS: dict[str, Any] = {"billing": "Payments, invoices, refunds", "technical": "Bugs and outages"}


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    """Collect the connections that LangChain's clients do not close, before another test is told of them."""
    yield
    gc.collect()


def check(department: Any, urgent: float, anger: float) -> None:
    assert department.choice == "billing"
    assert sum(department.probabilities.values()) == pytest.approx(1)
    assert 0 <= urgent <= 1
    assert 0 <= anger <= 1


def test_typesafes_asynchronous_client(server: str) -> None:
    async def ask() -> Any:
        async with AsyncTypeSafeClient(api_key="none", base_url=server) as client:
            questions = {"urgent": Noul(instructions="Is it urgent?")}
            return await client.system_one(state=STATE, questions=questions, model="jev-latest")

    assert 0 <= asyncio.run(ask()).nouls["urgent"].noul <= 1


def test_langchains_classifier(server: str) -> None:
    import langchain_typesafe as lc  # which tells that it is a beta

    classifier = lc.TypeSafeClassifier(api_key="none", base_url=server)
    questions = {
        "team": lc.Choice(instructions="Which team?", criteria=TEAMS),
        "urgent": lc.Noul(instructions="Is it urgent?"),
        "mood": lc.Score(instructions="How angry is it?", criteria=["calm", "angry"]),
    }
    for found in (
        classifier.invoke({"state": STATE, "questions": questions}),
        asyncio.run(classifier.ainvoke({"state": [HumanMessage(STATE)], "questions": questions})),
    ):
        check(found.choices["team"], found.nouls["urgent"].noul, found.scores["mood"].score)


def test_langchains_decisions(server: str) -> None:
    client = decisions.OpenAIDecisions(model="any", base_url=f"{server}/v1", api_key="none")
    questions = {
        "team": decisions.Choice(instructions="Which team?", choices=TEAMS),
        "urgent": decisions.Predicate(instructions="Is it urgent?"),
        "mood": decisions.Score(instructions="How angry is it?", levels=["calm", "angry"]),
    }
    for found in (
        client.invoke({"input": STATE, "questions": questions}),
        asyncio.run(client.ainvoke({"input": [HumanMessage(STATE)], "questions": questions})),
    ):
        check(found.choices["team"], found.predicates["urgent"].probability, found.scores["mood"].score)


@pytest.mark.parametrize("make", [TypeSafeBackend, OpenAIDecisionsBackend])
def test_pydecide(server: str, make: Any) -> None:
    base_url = server if make is TypeSafeBackend else f"{server}/v1"
    questions = {
        "team": decide.Choice("Which team?", TEAMS),
        "urgent": decide.Noul("Is it urgent?"),
        "mood": decide.Score("How angry is it?", ["calm", "angry"]),
    }
    with decide.Client([make("none", base_url=base_url)]) as client:
        found = client.decide(STATE, questions)
    check(found["team"], found["urgent"].noul, found["mood"].score)


def test_jev_eval_measures_it(server: str, tmp_path: Path) -> None:
    rows = [{"state": f"{STATE} Order {i}.", "labels": {"team": "billing", "urgent": True}} for i in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {"questions": {"team": {"type": "choice", "instructions": "Which team?", "criteria": TEAMS}}}
    config["questions"]["urgent"] = {"type": "noul", "instructions": "Is it urgent?"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [str(Path(sys.executable).with_name("jev-eval"))]
    run = [*command, "run", "--data", "rows.jsonl", "--config", "config.json", "--cache", "run.jsonl"]
    environment = {"JEV_API_KEY": "none", "TYPESAFE_AI_BASE_URL": f"{server}/v1", "PATH": ""}
    subprocess.run(run, cwd=tmp_path, env=environment, check=True, capture_output=True)
    report = subprocess.run(
        [*command, "report", "--cache", "run.jsonl"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "team" in report.stdout
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) >= len(rows)
