from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from token_trie import ContextError
from token_trie.engines import lm_eval
from token_trie.engines.lm_eval import score_continuations

Pair = tuple[list[int], list[int]]


class Plain:
    """The logits of every token of a sequence, one sequence after the other."""

    def __init__(self, path: Path) -> None:
        options: dict[str, Any] = {"type_k": 0, "type_v": 0, "n_threads": 1, "logits_all": True, "verbose": False}
        self.llm = llama_cpp.Llama(str(path), n_ctx=256, **options)

    def score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        self.llm.reset()
        self.llm.eval([*context, *continuation])
        logits = self.llm.scores[len(context) - 1 : len(context) + len(continuation) - 1].astype(np.float64)
        best = logits.max(1, keepdims=True)
        logprobs = logits - best - np.log(np.exp(logits - best).sum(1, keepdims=True))
        logprob = logprobs[np.arange(len(continuation)), continuation].sum()
        return float(logprob), bool((logits.argmax(1) == continuation).all())

    def next(self, tokens: list[int]) -> int:
        self.llm.reset()
        self.llm.eval(tokens)
        return int(self.llm.scores[len(tokens) - 1].argmax())


@pytest.fixture(scope="module")
def plain(model_paths: dict[str, Path]) -> Plain:
    return Plain(model_paths["tiny"])


def check(llm: llama_cpp.Llama, plain: Plain, pairs: list[Pair]) -> list[bool]:
    got = score_continuations(llm, pairs)
    expected = [plain.score(*pair) for pair in pairs]
    assert [one.logprob for one in got] == pytest.approx([logprob for logprob, _ in expected], abs=1e-4)
    assert [one.is_greedy for one in got] == [is_greedy for _, is_greedy in expected]
    return [one.is_greedy for one in got]


tokens = st.lists(st.integers(3, 300), min_size=1, max_size=6)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contexts=st.lists(tokens, min_size=1, max_size=4), data=st.data())
def test_scores_and_greedy_are_those_of_a_plain_loop(
    precise: llama_cpp.Llama, plain: Plain, contexts: list[list[int]], data: st.DataObject
) -> None:
    pairs: list[Pair] = []
    for context in contexts:
        for continuation in data.draw(st.lists(tokens, min_size=1, max_size=4)):
            # Some of them go along with the model's own way, part of it or all.
            own: list[int] = []
            for _ in range(data.draw(st.integers(0, 3))):
                own.append(plain.next([*context, *own]))
            rest = continuation[: data.draw(st.integers(0, len(continuation)))]
            pairs.append((context, [*own, *rest] or continuation))
    check(precise, plain, pairs)


def test_a_way_of_several_tokens_is_greedy_to_its_end_alone(precise: llama_cpp.Llama, plain: Plain) -> None:
    context = [50, 60, 70]
    way: list[int] = []
    for _ in range(5):
        way.append(plain.next([*context, *way]))
    other = [*way[:3], (way[3] + 1) % 300]
    pairs = [(context, way[:1]), (context, way), (context, other), (context, way[:3]), (context, way)]
    assert check(precise, plain, pairs) == [True, True, False, True, True]


def test_models_whose_sequences_share_nothing_are_asked_one_after_the_other(
    precise: llama_cpp.Llama, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_eval, "can_share", lambda llm: False)
    way = [plain.next([50, 60]), 7]
    assert check(precise, plain, [([50, 60], way[:1]), ([50, 60], way), ([50, 60], [9]), ([8], [9, 10])])[0]


def test_a_recurrent_model_scores_what_a_plain_loop_does(recurrent: Any, model_paths: dict[str, Path]) -> None:
    loop = Plain(model_paths["recurrent"])
    best = loop.next([50, 60])
    pairs: list[Pair] = [([50, 60], [best]), ([50, 60], [best, 7]), ([50, 60], [9]), ([8], [9, 10])]
    got = score_continuations(recurrent, pairs, n_ctx=128)
    expected = [loop.score(*pair) for pair in pairs]
    assert [one.logprob for one in got] == pytest.approx([logprob for logprob, _ in expected], abs=1e-2)
    assert [one.is_greedy for one in got] == [is_greedy for _, is_greedy in expected]


def test_nothing_asked_is_nothing_answered_and_greedy_may_be_left_out(precise: llama_cpp.Llama) -> None:
    assert score_continuations(precise, []) == []
    told: list[int] = []
    pairs: list[Pair] = [([5], [6, 7]), ([5], [8]), ([6], [7])]
    got = score_continuations(precise, pairs, greedy=False, advance=told.append)
    assert [one.is_greedy for one in got] == [False] * 3
    assert sum(told) == 3


def test_what_has_no_room_is_an_error(precise: llama_cpp.Llama) -> None:
    with pytest.raises(ContextError):
        score_continuations(precise, [([5] * 300, [6])], n_ctx=256)


def test_the_model_for_the_harness_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"lm_eval", *filter(lambda name: name.startswith("lm_eval."), sys.modules)}:
        monkeypatch.setitem(sys.modules, name, None)
    without = runpy.run_path(str(lm_eval.__file__))
    with pytest.raises(ImportError, match=r"pip install 'token-trie\[lm-eval\]'"):
        without["TokenTrieLM"]("model.gguf")
