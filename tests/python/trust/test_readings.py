from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from model_readings import read_rows
from token_trie import ArgumentError, Choice, ContextError, Form, Predicate, TokenTrie, decide, score
from token_trie.errors import CalibrationError
from token_trie.trust.rows import RowOptions

PROMPTS = ["Pizza in Paris:", "A word about Paris:", "Pizza:"]
CHOICES = {"yes": 1, "no": 0, "yes and no": 2}
TEAM = Choice("Which team?", {"billing": "yes Paris", "sales": None, "other_things": "Pizza"})


def test_rows_of_prompts_have_the_scores_of_score(precise: Any) -> None:
    read = read_rows(precise, iter(PROMPTS), CHOICES)
    assert (len(read), read.texts, read.contextual, read.states) == (3, ("yes", "no", "yes and no"), None, None)
    for prompt, raw, mass in zip(PROMPTS, read.raw, read.mass, strict=True):
        own = score(precise, prompt, CHOICES, leaf_end="longest")
        assert raw == pytest.approx(own, abs=1e-4)
        assert mass == pytest.approx(np.exp(own).sum(), rel=1e-3)


def softmax(weights: Any) -> Any:
    return np.exp(weights) / np.exp(weights).sum()


@pytest.mark.parametrize(
    "options",
    [{}, {"form": "listed", "orders": 2}, {"form": "letters"}],
)
@pytest.mark.parametrize("question", [TEAM, Predicate("Is it?"), Choice("Which?", ["a", "b"], other=True)], ids=str)
def test_rows_of_a_question_have_what_decide_makes_probabilities_of(precise: Any, question: Any, options: Any) -> None:
    states = ["I was charged twice.", {"text": "Hello"}]
    read = read_rows(precise, states, question, RowOptions(**options))
    assert read.contextual is not None
    for state, raw, contextual in zip(states, read.raw, read.contextual, strict=True):
        for weights, calibration in ((raw, None), (contextual, "contextual")):
            answer = decide(precise, state, question, calibration=calibration, **options)
            p = softmax(weights)[: len(question.values)]
            assert list(answer.probabilities.values()) == pytest.approx(p / p.sum(), abs=1e-4)


def test_rows_of_a_filtered_set_are_of_what_is_left(precise: Any) -> None:
    whole = TokenTrie.from_choices(precise, ["yes", "no", "yes and no", "maybe"])
    left, alone = whole.filtered([1, 2]), TokenTrie.from_choices(precise, ["no", "yes and no"])
    read, expected = (read_rows(precise, PROMPTS, some) for some in (left, alone))
    assert read.texts == read.binding.classes == expected.texts == ("no", "yes and no")
    assert read.raw == pytest.approx(expected.raw, abs=1e-4)
    assert read.mass == pytest.approx(expected.mass, abs=1e-4)


def test_no_rows_are_none(precise: Any) -> None:
    assert read_rows(precise, [], CHOICES).raw.shape == (0, 3)


@pytest.mark.parametrize(
    ("choices", "options", "message"),
    [
        (["a", "b", "a"], {}, r"choices\[2\]: 'a' is there twice"),
        (CHOICES, {"form": "listed"}, "form, orders and examples: go with a Choice"),
        (TEAM, {"leaf_end": "any"}, "template, leaf_end and leading_space: are for choices"),
        (TEAM, {"template": "{text}"}, "template, leaf_end and leading_space: are for choices"),
    ],
)
def test_what_cannot_be_read_is_refused(precise: Any, choices: Any, options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_rows(precise, PROMPTS, choices, RowOptions(**options))


def test_a_row_that_cannot_be_read_is_named(precise: Any) -> None:
    with pytest.raises(ContextError, match=r"prompts\[1\]"):
        read_rows(precise, ["a", "word " * 2000], CHOICES)
    with pytest.raises(ContextError, match=r"states\[1\]"):
        read_rows(precise, ["a", "word " * 2000], TEAM)


def test_bindings_tell_what_differs(precise: Any, smollm2: Any) -> None:
    own = read_rows(precise, [], CHOICES, RowOptions(template="{text}:")).binding
    own.require(read_rows(precise, [], CHOICES).binding)  # which does not tell its template
    for other, message in (
        (read_rows(smollm2, [], CHOICES), "another model"),
        (read_rows(precise, [], ["yes", "no", "maybe"]), "other answers: 'yes and no', where this is 'maybe'"),
        (read_rows(precise, [], ["yes"]), "other answers: 3 of them, where there are 1"),
        (read_rows(precise, [], CHOICES, RowOptions(leaf_end="any")), "another leaf_end: 'longest'"),
        (read_rows(precise, [], CHOICES, RowOptions(template="{text}?")), "another question: '{text}:'"),
    ):
        with pytest.raises(CalibrationError, match=message):
            own.require(other.binding)
    asked = read_rows(precise, [], TEAM).binding
    for question, options in (
        (TEAM, {"form": "listed"}),
        (TEAM, {"form": Form("{{ state }}\n{{ instructions }}")}),
        (Choice("Whose?", TEAM.options), {}),
        (Choice("Which team?", {**dict(TEAM.options), "billing": "Paris"}), {}),
    ):
        with pytest.raises(CalibrationError, match="another question"):
            asked.require(read_rows(precise, [], question, RowOptions(**options)).binding)
