"""Contextual priors are remembered by what was evaluated: answers after other questions are those of a fresh Llama."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from token_trie import Choice, Examples, Form, Predicate, Score, StreamHandle, decide, decide_many
from token_trie.native.lifetime import attachment

STATE = "I was charged twice for Pizza in Paris."
DESCRIBED = Form(
    "{{ state }}{% for o in options if o.name != o.description %} {{ o.name }}{% endfor %} {{ instructions }}"
)
NAMES = Form("{{ state }}{% for o in options %} {{ o.name }}{% endfor %} {{ instructions }}")
N_COMPANIES = int(os.environ.get("COMPANIES", "4"))


def opened(path: Path) -> Any:
    return llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, n_threads_batch=1, type_k=0, type_v=0, verbose=False)


@pytest.fixture
def fresh(model_paths: dict[str, Path]) -> Iterator[Any]:
    llm = opened(model_paths["tiny"])
    yield llm
    llm.close()


class Value:
    """Prints like any other."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return "value"

    __repr__ = __str__


SHOWN = Examples(["one state", "another"], ["yes", "no"])
PAIRS = {
    "which text stands for which option, shown by examples": (
        {"questions": Choice("Pizza?", ["yes", "no"]), "examples": Examples(["Paid"], ["no"])},
        {"questions": Choice("Pizza?", ["no", "yes"]), "examples": Examples(["Paid"], ["yes"])},
    ),
    "examples of options in another order": (
        {"questions": Choice("Pizza?", {"a": "yes", "b": "no"}), "examples": Examples(["Paid"], ["a"])},
        {"questions": Choice("Pizza?", {"b": "yes", "a": "no"}), "examples": Examples(["Paid"], ["a"])},
    ),
    "names that only described options have": (
        {"questions": Choice("Who?", {"Pizza": "yes", "Paris": "no"}), "form": DESCRIBED},
        {"questions": Choice("Who?", {"Paris": "yes", "Pizza": "no"}), "form": DESCRIBED},
    ),
    "an order of them": (
        {"questions": Choice("Who?", {"Pizza": "yes", "Paris": "no"}), "form": DESCRIBED, "orders": 1},
        {"questions": Choice("Who?", {"Paris": "no", "Pizza": "yes"}), "form": DESCRIBED, "orders": 1},
    ),
    "the texts of an option that is listed by name": (
        {"questions": Choice("Who?", {"Pizza": ["yes", "Yes"], "Paris": "no"}), "form": NAMES},
        {"questions": Choice("Who?", {"Pizza": "yes", "Paris": ["no", "Yes"]}), "form": NAMES},
    ),
}


def probabilities(llm: Any, asked: dict[str, Any], state: str = STATE) -> list[float]:
    return list(decide(llm, state, **asked).probabilities.values())


@pytest.mark.parametrize(("first", "then"), PAIRS.values(), ids=PAIRS)
def test_a_prior_is_not_taken_for_that_of_another_question(
    fresh: Any, precise: Any, first: dict[str, Any], then: dict[str, Any]
) -> None:
    attachment(precise).known.pop("priors", None)
    expected = probabilities(precise, then)
    probabilities(fresh, first)
    assert probabilities(fresh, then) == pytest.approx(expected, abs=1e-5)


def test_it_does_not_outlive_a_change_of_the_chat_format(smollm2: Any) -> None:
    asked = {"questions": Choice("Which?", ["yes", "no"]), "form": Form("{{ state }} {{ instructions }}", chat=True)}
    before = probabilities(smollm2, asked)
    own = smollm2.chat_format
    try:
        smollm2.chat_format = "gemma"
        changed = probabilities(smollm2, asked)
        attachment(smollm2).known.pop("priors")
        assert probabilities(smollm2, asked) == pytest.approx(changed, abs=1e-5)
    finally:
        smollm2.chat_format = own
    assert probabilities(smollm2, asked) == pytest.approx(before, abs=1e-5)
    assert before != pytest.approx(changed, abs=1e-3)


def test_examples_are_those_of_values_and_not_of_how_they_print(tiny: Any) -> None:
    yes, no = Value("yes"), Value("no")
    shown = Examples(["Paid"], [yes])
    described = {yes: "Pizza", no: "Paris"}, {no: "Pizza", yes: "Paris"}
    first, second = (shown.of(Choice("Which?", one), ["value", "value"]) for one in described)
    assert first != second


def test_what_is_evaluated_alike_is_evaluated_once(fresh: Any) -> None:
    decide(fresh, STATE, Choice("Which?", {"a": "yes", "b": "no"}))
    decide(fresh, STATE, Choice("Which?", ["no", "yes"]))
    memory = attachment(fresh).known["priors"]
    assert len(memory._entries) == 1


def drawn(rng: random.Random) -> dict[str, Any]:
    """Draw a question and how it is asked."""
    texts = rng.sample(["yes", "no", "Paris", "Pizza", "yes Paris", "no Pizza"], rng.choice([2, 2, 3]))
    names = rng.sample(["a", "b", "Paris", "Pizza", "yes", "no"], len(texts))
    instructions = rng.choice(["Which?", "Who?", "yes or no?"])
    questions: list[Choice[Any] | Predicate | Score] = [
        Choice(instructions, dict(zip(names, texts, strict=True))),
        Choice(instructions, texts, other=rng.random() < 0.3),
        Choice(instructions, {names[0]: texts, names[1]: "Answer"}),
        Predicate(instructions, texts[0], texts[1]),
        Score(instructions, texts),
    ]
    question = rng.choice(questions)
    form = rng.choice([None, "listed", "letters", DESCRIBED, NAMES, Form(NAMES.template, "names", absent="yes")])
    options: dict[str, Any] = {"form": form}
    if form in ("listed", "letters") and isinstance(question, Choice):  # orders have no effect on the others
        options["orders"] = rng.choice([1, 1, 2])
    if rng.random() < 0.4:
        values = question.values
        states = ["Paid", "Refund me", "What?"][: rng.choice([1, 2, 3])]
        options["examples"] = Examples(states, [rng.choice(values) for _ in states])
    options["reproducible"] = rng.random() < 0.1
    return {"questions": question, **options}


def test_answers_after_random_other_questions_are_those_of_a_fresh_llama(model_paths: dict[str, Path]) -> None:
    rng = random.Random(N_COMPANIES)
    cases = [drawn(rng) for _ in range(25 * N_COMPANIES)]
    llm = opened(model_paths["tiny"])
    bare = opened(model_paths["tiny"])
    with StreamHandle(llm) as handle, ThreadPoolExecutor(2) as pool:
        for asked in cases:
            expected = probabilities(bare, asked)
            attachment(bare).known.clear()  # nothing is remembered of what was asked before
            other = rng.choice(cases)
            way = rng.choice(["alone", "many", "threads", "handle"])
            if way == "many":
                found = list(next(decide_many(llm, [STATE, "x"], **asked)).probabilities.values())
            elif way == "threads":
                both = pool.map(lambda one: probabilities(llm, one), (asked, other))
                found = next(iter(both))
                list(both)
            else:
                if way == "handle" and "examples" not in other:
                    handle.prefill("Some text before.")
                    handle.decide(other["questions"], **{k: v for k, v in other.items() if k != "questions"})
                found = probabilities(llm, asked)
            assert found == pytest.approx(expected, abs=1e-5), asked
    llm.close()
    bare.close()
