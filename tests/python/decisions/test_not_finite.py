"""Logits that are not finite are the error of the text that has them, and of no other, whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import llama_cpp
import numpy as np
import pytest
from tiny_model import write_tiny_model
from token_trie import (
    Choice,
    ContextError,
    StreamHandle,
    TokenTrie,
    choose,
    choose_list,
    choose_many,
    decide,
    decide_many,
    evaluate,
    explain,
    fill,
    score,
)
from token_trie.plan import Ask, Keep, Model, Plan, Query, run_many

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "string", "maxLength": 3}},
    "required": ["a", "b"],
}
TEXTS = ["yes", "no", "Paris"]
QUESTION = Choice("Which?", TEXTS)
GOOD, BAD = "Paris is", "the Pizza of it " * 9
MANY = [*(f"{text} {i}" for i in range(6) for text in ("Paris", "yes no")), "a Pizza", *map(str, range(8)), BAD]
WRONG = [i for i, text in enumerate(MANY) if "Pizza" in text]


@pytest.fixture(scope="module", params=["plain", "flash", "recurrent"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("broken") / "broken.gguf"
    write_tiny_model(path, is_recurrent=request.param == "recurrent", broken=["▁Pizza"])
    llm = llama_cpp.Llama(
        str(path), n_ctx=512, n_threads=1, verbose=False, flash_attn=request.param == "flash", type_k=0, type_v=0
    )
    yield llm
    llm.close()


def on_handle(ask: Callable[[StreamHandle], Any]) -> Callable[[Any, str], Any]:
    def asked(llm: Any, text: str) -> Any:
        with StreamHandle(llm) as handle:
            handle.prefill("Paris")
            handle.append(f" {text}")
            return ask(handle)

    return asked


ALONE: dict[str, Callable[[Any, str], Any]] = {
    "decide": lambda llm, text: decide(llm, text, QUESTION).probabilities,
    "decide raw": lambda llm, text: decide(llm, text, QUESTION, calibration=None).probabilities,
    "decide reproducible": lambda llm, text: decide(llm, text, QUESTION, reproducible=True).probabilities,
    "choose": lambda llm, text: choose(llm, text, TEXTS).text,
    "choose probabilities": lambda llm, text: choose(llm, text, TEXTS, probabilities=True).probabilities.tolist(),
    "greedy": lambda llm, text: choose(llm, text, TEXTS, mode="greedy").text,
    "sampled": lambda llm, text: choose(llm, text, TEXTS, mode="sampled", seed=1).text,
    "beam": lambda llm, text: choose(llm, text, TEXTS, mode="beam").text,
    "score": lambda llm, text: score(llm, text, TEXTS).tolist(),
    "branches": lambda llm, text: score(llm, text, TEXTS, branches=True).tolist(),
    "list": lambda llm, text: choose_list(llm, text, TEXTS, max_items=2).texts,
    "record": lambda llm, text: fill(llm, text, SCHEMA).text,
    "explain": lambda llm, text: explain(llm, text, TEXTS).exact.text,
    "handle choose": on_handle(lambda handle: handle.choose(TEXTS).text),
    "handle text": on_handle(lambda handle: handle.text(max_tokens=3).text),
    "handle score": on_handle(lambda handle: handle.score(TEXTS).tolist()),
    "handle decide": on_handle(lambda handle: handle.decide(QUESTION).probabilities),
}


@pytest.mark.parametrize("name", ALONE)
def test_it_is_the_error_of_that_text_and_the_next_is_answered_as_ever(llm: Any, name: str) -> None:
    ask = ALONE[name]
    before = ask(llm, GOOD)
    with pytest.raises(ContextError, match="no finite logits"):
        ask(llm, BAD)
    assert ask(llm, GOOD) == pytest.approx(before, abs=1e-5)


def probabilities(answer: Any) -> list[float]:
    p = answer.probabilities
    return list(p.values() if isinstance(p, dict) else p)


OVER_MANY: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "choose": (lambda llm, texts, **options: choose_many(llm, texts, TEXTS, probabilities=True, **options), {}),
    "choose batch": (
        lambda llm, texts, **options: choose_many(llm, texts, TEXTS, **options),
        {"calibration": "batch"},
    ),
    "decide": (lambda llm, texts, **options: decide_many(llm, texts, QUESTION, **options), {}),
    "decide batch": (
        lambda llm, texts, **options: decide_many(llm, texts, QUESTION, **options),
        {"calibration": "batch"},
    ),
    "decide reproducible": (
        lambda llm, texts, **options: decide_many(llm, texts, QUESTION, **options),
        {"reproducible": True},
    ),
}


@pytest.mark.parametrize("name", OVER_MANY)
def test_among_many_it_is_the_error_of_that_row_and_no_other_answer_changes(llm: Any, name: str) -> None:
    ask, options = OVER_MANY[name]
    found = list(ask(llm, MANY, on_error="return", **options))
    assert [i for i, one in enumerate(found) if isinstance(one, Exception)] == WRONG
    for i in WRONG:
        assert isinstance(found[i], ContextError)
        assert f"s[{i}]: the model gives no finite logits" in str(found[i])
    healthy = [text for i, text in enumerate(MANY) if i not in WRONG]
    expected = [probabilities(one) for one in ask(llm, healthy, **options)]
    healthy_found = [probabilities(one) for i, one in enumerate(found) if i not in WRONG]
    assert np.abs(np.subtract(healthy_found, expected)).max() < 3e-3  # flash attention rounds by the batch
    with pytest.raises(ContextError, match=rf"s\[{WRONG[0]}\]: the model gives no finite logits"):
        list(ask(llm, MANY, **options))


def test_a_table_with_such_a_row_is_refused_with_its_position(llm: Any) -> None:
    gold = ["yes" if i % 2 else "no" for i in range(len(MANY))]
    for choices in (TEXTS, QUESTION):
        with pytest.raises(ContextError, match=rf"\[{WRONG[0]}\]: the model gives no finite logits"):
            evaluate(llm, MANY, gold, choices, ways=["exact"])


def test_the_error_of_a_prior_says_to_each_plan_that_waits_which_of_its_steps_it_is(llm: Any) -> None:
    tokens = llm.tokenize(BAD.encode())
    query = Query("scores", TokenTrie.from_sequences({"a": [5], "b": [6]}))

    def plan(model: Model, n: int) -> Plan[int]:
        try:
            yield [*[Keep([1])] * n, Ask(tokens, query, key="a prior")]
        except ContextError as error:
            return error.step
        return -1

    assert list(run_many(llm, range(8), plan)) == [*range(8)]
