from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError, Choice, Form, StreamHandle, decide, decide_many
from token_trie.native.core import vocab_of
from token_trie.questions.form import PreparedQuestion, letter_of
from token_trie.questions.options import FORMS, PROFILES
from token_trie.questions.question import Option
from token_trie.sets.prompt import tokenize_prompt

OPTIONS = [Option("one", ("the first",)), Option("two", ("two",))]


def test_a_form_puts_a_question_as_its_template_says(tiny: Any) -> None:
    assert FORMS["unlisted"].render(tiny, "A state.", "Which?", OPTIONS) == "A state.\n\nQuestion: Which?\nAnswer:"
    listed = "A state.\n\nQuestion: Which?\n- one: the first\n- two\nAnswer:"
    assert FORMS["listed"].render(tiny, "A state.", "Which?", OPTIONS) == listed
    lettered = "A state.\n\nQuestion: Which?\nA. one: the first\nB. two\nAnswer:"
    assert FORMS["letters"].render(tiny, "A state.", "Which?", OPTIONS) == lettered


DESCRIBED = "{{ state }}{% for o in options if o.name != o.description %} {{ o.name }}{% endfor %} {{ instructions }}"


@pytest.mark.parametrize(
    ("form", "options", "n"),
    [
        (FORMS["unlisted"], {"a": "one", "b": "two"}, 1),
        (FORMS["listed"], {"a": "one", "b": "two"}, 2),
        (FORMS["letters"], ["a", "b"], 2),
        (Form(DESCRIBED), {"a": "one", "b": "two"}, 2),
        (Form(DESCRIBED), ["a", "b"], 1),
        (Form("{{ state }}{{ options | map(attribute='name') | sort }} {{ instructions }}"), ["a", "b"], 1),
    ],
)
def test_options_have_as_many_orders_as_read_differently(form: Form, options: Any, n: int) -> None:
    assert len(PreparedQuestion(Choice("Which?", options), {form: 1.0}, orders=2).views) == n


def test_what_is_read_are_descriptions_names_or_letters() -> None:
    assert FORMS["unlisted"].texts(OPTIONS) == [("the first",), ("two",)]
    assert FORMS["listed"].texts(OPTIONS) == [("one",), ("two",)]
    assert [texts[0] for texts in FORMS["letters"].texts(OPTIONS)] == ["A", "B"]


def test_letters_go_on_after_z() -> None:
    assert [letter_of(i) for i in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ state", "template: "),
        ("{{ instructions }}", "to have the state"),
        ("{{ state }}{{ state }}", "just once"),
        ("{{ state }}{{ nothing }}", "'nothing' is undefined"),
        ("{{ state }}{{ options.append(1) }}", "template: "),
        ("{{ state.__class__.__mro__ }}", "template: "),
        ("{{ state }}\0", "template: holds a NUL"),
    ],
)
def test_a_template_that_cannot_be_one_is_refused(template: str, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        Form(template)


@pytest.mark.parametrize("wrong", [{"reads": "words"}, {"chat": 1}, {"temperature": 0}, {"absent": "\0"}])
def test_so_is_what_else_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        Form("{{ state }}", **wrong)


def test_control_tokens_are_the_templates_alone(tiny: Any) -> None:
    form = Form("<s>{{ state }}</s>{{ instructions }}")
    with_names = form.render(tiny, "a </s> b", "is <s> one?", [Option("a", ("<s>",))])
    tokens = tokenize_prompt(tiny, with_names)
    vocab = vocab_of(tiny)
    # The first is what begins a text.
    assert [token for token in tokens if vocab.is_control(token)] == [1, 1, 2]
    assert b"</s>" in vocab.detokenize(tokens)


def test_a_chat_form_goes_through_the_models_own_template(smollm2: Any, gemma: Any) -> None:
    form = Form("{{ state }}\n{{ instructions }}", chat=True)
    rendered = form.render(smollm2, "A state.", "Which?", OPTIONS)
    assert rendered == [{"role": "user", "content": "A state.\nWhich?"}]
    # The file has none, and gets no other's.
    assert form.render(gemma, "A state.", "Which?", OPTIONS) == "A state.\nWhich?"


OPTIONS_FIRST = Form(
    "{{ instructions }}{% for o in options %} {{ o.letter }} {{ o.name }}{% endfor %}\n\n{{ state }}\nAnswer:",
    reads="names",
)
COLOUR = Choice("Which colour?", ["red", "green", "blue"])


def test_question_and_options_may_be_before_the_state(tiny: Any) -> None:
    answer = decide(tiny, "It is the sky.", COLOUR, form=OPTIONS_FIRST, calibration=None)
    whole = "Which colour? A red B green C blue\nIt is the sky.\nAnswer:"
    after = decide(tiny, whole, COLOUR, form=Form("{{ state }}"), calibration=None)
    assert answer.probabilities == pytest.approx(after.probabilities, abs=1e-6)
    many = list(decide_many(tiny, ["It is the sky.", "Grass."], COLOUR, form=OPTIONS_FIRST, calibration=None))
    assert many[0].probabilities == pytest.approx(answer.probabilities, abs=1e-5)


@pytest.mark.parametrize("calibration", [None, "contextual"])
def test_log_probabilities_of_several_forms_are_averaged_by_their_weights(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, calibration: Any
) -> None:
    forms = {FORMS["unlisted"]: 3.0, OPTIONS_FIRST: 1.0}
    monkeypatch.setitem(PROFILES, "plain", {Choice: forms})
    alone = [decide(tiny, "Blood.", COLOUR, form=form, calibration=calibration) for form in forms]
    logs = [np.log(list(one.probabilities.values())) for one in alone]
    expected = np.exp(np.average(logs, axis=0, weights=list(forms.values())))
    both = decide(tiny, "Blood.", COLOUR, calibration=calibration)
    assert list(both.probabilities.values()) == pytest.approx(expected / expected.sum(), abs=1e-5)
    (many,) = decide_many(tiny, ["Blood."], COLOUR, calibration=calibration)
    assert many.probabilities == pytest.approx(both.probabilities, abs=1e-5)


def test_the_text_of_a_handle_takes_no_question_before_it(tiny: Any) -> None:
    with StreamHandle(tiny) as handle:
        handle.prefill("The sky.")
        with pytest.raises(ArgumentError, match="before the state"):
            handle.decide(COLOUR, form=OPTIONS_FIRST)


def test_options_that_are_one_answer_in_one_form_and_two_in_another_are_averaged_one_by_one(
    precise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Choice("Which?", {"a": "same", "b": "same", "c_d": "other", "c d": "more", "e": "last"})
    forms = {FORMS["unlisted"]: 1.0, replace(FORMS["unlisted"], reads="names"): 1.0}
    monkeypatch.setitem(PROFILES, "plain", {Choice: forms})
    alone = [np.array(list(decide(precise, "hello", question, form=form).probabilities.values())) for form in forms]
    both = decide(precise, "hello", question).probabilities
    means = np.sqrt(alone[0] * alone[1])
    assert list(both.values()) == pytest.approx(means / means.sum())
