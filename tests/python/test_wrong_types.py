"""Arguments of wrong types raise errors of the package and leave the state as it was."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from token_trie import (
    Calibration,
    Examples,
    StreamHandle,
    Think,
    TokenTrie,
    TokenTrieError,
    Weights,
    choose,
    choose_tool,
    constrain,
    explain,
    score,
)

ARRAYS: list[Any] = [np.array(3), np.array([[1]]), np.array(["a", None], object), np.array([1, 2])]
NUMBERS: list[Any] = [None, True, -1, 0, 2**40, 10**400, -(10**400), 0.5, float("nan"), 1j, range(3)]
TEXTS: list[Any] = ["", "text", ",", b"\xff", "\ud800", "\0"]
LISTS: list[Any] = [[], ["a"], [None], [[1]], [-1], [2**40], [1.5], {}, {"a": 1}, {1: 2}, {"mode"}, (x for x in [None])]
WRONG: list[Any] = [*NUMBERS, *TEXTS, *LISTS, *ARRAYS, object(), int, print]


def try_each(call: Callable[..., Any], **good: Any) -> None:
    """Call with each wrong value for each parameter, and right values for the others."""
    names = [p.name for p in inspect.signature(call).parameters.values() if p.kind != p.VAR_KEYWORD]
    strange = []
    for name in names:
        for wrong in WRONG:
            try:
                call(**{**good, name: wrong})
            except TokenTrieError:
                pass
            except Exception as error:
                strange.append(f"{name}={wrong!r}: {error!r}")
    assert strange == []


@pytest.fixture(scope="module")
def stream(precise: Any) -> Iterator[StreamHandle]:
    with StreamHandle(precise, n_ctx=128) as handle:
        yield handle


def test_choose_score_and_explain(precise: Any) -> None:
    good = {"llm": precise, "prompt": "Answer:", "choices": ["yes", "no"]}
    before = choose(**good)
    try_each(choose, **good)
    try_each(explain, **good)
    try_each(score, **good)
    assert choose(**good).logprob == pytest.approx(before.logprob, abs=1e-4)


def test_constrain(precise: Any) -> None:
    try_each(constrain, llm=precise, trie=TokenTrie.from_choices(precise, ["yes", "no"]))


def test_builders(precise: Any) -> None:
    try_each(TokenTrie.from_choices, llm=precise, choices=["yes", "no"])
    try_each(TokenTrie.from_sequences, sequences={"a": [1]})
    try_each(TokenTrie.from_payload, payload='{"descriptors": [{"leaves": [{"name": "a", "tokens": [1]}]}]}')
    try_each(TokenTrie.from_arrays, tokens=np.array([1, 2]), offsets=np.array([0, 1, 2]))


def test_a_handle(precise: Any, stream: StreamHandle) -> None:
    trie = TokenTrie.from_choices(precise, ["yes", "no"])
    try_each(stream.prefill, prompt="Answer:")
    try_each(stream.set_token_trie, trie=trie)
    try_each(stream.set_grammar, gbnf='root ::= "a"')
    try_each(stream.set_seed, seed=1)

    def generate(
        max_tokens: Any = 2, temperature: Any = 0.0, top_p: Any = 1.0, top_k: Any = 0, min_p: Any = 0.0, seed: Any = 1
    ) -> None:
        sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed}
        for _ in zip(range(2), stream.generate(max_tokens, **sampling), strict=False):
            pass

    try_each(generate)


def test_the_options_of_a_handle(precise: Any) -> None:
    def open_and_close(
        n_ctx: Any = 64,
        seed: Any = 0,
        penalty_freq: Any = 0.0,
        penalty_last_n: Any = 0,
        jump_forward: Any = True,
    ) -> None:
        options = {"penalty_freq": penalty_freq, "penalty_last_n": penalty_last_n, "jump_forward": jump_forward}
        StreamHandle(precise, n_ctx=n_ctx, seed=seed, **options).close()

    try_each(open_and_close)
    try_each(Think, marker="so", max_tokens=3)


def test_tools_examples_and_calibrations(precise: Any) -> None:
    messages = [{"role": "user", "content": "Go"}]
    tool = {"type": "function", "function": {"name": "go"}}
    try_each(lambda messages, tools: choose_tool(precise, messages, tools), messages=messages, tools=[tool])
    with pytest.raises(TokenTrieError, match="messages: not a list"):
        choose_tool(precise, iter(messages), [tool])  # type: ignore[call-overload]
    try_each(Examples, states=["a", "b"], gold=["yes", "no"])
    try_each(Weights, values=[0.0, 1.0], scale=1.0)

    def fit(llm: Any, prompts: Any, gold: Any) -> None:
        Calibration.fit(llm, prompts, gold, ["yes", "no"], kind="batch")

    try_each(fit, llm=precise, prompts=list("abcdefgh"), gold=None)
    with pytest.raises(TokenTrieError, match="prompts must be a list, not str"):
        Calibration.fit(precise, "one text", None, ["yes", "no"], kind="batch")


def test_methods_of_a_trie() -> None:
    trie = TokenTrie.from_sequences({"a": [1], "b": [2, 3]})
    try_each(trie.children, prefix=[2])
    try_each(trie.payload)
    try_each(trie.without, names=["a"])
    for wrong in WRONG:
        assert isinstance(wrong in trie, bool)
