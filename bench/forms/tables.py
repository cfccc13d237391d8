"""Questions with the answers that a person would give, or that the facts behind a text have."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from token_trie.decisions.questions.question import Choice, Predicate, Question, Score

from bench.sets import data

_CASES, _SEED, _POOL = 46, 1, 3000  # that JevBench's 240 cases were planned with
_N_TICKETS, _TICKETS_SEED = 120, 42


@dataclass(frozen=True)
class Case:
    """A state, and questions about it with their answers."""

    state: Any
    questions: dict[str, Question]
    gold: dict[str, Any]
    is_held_out: bool
    """Whether no default was chosen on it."""


@dataclass(frozen=True)
class Table:
    """Cases of one kind."""

    name: str
    cases: list[Case]


def jevbench() -> Iterator[Table]:
    """Yield what JevBench's generator gives: choices, predicates and scores; every other case is held out."""
    from jevbench.datagen.domains import DOMAINS  # type: ignore[import-not-found]
    from jevbench.datagen.sample import plan_domain  # type: ignore[import-not-found]

    plans = (plan for domain in DOMAINS.values() for plan in plan_domain(domain, _CASES, seed=_SEED, pool=_POOL))
    gold = {plan["id"]: plan["gold"] for plan in plans}
    lines = files("jevbench").joinpath("suites/jevbench-240/cases.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    for kind, name in (
        ("choice", "JevBench, choices"),
        ("noul", "JevBench, predicates"),
        ("score", "JevBench, scores"),
    ):
        read = []
        for i, case in enumerate(cases):
            asked = {key: q for key, q in case["questions"].items() if q["type"] == kind}
            known = {key: gold[case["id"]][key] for key in asked if gold[case["id"]][key] != "unknown"}
            read.append(Case(case["state"], {key: question_of(asked[key]) for key in known}, known, i % 2 == 1))
        yield Table(name, read)


def tickets() -> Iterator[Table]:
    """Yield the queues of sys1bench's support tickets, all held out, and two of its other tables."""
    from sys1bench.generators.base import get_generator  # type: ignore[import-not-found]

    for generator, key, is_held_out in (
        ("support_tickets", "queue", True),
        ("phishing_email", "attack_class", False),
        ("guardrail_intent", "intent", False),
    ):
        cases = []
        for item in get_generator(generator, n=_N_TICKETS, seed=_TICKETS_SEED).generate():
            asked = item.questions[key]
            options = {option.key: option.description for option in asked.criteria}
            cases.append(
                Case(item.state, {key: Choice(asked.instructions, options)}, {key: asked.ground_truth}, is_held_out)
            )
        yield Table(f"sys1bench, {generator}", cases)


def requests() -> Iterator[Table]:
    """Yield the bench's own requests, of which every other is held out."""
    asked: Any = data("requests.json")
    question = Choice("What should the assistant do?", sorted({request["action"] for request in asked}))
    cases = [
        Case(request["text"], {"action": question}, {"action": request["action"]}, i % 2 == 1)
        for i, request in enumerate(asked)
    ]
    yield Table("requests, 30 actions", cases)


TABLES: tuple[Callable[[], Iterator[Table]], ...] = (jevbench, tickets, requests)


def question_of(asked: dict[str, Any]) -> Question:
    """Read a question of System One's format."""
    criteria = asked.get("criteria")
    if asked["type"] == "choice":
        return Choice(asked["instructions"], criteria)
    if asked["type"] == "noul":
        return Predicate(asked["instructions"], **(criteria or {}))
    return Score(asked["instructions"], criteria)
