from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_readings import read_rows
from token_trie import Calibration, Choice, choose, choose_many, decide, decide_many, score
from token_trie.errors import CalibrationError
from token_trie.trust.metrics import log_softmax

PROMPTS = [f"Pizza {i} in Paris {'is' if i % 2 else 'was'}" for i in range(40)]
CHOICES = {" yes": "y", " no": "n", " maybe": "m"}
GOLD = ["y" if i % 2 else "n" for i in range(40)]
TEAM = Choice("Which team?", {"billing": "yes Paris", "sales": None, "other_things": "Pizza"})


@pytest.fixture(scope="module")
def fitted(precise: Any) -> Calibration:
    return Calibration.fit(precise, PROMPTS, GOLD, CHOICES, kind="bias")


def test_a_decision_has_the_probabilities_of_its_calibration(precise: Any, fitted: Calibration) -> None:
    raw = read_rows(precise, PROMPTS, CHOICES).raw
    expected = np.exp(log_softmax((raw + fitted.fitted.bias) / fitted.fitted.temperature))
    options: Any = {"calibration": fitted, "probabilities": True}
    for prompt, p, many in zip(PROMPTS, expected, choose_many(precise, PROMPTS, CHOICES, **options), strict=True):
        for decision in (choose(precise, prompt, CHOICES, **options), many):
            assert decision.calibration == "bias"
            assert decision.probabilities == pytest.approx(p, abs=1e-4)
            assert decision.index == p.argmax()
    scores = score(precise, PROMPTS[0], CHOICES, leaf_end="longest", calibration=fitted)
    assert np.exp(log_softmax(scores[None])[0]) == pytest.approx(expected[0], abs=1e-4)


@pytest.mark.parametrize("kind", ["temperature", "bias"])
def test_a_question_is_calibrated_too(precise: Any, kind: Any) -> None:
    states = [f"I was charged {i} times" for i in range(30)]
    gold = ["billing" if i % 3 else "sales" for i in range(30)]
    found = Calibration.fit(precise, states, gold, TEAM, kind=kind, n_folds=3)
    readings = read_rows(precise, states, TEAM)
    scores = readings.raw if found.fitted.base == "raw" else readings.contextual
    assert scores is not None
    p = np.exp(log_softmax(found.log_weights(scores, None)))
    for state, own in zip(states[:5], p, strict=False):
        answer = decide(precise, state, TEAM, calibration=found)
        assert answer.calibration == "fitted"
        assert list(answer.probabilities.values()) == pytest.approx(own, abs=1e-4)


def test_it_is_refused_where_it_was_not_fitted(precise: Any, smollm2: Any, fitted: Calibration) -> None:
    for llm, choices, options, message in (
        (smollm2, CHOICES, {}, "another model"),
        (precise, [" yes", " no"], {}, "other answers"),
        (precise, CHOICES, {"leaf_end": "any"}, "another leaf_end"),
    ):
        with pytest.raises(CalibrationError, match=message):
            choose(llm, PROMPTS[0], choices, calibration=fitted, **options)
    with pytest.raises(CalibrationError, match="other answers"):
        decide(precise, "a", TEAM, calibration=fitted)


@pytest.mark.parametrize("of_question", [False, True])
def test_a_head_decides_by_the_hidden_state(precise: Any, tmp_path: Path, of_question: bool) -> None:
    rows = [f"{'Paris' if i % 2 else 'Pizza'} {i} was charged" for i in range(40)]
    choices: Any = TEAM if of_question else CHOICES
    gold = [("sales" if of_question else "y") if i % 2 else ("billing" if of_question else "n") for i in range(36)]
    gold += ["other_things" if of_question else "m"] * 4
    found = Calibration.fit(precise, rows, gold, choices, kind="head", n_folds=3)
    found.save(tmp_path / "f.json")
    found = Calibration.load(tmp_path / "f.json")
    readings = read_rows(precise, rows, choices, states=True)
    expected = np.exp(log_softmax(found.log_weights(readings.raw, readings.states)))
    for i in (0, 1, 5):
        if of_question:
            many = decide_many(precise, rows[i : i + 1], TEAM, calibration=found)
            answers = [decide(precise, rows[i], TEAM, calibration=found), *many]
            for answer in answers:
                assert list(answer.probabilities.values()) == pytest.approx(expected[i], abs=1e-2)
            continue
        one: Any = choose(precise, rows[i], CHOICES, calibration=found)
        for decision in (one, next(choose_many(precise, rows[i : i + 1], CHOICES, calibration=found))):
            assert decision.probabilities == pytest.approx(expected[i], abs=1e-2)
            assert decision.index == expected[i].argmax()
            assert decision.calibration == "head"
        scores = score(precise, rows[i], CHOICES, leaf_end="longest", calibration=found)
        assert np.exp(log_softmax(scores[None])[0]) == pytest.approx(expected[i], abs=1e-2)
