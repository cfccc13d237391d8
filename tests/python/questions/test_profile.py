from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from token_trie import ArgumentError, Choice, Form, Predicate, Score, StreamHandle, decide, decide_many
from token_trie.native.lifetime import attachment
from token_trie.questions.decide import asked_of
from token_trie.questions.options import FORMS, PROFILES, DecideOptions, name_of, profile_of
from token_trie.trust.rows import RowOptions

TEAM = Choice("Which team?", {"billing": "payments", "sales": "offers"})
QUESTIONS = {"team": TEAM, "urgent": Predicate("Is it urgent?"), "mood": Score("How angry?", ["calm", "furious"])}


@pytest.fixture
def instructed(tiny: Any) -> Any:
    """Give the tiny model the profile of a large one."""
    known = attachment(tiny).known
    known["profile"] = PROFILES["large instruct"]
    yield tiny
    del known["profile"]


@pytest.mark.parametrize(
    ("n_params", "has_template", "name"),
    [
        (134_515_008, True, "plain"),
        (268_098_176, False, "plain"),
        (494_032_768, True, "instruct"),
        (494_032_768, False, "plain"),
        (1_543_714_304, True, "large instruct"),
        (7_000_000_000, False, "plain"),
    ],
)
def test_the_file_says_the_profile(n_params: int, has_template: bool, name: str) -> None:
    assert name_of(n_params, has_chat_template=has_template) == name


def test_an_answer_says_by_which_profile_it_was_asked(tiny: Any, instructed: Any) -> None:
    assert decide(instructed, "Help!", TEAM).profile == "large instruct"
    assert next(decide_many(instructed, ["Help!"], TEAM)).profile == "large instruct"
    assert decide(instructed, "Help!", TEAM, form="unlisted").profile is None


def test_small_models_have_the_plain_profile(tiny: Any) -> None:
    assert profile_of(tiny) is PROFILES["plain"]
    assert decide(tiny, "Help!", TEAM) == decide(tiny, "Help!", TEAM, form="unlisted")


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_profile_averages_its_forms(instructed: Any, name: str) -> None:
    question = QUESTIONS[name]
    forms = PROFILES["large instruct"].forms(question)
    expected = decide(instructed, "Help!", question, form=forms)
    assert decide(instructed, "Help!", question) == expected
    assert decide(instructed, "Help!", QUESTIONS)[name].probabilities == pytest.approx(expected.probabilities, abs=1e-5)


def test_a_handle_has_the_plain_profile_because_its_text_is_there_already(instructed: Any) -> None:
    with StreamHandle(instructed) as handle:
        handle.prefill("Help!")
        assert handle.decide(TEAM) == handle.decide(TEAM, form="unlisted")


def test_options_that_are_too_long_are_not_listed(instructed: Any) -> None:
    many = Choice("Which?", [f"a rather long option of number {i}" for i in range(200)])
    assert asked_of(many, DecideOptions(), instructed).forms == PROFILES["large instruct"].choice[1:]


def test_effort_is_one_form_all_forms_or_all_orders(instructed: Any) -> None:
    four = Choice("Which?", ["a", "b", "c", "d"])
    listed, other = PROFILES["large instruct"].choice

    def views(**options: Any) -> list[tuple[Form, int]]:
        return [(view.form, view.offset) for view in asked_of(four, DecideOptions(**options), instructed).views]

    assert views(effort="fast") == [(listed, 0)]
    assert views() == [(listed, 0), (other, 0)]
    assert views(effort="best") == [*((listed, i) for i in (0, 2, 1, 3)), (other, 0)]
    assert views(effort="best", orders=2) == [(listed, 0), (listed, 2), (other, 0)]
    assert views(effort="fast", form=(FORMS["listed"], other)) == [(FORMS["listed"], 0)]


def test_an_unknown_effort_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="effort"):
        DecideOptions(effort="high")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="effort"):
        replace(RowOptions(effort="fast")).require_for(is_question=False)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_profile_has_a_form_of_choices_that_lists_nothing_for_sets_and_long_options(profile: Any) -> None:
    assert any("options" not in form.template for form in profile.choice)
