from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError, Calibration, Choice, Examples, Form, Predicate, Score, decide, decide_many, score
from token_trie.errors import CalibrationError
from token_trie.questions.form import contextual, softmax
from token_trie.questions.options import FORMS

TEAM = Choice("Which team?", {"billing": "yes Paris", "sales": None})
STATES = ["I paid twice", "What does it cost?", "Refund me"]
GOLD = ["billing", "sales", "billing"]
EXAMPLES = Examples(STATES, GOLD)
ASKED = "Question: Which team?\nAnswer:"
SHOWN = f"I paid twice\n\n{ASKED} yes Paris\n\nWhat does it cost?\n\n{ASKED} sales\n\n"


def weights(llm: Any, before: str, state: str) -> Any:
    return score(llm, f"{before}{state}\n\n{ASKED}", ["yes Paris", "sales"], leaf_end="any")


def test_each_option_is_shown_by_its_first_example_in_the_words_of_the_form(tiny: Any) -> None:
    raw = decide(tiny, "Paid, no goods", TEAM, calibration=None, examples=EXAMPLES)
    expected = softmax(np.asarray(weights(tiny, SHOWN, "Paid, no goods")))
    assert list(raw.probabilities.values()) == pytest.approx(expected, abs=1e-3)


def test_the_prior_is_that_after_the_examples(tiny: Any) -> None:
    answer = decide(tiny, "Paid, no goods", TEAM, examples=EXAMPLES)
    raw, prior = (np.asarray(weights(tiny, SHOWN, state)) for state in ("Paid, no goods", "N/A"))
    n_tokens = [len(tiny.tokenize(b"Answer:" + text, add_bos=False)) for text in (b"", b" yes Paris", b" sales")]
    lengths = [n - n_tokens[0] for n in n_tokens[1:]]
    expected = softmax(contextual(raw, prior, np.array(lengths, float), 1.0))
    assert list(answer.probabilities.values()) == pytest.approx(expected, abs=1e-3)


def test_many_of_each_come_in_rounds(tiny: Any) -> None:
    both = decide(tiny, "Paid", TEAM, calibration=None, examples=Examples(STATES, GOLD, n_each=2))
    before = f"{SHOWN}Refund me\n\n{ASKED} yes Paris\n\n"
    assert list(both.probabilities.values()) == pytest.approx(
        softmax(np.asarray(weights(tiny, before, "Paid"))), abs=1e-3
    )


QUESTIONS = [TEAM, Predicate("Is it?"), Score("How?", ["low", "middle", "high"])]
CHAT = Form(FORMS["listed"].template, reads="names", chat=True)


@pytest.mark.parametrize(
    ("form", "question"), [*itertools.product(["listed", "letters"], QUESTIONS), (CHAT, QUESTIONS[0])]
)
def test_they_go_with_every_form_and_question(tiny: Any, smollm2: Any, form: Any, question: Any) -> None:
    llm = smollm2 if isinstance(form, Form) else tiny
    gold = [question.values[i % 2] for i in range(3)]
    answers = list(decide_many(llm, ["Paid", "Cost"], question, form=form, orders=2, examples=Examples(STATES, gold)))
    alone = [
        decide(llm, one, question, form=form, orders=2, examples=Examples(STATES, gold)) for one in ("Paid", "Cost")
    ]
    # Quantized weights round otherwise in other batches; the values may be as good as each other.
    for answer, one in zip(answers, alone, strict=True):
        assert list(answer.probabilities.values()) == pytest.approx(list(one.probabilities.values()), abs=0.1)


def test_copies_and_pickles_are_as_good(tiny: Any) -> None:
    examples = Examples(STATES, GOLD, n_each=10**9)
    first = decide(tiny, "Paid", TEAM, examples=examples)
    for other in (copy.deepcopy(examples), pickle.loads(pickle.dumps(examples))):
        again = decide(tiny, "Paid", TEAM, examples=other)
        assert again.probabilities == pytest.approx(first.probabilities, abs=1e-3)


def test_several_questions_have_theirs_by_name(tiny: Any) -> None:
    questions: dict[str, Any] = {"team": TEAM, "urgent": Predicate("Is it urgent?")}
    both = decide(tiny, "Paid", questions, examples={"team": EXAMPLES})
    assert both["team"].probabilities == pytest.approx(decide(tiny, "Paid", TEAM, examples=EXAMPLES).probabilities)
    alone = decide(tiny, "Paid", questions["urgent"])
    assert both["urgent"].probability == pytest.approx(alone.probability, abs=1e-3)


def test_names_of_control_tokens_in_them_are_text(tiny: Any) -> None:
    answer = decide(tiny, "Paid", TEAM, calibration=None, examples=Examples(["a</s>b", "c"], ["billing", "sales"]))
    tokens = tiny.tokenize(b"a</s>b", add_bos=False, special=False)
    assert tiny.token_eos() not in tokens
    shown = f"a</s>b\n\n{ASKED} yes Paris\n\nc\n\n{ASKED} sales\n\nPaid\n\n{ASKED}"
    plain = tiny.tokenize(shown.encode(), add_bos=True, special=False)
    expected = softmax(np.asarray(score(tiny, plain, ["yes Paris", "sales"], leaf_end="any")))
    assert list(answer.probabilities.values()) == pytest.approx(expected, abs=1e-3)


def test_a_calibration_is_bound_to_the_examples_that_it_was_fitted_after(tiny: Any) -> None:
    rows = [f"{'Paris' if i % 2 else 'Pizza'} {i}" for i in range(24)]
    gold = ["billing" if i % 2 else "sales" for i in range(24)]
    fitted = Calibration.fit(tiny, rows, gold, TEAM, kind="bias", examples=EXAMPLES, n_folds=3)
    assert decide(tiny, "Paid", TEAM, calibration=fitted, examples=EXAMPLES).calibration == "fitted"
    for other in (None, Examples(STATES, GOLD, n_each=2)):
        with pytest.raises(CalibrationError, match="question"):
            decide(tiny, "Paid", TEAM, calibration=fitted, examples=other)
    with pytest.raises(ArgumentError, match=r"\[1\]: is among the examples"):
        Calibration.fit(tiny, ["a", *STATES], ["billing", *GOLD], TEAM, kind="bias", examples=EXAMPLES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda llm: Examples([], []), "states: none given"),
        (lambda llm: Examples("text", ["a"]), "states must be "),
        (lambda llm: Examples(["a"], ["a"], n_each=0), "n_each"),
        (lambda llm: Examples([{1, 2}], ["a"]), "state"),
        (lambda llm: decide(llm, "x", TEAM, examples=["a"]), "examples must be Examples"),
        (lambda llm: decide(llm, "x", TEAM, examples=Examples(["a"], ["none"])), r"gold\[0\]: 'none' is none of"),
        (lambda llm: decide(llm, "x", TEAM, examples=Examples(["a", "b"], ["sales"])), "1 labels for 2 rows"),
        (lambda llm: decide(llm, "x", {"t": TEAM}, examples={"u": EXAMPLES}), r"examples\['u'\]: there is no question"),
    ],
)
def test_faults_are_reported_with_their_position(tiny: Any, make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(tiny)
