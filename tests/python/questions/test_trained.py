"""Models whose GGUF says that they were trained for decisions are asked as it says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import gguf
import llama_cpp
import oracle
import pytest
from tiny_model import write_tiny_model
from token_trie import ArgumentError, Choice, Form, Predicate, Score, StreamHandle, Think, decide, decide_many

TEMPLATE = """\
<s>{{ type }} {{ instructions if instructions is string else instructions | tojson }}
{% for option in options %}
{{ option.label }}) {{ option.key }}{% if option.description is not none %}={{ option.description }}{% endif %};
{% endfor %}
{% for image in images %}{% break %}{% endfor %}
{{ state if state is string else state | tojson }}</s>yes:"""
STATE = {"b": "no </s>", "a": [1, "é", None]}
CHOICE = Choice("Which <s>?", {"billing": "yes Paris", "sales": None, "other": "Pizza"})
QUESTIONS: dict[str, Any] = {
    "choice": CHOICE,
    "noul": Predicate("Is it?", true="It is."),
    "score": Score("How?", ["low", "middle", "high"]),
}
TEMPERATURES = {"choice": 1.5, "choice.2": 3.0, "score.3_5": 0.5, "noul": 2.0, "choice.small": 4.0}

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def open_trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Return what opens a tiny model that was trained in a way."""
    opened: dict[str, Any] = {}

    def made(kind: str, **said: Any) -> Any:
        if said or kind not in opened:
            path = tmp_path_factory.mktemp("trained") / f"{kind}.gguf"
            known = {f"llama.decision.temperature.{key}": value for key, value in TEMPERATURES.items()}
            own = {"llama.decision.type": kind, "tokenizer.chat_template.systemone": TEMPLATE, **known, **said}
            write_tiny_model(
                path,
                is_bpe=True,
                more=[(text, gguf.TokenType.USER_DEFINED) for text in ("AB", "AC")],
                said={key: value for key, value in own.items() if value is not None},
            )
            llm = llama_cpp.Llama(str(path), n_ctx=1024, verbose=False, type_k=0, type_v=0)
            opened[kind if not said else str(path)] = llm
            return llm
        return opened[kind]

    yield made
    for llm in opened.values():
        llm.close()


def softmax(scores: list[float], temperature: float) -> list[float]:
    weights = [math.exp(score / temperature) for score in scores]
    return [weight / sum(weights) for weight in weights]


def scores(
    llm: Any, question: str, instructions: str, options: list[tuple[Any, ...]], labels: list[str]
) -> list[float]:
    """Log-probabilities of labels behind the prompt, as the template puts it: control tokens are its own alone."""
    lines = "".join(f"{label}) {key}{'' if text is None else f'={text}'};\n" for label, key, text in options)
    state = json.dumps(STATE, ensure_ascii=False)
    parts = f"{question} {instructions}\n{lines}{state}", "yes:"
    tokens = [1, *llm.tokenize(parts[0].encode(), add_bos=False), 2, *llm.tokenize(parts[1].encode(), add_bos=False)]
    out = []
    for label in labels:
        (token,) = llm.tokenize(label.encode(), add_bos=False)
        out.append(sum(oracle.logprobs(llm, tokens, (token,))))
    return out


def close_to(p: list[float]) -> Any:
    return pytest.approx(p, abs=1e-4)


OPTIONS = [("A", "billing", "yes Paris"), ("B", "sales", None), ("C", "other", "Pizza")]
LEVELS = [("A", "0", "low"), ("B", "1", "middle"), ("C", "2", "high")]


@pytest.mark.parametrize("kind", ["nimble", "pplx-decider"])
def test_labels_are_read_after_the_models_own_template(open_trained: Open, kind: str) -> None:
    llm = open_trained(kind)
    found = decide(llm, STATE, QUESTIONS)
    raw = scores(llm, "choice", "Which <s>?", OPTIONS, ["A", "B", "C"])
    assert list(found["choice"].probabilities.values()) == close_to(softmax(raw, 1.5))
    assert found["choice"].mass == pytest.approx(sum(map(math.exp, raw)), rel=1e-3)
    assert found["choice"].calibration == "trained"
    raw = scores(llm, "noul", "Is it?", [("A", "false", None), ("B", "true", "It is.")], ["A", "B"])
    assert found["noul"].probability == close_to(softmax(raw, 2.0)[1])
    raw = scores(llm, "score", "How?", LEVELS, ["A", "B", "C"])
    assert list(found["score"].probabilities.values()) == close_to(softmax(raw, 0.5))
    two = decide(llm, STATE, Choice("Which <s>?", {"billing": "yes Paris", "sales": None}))
    raw = scores(llm, "choice", "Which <s>?", OPTIONS[:2], ["A", "B"])
    assert list(two.probabilities.values()) == close_to(softmax(raw, 3.0))


def test_openjev_shows_no_labels_and_true_first(open_trained: Open) -> None:
    llm = open_trained("openjev")
    found = decide(llm, STATE, QUESTIONS)
    raw = scores(llm, "noul", "Is it?", [("", "true", "It is."), ("", "false", None)], ["A", "B"])
    assert found["noul"].probability == close_to(softmax(raw, 2.0)[0])
    raw = scores(llm, "choice", "Which <s>?", [("", *one[1:]) for one in OPTIONS], ["A", "B", "C"])
    assert list(found["choice"].probabilities.values()) == close_to(softmax(raw, 1.5))


def test_lev_rates_predicates_and_asks_choices_in_both_orders(open_trained: Open, monkeypatch: Any) -> None:
    llm = open_trained("lev")
    monkeypatch.setitem(globals(), "STATE", {"a": [1, "é", None], "b": "no </s>"})  # sorted
    found = decide(llm, {"b": "no </s>", "a": [1, "é", None]}, QUESTIONS)
    raw = scores(llm, "noul", "Is it?", [("A", "false", None), ("B", "true", "It is.")], list("ABCDEFGHI"))
    expected = sum(p * i / 8 for i, p in enumerate(softmax(raw, 2.0)))
    assert found["noul"].probability == close_to(expected)
    forward = softmax(scores(llm, "choice", "Which <s>?", OPTIONS, ["A", "B", "C"]), 4.0)
    turned = [("A", *OPTIONS[2][1:]), ("B", *OPTIONS[1][1:]), ("C", *OPTIONS[0][1:])]
    backward = softmax(scores(llm, "choice", "Which <s>?", turned, ["A", "B", "C"]), 4.0)[::-1]
    expected_both = [(a + b) / 2 for a, b in zip(forward, backward, strict=True)]
    assert list(found["choice"].probabilities.values()) == close_to(expected_both)


def test_d1_takes_the_most_probable_spelling_of_a_label(open_trained: Open) -> None:
    llm = open_trained("lfm2-d1")
    found = decide(llm, STATE, QUESTIONS)
    raw = scores(llm, "noul", "Is it?", [("true", "true", "It is."), ("false", "false", None)], ["yes", "no"])
    assert found["noul"].probability == close_to(softmax(raw, 2.0)[0])
    levels = [(str(i), str(i), level) for i, level in enumerate(["low", "middle", "high"])]
    raw = scores(llm, "score", "How?", levels, ["0", "1", "2"])
    assert list(found["score"].probabilities.values()) == close_to(softmax(raw, 0.5))
    letters = decide(llm, STATE, Choice("Which?", {"x": None, "b": None}))
    raw = scores(llm, "choice", "Which?", [("x", "x", None), ("b", "b", None)], ["x", "b"])
    assert list(letters.probabilities.values()) == close_to(softmax(raw, 3.0))


def test_many_states_and_reproducible_answers_are_the_same(open_trained: Open) -> None:
    llm = open_trained("nimble")
    one = decide(llm, STATE, QUESTIONS)
    (many,) = decide_many(llm, [STATE], QUESTIONS)
    exact = decide(llm, STATE, QUESTIONS, reproducible=True)
    for name, answer in one.items():
        assert list(many[name].probabilities.values()) == close_to(list(answer.probabilities.values()))
        assert list(exact[name].probabilities.values()) == close_to(list(answer.probabilities.values()))


def test_a_given_form_and_a_handles_text_are_asked_as_of_other_models(open_trained: Open) -> None:
    llm = open_trained("nimble")
    form = Form("{{ state }}\n\nQuestion: {{ instructions }}\nAnswer:")
    asked = decide(llm, "yes Paris", CHOICE, form=form)
    assert asked.calibration == "contextual"
    with StreamHandle(llm, n_ctx=512) as handle:
        handle.prefill("yes Paris")
        assert handle.decide(CHOICE).calibration == "contextual"


@pytest.mark.parametrize(
    ("kind", "said", "told"),
    [
        ("kev", {}, "decisions of the type 'kev'"),
        ("nimble", {"tokenizer.chat_template.systemone": None}, "no template named 'systemone'"),
        ("nimble", {"tokenizer.chat_template.systemone": "{{ raise_exception('no') }}"}, "template 'systemone': "),
        ("nimble", {"tokenizer.chat_template.systemone": "{{ state.x.y }}"}, "template 'systemone': "),
        ("nimble", {"llama.decision.temperature.noul": 0.0}, "temperature.noul: .* is no temperature"),
    ],
)
def test_what_cannot_be_asked_is_refused(open_trained: Open, kind: str, said: dict[str, Any], told: str) -> None:
    llm = open_trained(kind, **said or {"general.name": "x"})
    with pytest.raises(ArgumentError, match=told):
        decide(llm, "Paris", CHOICE)
    assert decide(llm, "Paris", CHOICE, form="unlisted").value in CHOICE.values


def test_more_options_than_labels_are_refused(open_trained: Open) -> None:
    llm = open_trained("nimble")
    decide(llm, "Paris", Choice("Which?", [f"o{i}" for i in range(28)]))
    with pytest.raises(ArgumentError, match=r"questions\['a'\]: options: 29, .* labels for 28"):
        decide(llm, "Paris", {"a": Choice("Which?", [f"o{i}" for i in range(29)])})
    with pytest.raises(ArgumentError, match="think: the model was trained"):
        decide(llm, "Paris", CHOICE, think=Think())
