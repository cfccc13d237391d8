from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import oracle
import pytest
from token_trie import ArgumentError, Choice, ContextError, Form, Predicate, Score, choose, decide, decide_many
from token_trie.asynchronous import adecide
from tokenized_choices import fit_choices

STATE = "I was charged twice for Pizza in Paris."
TEAM = Choice("Which team?", {"billing": "yes Paris", "sales": None, "other_things": "Pizza"})
QUESTIONS = {
    "team": TEAM,
    "urgent": Predicate("Is it urgent?"),
    "mood": Score("How angry?", ["calm", "annoyed", "very furious"]),
}


def scores(llm: Any, state: str, question: str, texts: list[str]) -> tuple[list[float], list[int]]:
    """Log-probabilities of texts and their numbers of tokens, one pass a token."""
    fitted = fit_choices(llm, f"{state}\n\nQuestion: {question}\nAnswer:", texts)
    rows = fitted.rows()
    return [sum(oracle.logprobs(llm, fitted.prompt[: fitted.n_kept], row)) for row in rows], list(map(len, rows))


def softmax(weights: list[float]) -> list[float]:
    total = sum(map(math.exp, weights))
    return [math.exp(weight) / total for weight in weights]


def test_probabilities_are_those_of_one_by_one(precise: Any) -> None:
    found = decide(precise, STATE, QUESTIONS)
    texts = {
        "team": ["yes Paris", "sales", "Pizza"],
        "urgent": ["Yes", "No"],
        "mood": ["calm", "annoyed", "very furious"],
    }
    for name, question in QUESTIONS.items():
        raw, lengths = scores(precise, STATE, question.instructions, texts[name])
        prior, _ = scores(precise, "N/A", question.instructions, texts[name])
        weights = [(a - b) / math.sqrt(n) for a, b, n in zip(raw, prior, lengths, strict=True)]
        assert list(found[name].probabilities.values()) == pytest.approx(softmax(weights), abs=1e-4)
        assert found[name].mass == pytest.approx(sum(map(math.exp, raw)), rel=1e-3)
        assert found[name].calibration == "contextual"
        asked = decide(precise, STATE, question, calibration=None)
        assert list(asked.probabilities.values()) == pytest.approx(softmax(raw), abs=1e-4)
        assert asked.calibration == "raw"


def test_answers_are_the_same_alone_and_among_others_in_any_order(precise: Any) -> None:
    together = decide(precise, STATE, QUESTIONS)
    for name in reversed(QUESTIONS):
        alone = decide(precise, STATE, QUESTIONS[name])
        assert list(alone.probabilities) == list(together[name].probabilities)
        assert list(alone.probabilities.values()) == pytest.approx(
            list(together[name].probabilities.values()), abs=1e-4
        )
    renamed = decide(precise, STATE, {"x": QUESTIONS["mood"], "team": QUESTIONS["mood"], "z": TEAM})
    assert renamed["x"].score == pytest.approx(together["mood"].score, abs=1e-4)
    assert renamed["team"].score == pytest.approx(together["mood"].score, abs=1e-4)


def test_odds_of_two_options_do_not_depend_on_a_third(precise: Any) -> None:
    p = decide(precise, STATE, TEAM).probabilities
    fewer = decide(precise, STATE, Choice("Which team?", {"sales": None, "billing": "yes Paris"})).probabilities
    assert fewer["billing"] / fewer["sales"] == pytest.approx(p["billing"] / p["sales"], rel=1e-3)
    cloned = Choice("Which team?", {**TEAM.options, "accounts": "yes Paris"})  # type: ignore[dict-item]
    more = decide(precise, STATE, cloned).probabilities
    assert more["billing"] == more["accounts"] == pytest.approx(p["billing"] / 2, abs=1e-4)
    assert more["sales"] == pytest.approx(p["sales"], abs=1e-4)
    renamed = decide(
        precise, STATE, Choice("Which team?", {"a": "yes Paris", "b": "sales", "c": "Pizza"})
    ).probabilities
    assert list(renamed.values()) == pytest.approx(list(p.values()), abs=1e-4)


@pytest.mark.parametrize("end", ["Answer:", "It is", "'Answer' ->"])
def test_odds_stay_beside_options_that_merge_where_a_form_ends_in_a_word_or_a_mark(smollm2: Any, end: str) -> None:
    form = Form("{{ state }}\n\nQuestion: {{ instructions }}\n" + end)

    def odds(*others: str) -> float:
        question = Choice("How many?", ["1", "23", *others])
        p = decide(smollm2, "There are three of them.", question, form=form).probabilities
        return math.log(p["1"] / p["23"])

    alone = odds()
    for others in (["other"], [")x", "''"], ['"," he said', "://"]):
        assert odds(*others) == pytest.approx(alone, abs=0.03)  # the rounding of a quantized model


def test_several_texts_of_an_option_add_up(precise: Any) -> None:
    both = Choice("Which?", {"both": ["Paris", "Pizza"], "no": "no"})
    raw, _ = scores(precise, STATE, "Which?", ["Paris", "Pizza", "no"])
    mass = [math.exp(one) for one in raw]
    found = decide(precise, STATE, both, calibration=None).probabilities
    assert found["both"] == pytest.approx((mass[0] + mass[1]) / sum(mass), abs=1e-4)


@pytest.mark.parametrize("is_reproducible", [False, True])
def test_texts_of_an_option_that_go_on_from_one_another_count_once(precise: Any, is_reproducible: bool) -> None:
    def ask(*texts: str) -> Any:
        question = Choice("Which?", {"it": list(texts), "no": "no"})
        return decide(precise, STATE, question, calibration=None, reproducible=is_reproducible)

    alone = ask("Pa")
    for texts in (("Pa", "Pa yes"), ("Pa", "Pa yes", "Pa yes no"), ("Pa", "Pa yes", " Pa", "Pa no")):
        found = ask(*texts)
        assert found.probabilities == pytest.approx(alone.probabilities, abs=1e-4)
        assert found.mass == pytest.approx(alone.mass, rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"reproducible": True}])
def test_options_that_go_on_from_one_another_are_weighed_as_choose_weighs_them(
    precise: Any, options: dict[str, Any]
) -> None:
    prompt = f"{STATE}\n\nQuestion: Which?\nAnswer:"
    for texts in (["Pa", "Paris", "no"], ["Pa", "Pa yes", "Pa yes no"], ["Pizza", "Pizza P", "P"]):
        chosen = choose(precise, prompt, texts, probabilities=True)
        found = decide(precise, STATE, Choice("Which?", texts), calibration=None, **options)
        assert list(found.probabilities.values()) == pytest.approx(chosen.probabilities.tolist(), abs=1e-4)
        assert found.mass == pytest.approx(chosen.mass, rel=1e-3)


def test_a_longer_option_can_win(smollm2: Any) -> None:
    state = "He flew to New York City. He stayed in New York City, as he likes New York City."
    form = Form("{{ state }} {{ instructions }}")
    found = decide(smollm2, state, Choice("He lives in", ["New York", "New York City"]), form=form, calibration=None)
    assert found.value == "New York City"
    chosen = choose(smollm2, f"{state} He lives in", ["New York", "New York City"], probabilities=True)
    assert chosen.value == "New York City"
    assert list(found.probabilities.values()) == pytest.approx(chosen.probabilities.tolist(), abs=1e-3)


def test_mass_is_exact_where_texts_go_on_from_one_another(precise: Any) -> None:
    texts = ["Pa", "Paris", "Pizza", "Pi", "yes", "yes no"]
    found = decide(precise, STATE, Choice("Which?", texts), calibration=None)
    prompt = f"{STATE}\n\nQuestion: Which?\nAnswer:"
    fitted = fit_choices(precise, prompt, texts)
    rows = fitted.rows()
    assert any(a != b and b[: len(a)] == a for a in rows for b in rows)  # a leaf that another goes on from
    assert len({row[0] for row in rows}) < len(rows)  # and beginnings that are shared
    longest = max(map(len, rows))
    # Every continuation of as many tokens that begins with one of them, each once.
    mass, before = 0.0, fitted.prompt[: fitted.n_kept]
    beginnings = {row[:n] for row in rows for n in range(len(row))}
    left = [((), 0.0)]
    for _ in range(longest):
        further: list[tuple[tuple[int, ...], float]] = []
        for written, logprob in left:
            precise.reset()
            precise.eval([*before, *written])
            following = oracle.logits(precise).astype(np.float64)
            following -= np.logaddexp.reduce(following)
            for token in range(len(following)):
                sequence = (*written, token)
                if sequence in rows:
                    mass += math.exp(logprob + following[token])  # with all that goes on from it
                elif sequence in beginnings:
                    further.append((sequence, logprob + float(following[token])))
        left = further
    assert found.mass == pytest.approx(mass, rel=1e-3)


def test_a_predicate_is_the_choice_of_yes_and_no(precise: Any) -> None:
    predicate = decide(precise, STATE, Predicate("Is it urgent?"), reproducible=True)
    for options in ({"yes": "Yes", "no": "No"}, {"no": "No", "yes": "Yes"}):
        choice = decide(precise, STATE, Choice("Is it urgent?", options), reproducible=True)
        assert choice.probabilities["yes"] == predicate.probability
        assert choice.mass == predicate.mass


def test_none_of_these_is_one_more_text(precise: Any) -> None:
    options = {"billing": "yes Paris", "sales": None}
    found = decide(precise, STATE, Choice("Which team?", options, other=True))
    three = decide(precise, STATE, Choice("Which team?", {**options, "none": "none of these"})).probabilities
    assert found.other == pytest.approx(three["none"], abs=1e-4)
    assert found.probabilities["sales"] == pytest.approx(three["sales"] / (1 - three["none"]), abs=1e-4)


def test_orders_are_averaged(precise: Any) -> None:
    form = Form("{{ state }}\n{% for o in options %}{{ o.name }} {% endfor %}{{ instructions }}", reads="names")
    options = ["yes", "no", "Paris"]
    weights = []
    for order in (["yes", "no", "Paris"], ["no", "Paris", "yes"], ["Paris", "yes", "no"]):
        one = decide(precise, STATE, Choice("?", order), form=form).probabilities
        weights.append([math.log(one[name]) for name in options])
    found = decide(precise, STATE, Choice("?", options), form=form, orders=7)
    assert list(found.probabilities.values()) == pytest.approx(softmax(np.mean(weights, axis=0).tolist()), abs=1e-4)


def test_letters_stand_for_options_in_their_places(smollm2: Any) -> None:
    for k in (1, 4):
        found = decide(smollm2, STATE, TEAM, form="letters", orders=k)
        assert list(found.probabilities) == ["billing", "sales", "other_things"]
        assert sum(found.probabilities.values()) == pytest.approx(1)
        assert found.mass > 1e-3


def test_many_states_are_answered_about_as_one(precise: Any) -> None:
    states = ["Paris", {"text": "Pizza"}, STATE, [{"role": "user", "content": "yes"}], ""]
    many = list(decide_many(precise, iter(states), QUESTIONS))
    for state, found in zip(states, many, strict=True):
        for name, answer in decide(precise, state, QUESTIONS).items():
            assert list(found[name].probabilities.values()) == pytest.approx(
                list(answer.probabilities.values()), abs=1e-4
            )
    assert [one.value for one in decide_many(precise, states, TEAM)] == [found["team"].value for found in many]


def test_a_state_that_cannot_be_answered_about_is_an_error_with_its_position(precise: Any) -> None:
    states = ["Paris", {1, 2}, "Pizza " * 2000, "yes"]
    first, second, third, fourth = decide_many(precise, states, {"team": TEAM}, on_error="return")
    assert {first["team"].value, fourth["team"].value} <= set(TEAM.values)
    assert isinstance(second, ArgumentError)
    assert str(second).startswith("states[1]: state: ")
    assert isinstance(third, ContextError)
    assert str(third).startswith("states[2]: questions['team']: ")
    with pytest.raises(ArgumentError, match=r"states\[1\]"):
        list(decide_many(precise, states, {"team": TEAM}))


def test_models_with_states_answer_of_many_what_they_answer_of_one(recurrent: Any) -> None:
    one, two = decide_many(recurrent, ["Paris", "Pizza"], QUESTIONS)
    alone = decide(recurrent, "Pizza", QUESTIONS)
    assert two["team"].probabilities == pytest.approx(alone["team"].probabilities, abs=1e-3)
    assert one["team"].probabilities != two["team"].probabilities


def test_a_worker_thread_decides_as_well(precise: Any) -> None:
    async def both() -> Any:
        return await asyncio.gather(adecide(precise, STATE, QUESTIONS), adecide(precise, "Paris", TEAM))

    first, second = asyncio.run(both())
    assert first["team"].probabilities == pytest.approx(decide(precise, STATE, TEAM).probabilities, abs=1e-4)
    assert second.value in TEAM.values


@pytest.mark.parametrize(
    ("questions", "told"),
    [
        ("Which?", "questions must be a dict"),
        ([TEAM], "questions must be a dict"),
        ({"a": "Which?"}, r"questions\['a'\] must be a Choice"),
        ({1: TEAM}, "questions: a name must be str"),
        ({}, "questions: none given"),
    ],
)
def test_what_is_no_question_is_refused(precise: Any, questions: Any, told: str) -> None:
    for call in (decide, decide_many):
        with pytest.raises(ArgumentError, match=told):
            call(precise, STATE if call is decide else [STATE], questions)


@pytest.mark.parametrize(
    "wrong", [{"form": "list"}, {"form": 3}, {"calibration": "batch"}, {"orders": 0}, {"reproducible": 1}]
)
def test_so_is_an_option_that_is_none(precise: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        decide(precise, STATE, TEAM, **wrong)
    with pytest.raises(TypeError, match="did you mean 'form'"):
        decide(precise, STATE, TEAM, from_=1)  # type: ignore[call-overload]


def test_a_question_without_room_is_reported_by_its_name(precise: Any) -> None:
    with pytest.raises(ContextError, match=r"questions\['long'\]: "):
        decide(precise, STATE, {"team": TEAM, "long": Predicate("Is it? " * 2000)})
