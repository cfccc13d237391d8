from __future__ import annotations

import math
from enum import Enum
from typing import Any, Literal

import pytest
from token_trie import ArgumentError, Choice, Predicate, Score
from token_trie.questions.question import QuestionStats, make_answer, state_text, words_of


class Team(Enum):
    BILLING = "billing"
    SALES = "sales"


def texts(question: Any) -> list[tuple[str, ...]]:
    return [option.texts for option in question.wording]


def test_an_option_is_worded_by_its_description_or_by_its_name_as_words() -> None:
    choice = Choice("Which?", {"book_flight": None, "READ_FILE": " ", "refund": "money back", "New York": None})
    assert texts(choice) == [("book flight",), ("read file",), ("money back",), ("New York",)]
    assert choice.values == ("book_flight", "READ_FILE", "refund", "New York")


def test_options_are_whatever_choices_are() -> None:
    assert Choice("Which?", ["a", "b"]).values == ("a", "b")
    assert Choice("Which?", Team).values == (Team.BILLING, Team.SALES)
    assert texts(Choice("Which?", Team)) == [("billing",), ("sales",)]
    assert texts(Choice("Which?", Literal["x_y", "z"])) == [("x y",), ("z",)]
    assert texts(Choice("Which?", {True: None, 3: None})) == [("true",), ("3",)]


def test_several_texts_may_stand_for_an_option_and_json_is_one_text() -> None:
    choice = Choice({"ask": "Which?"}, {"yes": ["Yes", "Sure", "Yes"], "no": {"means": "no"}})
    assert texts(choice) == [("Yes", "Sure"), ('{"means": "no"}',)]


def test_predicates_are_answered_with_yes_and_no_or_what_these_mean() -> None:
    assert texts(Predicate("Is it?")) == [("Yes",), ("No",)]
    assert texts(Predicate("Is it?", false="It is not")) == [("Yes",), ("It is not",)]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Choice("Which?", {}), "options: none given"),
        (lambda: Choice("Which?", []), "choices: none given"),
        (lambda: Choice("Which?", {"a": []}), r"options\['a'\] must be one text or several"),
        (lambda: Choice("Which?", {"a": ["x", ""]}), r"options\['a'\]\[1\]: empty"),
        (lambda: Choice("Which?", {"a": "x\0"}), r"options\['a'\]: holds a NUL"),
        (lambda: Choice("Which?", {"a": {"x": math.nan}}), r"options\['a'\]: no text and no JSON"),
        (lambda: Choice("\ud800", {"a": None}), "instructions: "),
        (lambda: Choice("Which?", {"a": None}, other=1), "other must be True or False"),  # type: ignore[arg-type]
        (lambda: Predicate(object()), "instructions: no text and no JSON"),  # type: ignore[arg-type]
        (lambda: Predicate("Is it?", true="\0"), "true: holds a NUL"),
        (lambda: Predicate("Is it?", true=""), "true: empty"),
        (lambda: Predicate("Is it?", false=[]), "false must be one text or several"),
        (lambda: Score("How?", ["low"]), "levels must be two or more"),
        (lambda: Score("How?", "low"), "levels must be a list"),
        (lambda: Score("How?", ["low", ""]), r"levels\[1\]: empty"),
    ],
)
def test_what_is_no_question_is_refused_with_its_position(make: Any, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        make()


def test_a_state_is_text_json_or_the_turns_of_a_chat() -> None:
    assert state_text("as it is\n") == "as it is\n"
    assert state_text({"a": [1, None, "ü"]}) == '{"a": [1, null, "ü"]}'
    assert state_text([]) == "[]"
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": parts}]
    assert state_text(turns) == "user: Hello\n\nassistant: one\ntwo"
    with pytest.raises(ArgumentError, match="state: no text and no JSON value"):
        state_text({1, 2})
    with pytest.raises(ArgumentError, match=r"state: .*NUL"):
        state_text("\0")


def test_words_of_names_are_left_where_they_are_words_already() -> None:
    assert [words_of(name) for name in ("e-mail", "GitHub", "_x", "a__b", 12, False)] == [
        *("e-mail", "GitHub", "_x", "a b"),
        *("12", "false"),
    ]


def answered(question: Any, *p: float) -> Any:
    import numpy as np

    return make_answer(question, np.array(p), 0.5, "raw", QuestionStats(1, 1))


def test_confidence_of_a_choice_is_how_far_the_best_is_above_an_even_share() -> None:
    choice = Choice("Which?", ["a", "b", "c", "d"])
    assert answered(choice, 0.7, 0.1, 0.1, 0.1).confidence == pytest.approx((0.7 - 0.25) / 0.75)
    assert answered(choice, 0.25, 0.25, 0.25, 0.25).confidence == 0
    assert answered(choice, 0, 0, 1, 0).confidence == 1
    assert answered(Choice("Which?", ["a"]), 1.0).confidence == 1


def test_confidence_of_a_score_is_how_near_the_levels_are_to_the_best() -> None:
    score = Score("How?", ["low", "middle", "high", "top"])
    whole = answered(score, 0.1, 0.2, 0.6, 0.1)
    assert whole.value == 2
    assert whole.score == pytest.approx(0.2 + 1.2 + 0.3)
    assert whole.legend == {0: "low", 1: "middle", 2: "high", 3: "top"}
    # 1 - (0.1·2 + 0.2·1 + 0.1·1) / ((1.5 + 0.5 + 0.5 + 1.5) / 4)
    assert whole.confidence == pytest.approx(0.5)
    assert answered(score, 0.5, 0, 0, 0.5).confidence == 0


def test_what_a_predicate_is_answered_with_is_a_probability() -> None:
    whole = answered(Predicate("Is it?"), 0.3, 0.7)
    assert (whole.value, whole.probability) == (False, pytest.approx(0.3))
    assert answered(Predicate("Is it?"), 0.5, 0.5).value is True


def test_none_of_these_is_listed_beside_the_options() -> None:
    whole = answered(Choice("Which?", ["a", "b"], other=True), 0.1, 0.3, 0.6)
    assert whole.other == pytest.approx(0.6)
    assert whole.probabilities == {"a": pytest.approx(0.25), "b": pytest.approx(0.75)}
    assert answered(Choice("Which?", ["a", "b"]), 0.5, 0.5).other is None
