from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from token_trie import Choice, Predicate, Score, StreamHandle, decide, decide_many
from token_trie.native.lifetime import attachment
from token_trie.questions.decide import prepare
from token_trie.questions.options import PROFILES, DecideOptions, name_of, profile_of

TEAM = Choice("Which team?", {"billing": "payments", "sales": "offers"})
QUESTIONS = {"team": TEAM, "urgent": Predicate("Is it urgent?"), "mood": Score("How angry?", ["calm", "furious"])}


@pytest.fixture
def instructed(tiny: Any) -> Any:
    """Give the tiny model the profile of a large one."""
    known = attachment(tiny).known
    known["profile"] = "large instruct"
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
    assert profile_of(tiny) == "plain"
    assert decide(tiny, "Help!", TEAM) == decide(tiny, "Help!", TEAM, form="unlisted")


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_profile_averages_its_forms(instructed: Any, name: str) -> None:
    question = QUESTIONS[name]
    forms = PROFILES["large instruct"][type(question)]
    alone = [np.log(list(decide(instructed, "Help!", question, form=form).probabilities.values())) for form in forms]
    expected = np.exp(np.average(alone, axis=0, weights=list(forms.values())))
    expected /= expected.sum()
    for found in (decide(instructed, "Help!", question), decide(instructed, "Help!", QUESTIONS)[name]):
        assert list(found.probabilities.values()) == pytest.approx(expected, abs=1e-5)


def test_a_handle_has_the_plain_profile_because_its_text_is_there_already(instructed: Any) -> None:
    with StreamHandle(instructed) as handle:
        handle.prefill("Help!")
        assert handle.decide(TEAM) == handle.decide(TEAM, form="unlisted")


def test_options_that_are_too_long_are_not_listed(instructed: Any) -> None:
    many = Choice("Which?", [f"a rather long option of number {i}" for i in range(200)])
    _, second = PROFILES["large instruct"][Choice]
    assert prepare(many, DecideOptions(), instructed).forms == {second: 1.0}


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_profile_has_a_form_of_choices_that_lists_nothing_for_sets_and_long_options(profile: Any) -> None:
    assert any("options" not in form.template for form in profile[Choice])
