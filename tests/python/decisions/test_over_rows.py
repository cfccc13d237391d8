from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from model_readings import read_rows
from token_trie import (
    ArgumentError,
    Choice,
    ContextError,
    Predicate,
    choose,
    choose_many,
    decide,
    decide_many,
    score,
    score_many,
)
from token_trie.decisions.calibration import BatchPrior
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


def test_later_windows_are_decided_by_all_before_too(precise: Any) -> None:
    raw = softmax(read_rows(precise, PROMPTS, CHOICES).raw)
    found = list(choose_many(precise, PROMPTS, CHOICES, calibration=BatchPrior(window=10)))
    for rows in (raw[:10], raw):
        at = len(rows) - 1
        p = raw[at] / rows.mean(axis=0)
        assert found[at].probabilities == pytest.approx(p / p.sum(), abs=1e-3)


def test_given_frequencies_count(precise: Any) -> None:
    frequencies = {"y": 8.0, "n": 1.0, "b": 1.0}
    even = list(choose_many(precise, PROMPTS, CHOICES, calibration="batch"))
    told = list(choose_many(precise, PROMPTS, CHOICES, calibration=BatchPrior(frequencies)))
    for one, other in zip(even, told, strict=True):
        p = np.asarray(one.probabilities) * np.array([8.0, 1.0, 1.0])
        assert other.probabilities == pytest.approx(p / p.sum(), abs=1e-4)


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("frequencies", [None, {"y": 8, "n": 1, "b": 1, "billing": 8, "sales": 1, "other_things": 1}])
def test_answers_are_raw_as_long_as_there_are_few_different_rows(precise: Any, frequencies: Any, times: int) -> None:
    rows, prior = PROMPTS[:3] * times, BatchPrior(frequencies, window=10)
    raw = softmax(read_rows(precise, rows, CHOICES).raw)
    for decision, p in zip(choose_many(precise, rows, CHOICES, calibration=prior), raw, strict=True):
        assert decision.calibration == "raw"
        assert decision.probabilities == pytest.approx(p, abs=1e-3)
    own = decide_many(precise, rows, TEAM, calibration=None)
    for answer, expected in zip(decide_many(precise, rows, TEAM, calibration=prior), own, strict=True):
        assert answer.calibration == "raw"
        assert answer.probabilities == pytest.approx(expected.probabilities, abs=1e-3)


def test_equal_rows_count_once(precise: Any) -> None:
    rows = [*PROMPTS, *PROMPTS[:1] * 30]
    prior = BatchPrior(window=len(rows))
    for found, once in (
        (
            choose_many(precise, rows, CHOICES, calibration=prior),
            choose_many(precise, PROMPTS, CHOICES, calibration=prior),
        ),
        (decide_many(precise, rows, TEAM, calibration=prior), decide_many(precise, PROMPTS, TEAM, calibration=prior)),
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


def test_frequencies_shift_the_log_weights_of_a_question(precise: Any) -> None:
    states = [f"I was charged {i} times" for i in range(12)]
    frequencies = {"billing": 5.0, "sales": 1.0, "other_things": 1.0}
    even = decide_many(precise, states, TEAM, calibration="batch")
    told = decide_many(precise, states, TEAM, calibration=BatchPrior(frequencies))
    for one, other in zip(even, told, strict=True):
        p = {name: share * frequencies[name] for name, share in one.probabilities.items()}
        total = math.fsum(p.values())
        assert other.probabilities == pytest.approx({name: share / total for name, share in p.items()}, abs=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: choose(llm, "a", CHOICES, calibration="batch"), "'batch' is taken over many rows"),
        (lambda llm: score(llm, "a", CHOICES, calibration="batch"), "'batch' is taken over many rows"),
        (lambda llm: score_many(llm, ["a"], CHOICES, calibration="batch"), "'batch' is taken over many rows"),
        (lambda llm: decide(llm, "a", TEAM, calibration="batch"), "'batch' is taken over many rows"),
        (lambda llm: choose(llm, "a", CHOICES, calibration="mean"), "calibration: 'mean' where a Calibration"),
        (lambda llm: choose_many(llm, ["a"], sets=[CHOICES], calibration="batch"), "one set, and sets gives"),
        (
            lambda llm: list(decide_many(llm, ["a"], TEAM, calibration="batch", reproducible=True)),
            "without reproducible",
        ),
        (
            lambda llm: list(
                decide_many(llm, ["a"], {"a": TEAM, "b": Predicate("b?")}, calibration=BatchPrior({"billing": 1.0}))
            ),
            "those of one question",
        ),
        (lambda llm: list(decide_many(llm, ["a"], TEAM, calibration=BatchPrior({"billing": 1}))), "none of 'sales'"),
        (lambda llm: list(choose_many(llm, ["a"], CHOICES, calibration=BatchPrior({"y": 1}))), "none of 'n'"),
        (lambda llm: BatchPrior({"y": 0}), r"frequencies\['y'\]: 0 is not above 0"),
        (lambda llm: BatchPrior({"y": "a"}), r"frequencies\['y'\]"),
        (lambda llm: BatchPrior(["y"]), "frequencies: list where a dict belongs"),
        (lambda llm: BatchPrior(window=0), "window"),
    ],
)
def test_what_does_not_go_together_is_refused(precise: Any, call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(precise)
