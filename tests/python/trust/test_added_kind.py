"""A calibration that is added to a table is taken wherever calibrations are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_trie import Calibration, Choice, choose, choose_many, decide, decide_many, evaluate, score
from token_trie.cli.label import CalibrationOptions
from token_trie.decisions.calibration import NAMED, Contextual
from token_trie.trust.fit import KINDS, Kind

QUESTION = Choice("Which team?", {"billing": "yes Paris", "sales": None})
STATES = [f"I was charged {i} times" for i in range(12)]
CHOICES = [" yes", " no", " yes and no"]


@dataclass(frozen=True)
class TwoPriors(Contextual):
    """The mean of two contextual priors."""

    kind, says = "two_priors", "by those of an empty row and of a dash"

    @property
    def prompts(self) -> tuple[Any, ...]:
        return (self.prompt, "-")


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMED, "two_priors", TwoPriors(None))  # type: ignore[arg-type]


def softmax(weights: Any) -> Any:
    return np.exp(weights) / np.exp(weights).sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "ask",
    [
        lambda llm, given: choose(llm, "Sure? Answer:", CHOICES, calibration=given, probabilities=True),
        lambda llm, given: next(choose_many(llm, ["Sure? Answer:"], CHOICES, calibration=given, probabilities=True)),
        lambda llm, given: choose(llm, "Sure? Answer:", CHOICES, calibration=given, mode="aligned", seed=1),
    ],
    ids=["choose", "choose_many", "aligned"],
)
def test_a_choice_is_divided_by_the_mean_of_both_priors(precise: Any, ask: Callable[..., Any]) -> None:
    own, one, other = (score(precise, prompt, CHOICES, leaf_end="longest") for prompt in ("Sure? Answer:", "N/A:", "-"))
    decision = ask(precise, TwoPriors("N/A:"))
    assert decision.calibration == "two_priors"
    assert decision.probabilities == pytest.approx(softmax(own - (one + other) / 2), abs=1e-3)


@pytest.mark.usefixtures("added")
def test_it_is_a_way_of_evaluate_and_a_name_of_label(precise: Any) -> None:
    gold = ["billing", "sales"] * 6
    found = evaluate(precise, STATES, gold, QUESTION, ways=["contextual", "two_priors"])
    answers = decide_many(precise, STATES, QUESTION, calibration="two_priors")  # type: ignore[arg-type]
    expected = [list(answer.probabilities.values()) for answer in answers]
    assert found["two_priors"].probabilities == pytest.approx(np.array(expected), abs=1e-3)
    prompts = [f"{state}. Answer:" for state in STATES]
    by_prompt = evaluate(precise, prompts, gold, ["billing", "sales"], ways=["two_priors"], empty="N/A. Answer:")
    decided = choose_many(
        precise, prompts, ["billing", "sales"], calibration=TwoPriors("N/A. Answer:"), probabilities=True
    )
    assert by_prompt["two_priors"].probabilities == pytest.approx(
        np.array([d.probabilities for d in decided]), abs=1e-3
    )
    assert CalibrationOptions("two_priors").given == "two_priors"


def test_a_kind_of_fit_is_fitted_saved_applied_and_compared(
    precise: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def median(readings: Any, *_: Any) -> dict[str, Any]:
        return {"bias": -np.median(readings.raw, axis=0)}

    monkeypatch.setitem(KINDS, "median", Kind("less the median of the rows", median))  # type: ignore[arg-type]
    made = Calibration.fit(precise, STATES, None, QUESTION, kind="median")  # type: ignore[arg-type]
    made.save(tmp_path / "f.json")
    read = Calibration.load(tmp_path / "f.json")
    assert read.kind == "median"
    own = evaluate(precise, STATES, ["billing", "sales"] * 6, QUESTION, ways=["median"])
    answers = [decide(precise, state, QUESTION, calibration=read) for state in STATES]
    assert own["median"].probabilities == pytest.approx(
        np.array([list(answer.probabilities.values()) for answer in answers]), abs=1e-3
    )
