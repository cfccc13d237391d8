from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from model_readings import read_rows
from token_trie import (
    ArgumentError,
    Choice,
    ContextError,
    choose,
    choose_many,
    decide,
    decide_many,
    score,
    score_many,
)
from token_trie.decisions import many
from tokenized_choices import fit_choices

PROMPTS = [f"Pizza {i} in Paris is" for i in range(20)]
CHOICES = {" yes": "y", " no": "n", " yes and no": "b"}
TEAM = Choice("Which team?", {"billing": "yes Paris", "sales": None, "other_things": "Pizza"})


def softmax(weights: Any) -> Any:
    return np.exp(weights) / np.exp(weights).sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("options", [{}, {"as_ready": True}, {"mode": "aligned", "seed": 1}], ids=str)
def test_what_rows_get_in_the_mean_is_taken_out_of_each(precise: Any, options: Any) -> None:
    raw = softmax(read_rows(precise, PROMPTS, CHOICES).raw)
    expected = raw / raw.mean(axis=0)
    expected /= expected.sum(axis=1, keepdims=True)
    scores = score_many(precise, PROMPTS, CHOICES, leaf_end="longest")
    decisions: Any = list(choose_many(precise, PROMPTS, CHOICES, calibration="batch", **options))
    if "as_ready" in options:
        decisions = [decision for _, decision in sorted(decisions, key=lambda pair: pair[0])]
    assert len(decisions) == len(PROMPTS)
    for decision, p, own in zip(decisions, expected, scores, strict=True):
        assert decision.calibration == "batch"
        assert decision.probabilities == pytest.approx(p, abs=1e-3)
        if not options:
            assert decision.index == p.argmax()
            assert decision.logprob == pytest.approx(own[decision.index], abs=1e-3)


def test_later_windows_are_decided_by_all_before_too(precise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "BATCH_ROWS", 10)
    raw = softmax(read_rows(precise, PROMPTS, CHOICES).raw)
    found = list(choose_many(precise, PROMPTS, CHOICES, calibration="batch"))
    for rows in (raw[:10], raw):
        at = len(rows) - 1
        p = raw[at] / rows.mean(axis=0)
        assert found[at].probabilities == pytest.approx(p / p.sum(), abs=1e-3)


@pytest.mark.parametrize("times", [1, 5])
def test_answers_are_raw_as_long_as_there_are_few_different_rows(precise: Any, times: int) -> None:
    rows = PROMPTS[:3] * times
    raw = softmax(read_rows(precise, rows, CHOICES).raw)
    for decision, p in zip(choose_many(precise, rows, CHOICES, calibration="batch"), raw, strict=True):
        assert decision.calibration == "raw"
        assert decision.probabilities == pytest.approx(p, abs=1e-3)
    own = decide_many(precise, rows, TEAM, calibration=None)
    for answer, expected in zip(decide_many(precise, rows, TEAM, calibration="batch"), own, strict=True):
        assert answer.calibration == "raw"
        assert answer.probabilities == pytest.approx(expected.probabilities, abs=1e-3)


def test_equal_rows_count_once(precise: Any) -> None:
    rows = [*PROMPTS, *PROMPTS[:1] * 30]
    for found, once in (
        (
            choose_many(precise, rows, CHOICES, calibration="batch"),
            choose_many(precise, PROMPTS, CHOICES, calibration="batch"),
        ),
        (
            decide_many(precise, rows, TEAM, calibration="batch"),
            decide_many(precise, PROMPTS, TEAM, calibration="batch"),
        ),
    ):
        for one, expected in zip(found, [*(same := list(once)), *same[:1] * 30], strict=True):
            assert one.probabilities == pytest.approx(expected.probabilities, abs=1e-3)


def test_states_may_be_one_object_that_the_caller_changes(precise: Any) -> None:
    def rows() -> Iterator[dict[str, str]]:
        row: dict[str, str] = {}
        for prompt in PROMPTS:
            row["text"] = prompt
            yield row

    expected = decide_many(precise, [dict(row) for row in rows()], TEAM, calibration="batch")
    for one, other in zip(decide_many(precise, rows(), TEAM, calibration="batch"), expected, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-3)


def test_a_row_that_cannot_be_answered_leaves_the_others(precise: Any) -> None:
    prompts = [*PROMPTS[:10], "word " * 2000, *PROMPTS[10:]]
    found = list(choose_many(precise, prompts, CHOICES, calibration="batch", on_error="return"))
    assert isinstance(found.pop(10), ContextError)
    for one, other in zip(found, choose_many(precise, PROMPTS, CHOICES, calibration="batch"), strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-3)
    assert all(
        isinstance(e, ContextError)
        for e in choose_many(precise, ["word " * 2000] * 2, CHOICES, calibration="batch", on_error="return")
    )


@pytest.mark.parametrize("model", ["precise", "recurrent"])
def test_states_of_a_question_are_divided_by_what_all_give_its_texts(request: Any, model: str) -> None:
    llm = request.getfixturevalue(model)
    states = [f"I was charged {i} times" for i in range(12)]
    raw = read_rows(llm, states, TEAM).raw
    spelled = fit_choices(llm, f"{states[0]}\n\nQuestion: Which team?\nAnswer:", ["yes Paris", "sales", "Pizza"])
    expected = softmax((raw - raw.mean(axis=0)) / np.sqrt([len(row) for row in spelled.rows()]))
    for answer, p in zip(decide_many(llm, states, TEAM, calibration="batch"), expected, strict=True):
        assert answer.calibration == "batch"
        assert list(answer.probabilities.values()) == pytest.approx(p, abs=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: choose(llm, "a", CHOICES, calibration="batch"), "'batch' is taken over many rows"),
        (lambda llm: score(llm, "a", CHOICES, calibration="batch"), "'batch' is taken over many rows"),
        (lambda llm: score_many(llm, ["a"], CHOICES, calibration="batch"), "'batch' is taken over many rows"),
        (lambda llm: decide(llm, "a", TEAM, calibration="batch"), "'batch' is taken over many rows"),
        (lambda llm: choose(llm, "a", CHOICES, calibration="mean"), "calibration must be a Calibration"),
        (lambda llm: choose_many(llm, ["a"], sets=[CHOICES], calibration="batch"), "one set, and sets gives"),
        (
            lambda llm: list(decide_many(llm, ["a"], TEAM, calibration="batch", reproducible=True)),
            "without reproducible",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(precise: Any, call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(precise)
