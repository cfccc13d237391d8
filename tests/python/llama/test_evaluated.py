"""Tokens that a Llama has evaluated are not evaluated again, and it never notices."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from token_trie import StreamHandle, choose, score
from token_trie.llama.batch import chooser
from token_trie.llama.contexts import common_prefix

CHOICES = ["yes", "no", "Paris"]
LONG = "Pizza Paris yes no. " * 12


def load(path: Path, **options: Any) -> Any:
    return llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, **options)


@pytest.fixture
def own(model_paths: dict[str, Path]) -> Any:
    llm = load(model_paths["tiny"], type_k=0, type_v=0)
    yield llm
    llm.close()


@pytest.fixture
def fresh(model_paths: dict[str, Path]) -> Any:
    """Return the same, which never evaluates anything itself."""
    llm = load(model_paths["tiny"], type_k=0, type_v=0)
    yield llm
    llm.close()


def imported(llm: Any) -> int:
    with chooser(llm) as handle:
        return handle.state.n_imported


def logits_behind(llm: Any, tokens: list[int]) -> npt.NDArray[np.float32]:
    llm.eval(tokens)
    row = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
    return np.ctypeslib.as_array(row, (llm.n_vocab(),)).copy()


def test_choose_after_evaluated_text_answers_as_after_the_same_prompt(own: Any, fresh: Any) -> None:
    own.eval(own.tokenize(LONG.encode()))
    n = own.n_tokens
    for prompt in (LONG + "Answer:", LONG + "Answer: no. Answer:"):
        expected = score(fresh, prompt, CHOICES)
        assert np.allclose(score(own, prompt, CHOICES), expected, atol=1e-4)
        assert choose(own, prompt, CHOICES).value == choose(fresh, prompt, CHOICES).value
    assert imported(own) >= n - 1
    assert imported(fresh) == 0


def test_the_llama_goes_on_as_if_nobody_had_looked(own: Any, fresh: Any) -> None:
    tokens = own.tokenize(LONG.encode())
    for llm in (own, fresh):
        llm.eval(tokens)
    choose(own, LONG + "Answer:", CHOICES)
    assert imported(own) > 0
    assert own.n_tokens == fresh.n_tokens
    more = own.tokenize(b" Pizza", add_bos=False)
    assert np.array_equal(logits_behind(own, more), logits_behind(fresh, more))


def test_an_agent_that_chats_and_chooses_in_turns(own: Any, fresh: Any, model_paths: dict[str, Path]) -> None:
    chats = load(model_paths["tiny"], type_k=0, type_v=0)
    text = LONG
    for turn in range(4):
        options = {"max_tokens": 6, "temperature": 0.0}
        answer = own.create_completion(text, **options)["choices"][0]["text"]
        assert answer == chats.create_completion(text, **options)["choices"][0]["text"]
        text += answer + f" {turn}. Answer:"
        prompt = own.tokenize(text.encode())
        ours = score(own, prompt, CHOICES)
        assert np.allclose(ours, score(fresh, prompt, CHOICES), atol=1e-4)
        text += " yes. "
    assert imported(own) > len(own.tokenize(LONG.encode()))
    chats.close()


def test_a_stream_takes_over_too_and_only_what_it_does_not_hold(own: Any) -> None:
    tokens = own.tokenize(LONG.encode())
    own.eval(tokens)
    with StreamHandle(own) as stream:
        stream.prefill([*tokens, 300, 301])
        assert stream.state.n_imported == len(tokens)
        stream.prefill([*tokens, 300])
        assert stream.state.n_imported == len(tokens)
        own.eval([300, 301, 302])
        stream.prefill([*tokens, 300, 301, 302, 303])
        assert stream.state.n_imported == 2 * len(tokens) + 3


def test_of_a_cache_that_is_mostly_about_something_else_nothing_is_copied(own: Any) -> None:
    tokens = own.tokenize(LONG.encode())
    own.eval(tokens)
    with StreamHandle(own) as stream:
        stream.prefill(tokens[: len(tokens) // 3])
        assert stream.state.n_imported == 0


@pytest.mark.parametrize("options", [{"flash_attn": True}, {"type_k": 8, "type_v": 8, "flash_attn": True}, {}])
def test_with_any_cache_type(model_paths: dict[str, Path], options: dict[str, Any]) -> None:
    path = model_paths["smollm2"] if options.get("type_k") == 8 else model_paths["tiny"]
    llm, other = load(path, **options), load(path, **options)
    tokens = llm.tokenize(LONG.encode())
    llm.eval(tokens)
    prompt = [*tokens, 300, 301]
    with StreamHandle(other) as evaluates:
        evaluates.prefill(tokens)  # in the batches of the other
        evaluates.prefill(prompt)
        expected = [step.logprob for step in _answer(evaluates)]
        with StreamHandle(llm) as stream:
            stream.prefill(prompt)
            assert stream.state.n_imported == len(tokens)
            assert [step.logprob for step in _answer(stream)] == expected
    llm.close()
    other.close()


def _answer(stream: StreamHandle) -> Any:
    stream.set_token_trie(
        {"descriptors": [{"leaves": [{"name": str(t), "tokens": [t, t + 1, t + 2]} for t in range(260, 290)]}]}
    )
    return stream.generate()


def test_after_choose_nothing_keeps_a_llama_alive(model_paths: dict[str, Path]) -> None:
    llm = load(model_paths["tiny"])
    choose(llm, LONG, CHOICES)
    whose = weakref.ref(llm), weakref.ref(llm._ctx)
    gc.disable()
    try:
        del llm
        assert [ref() for ref in whose] == [None, None]
    finally:
        gc.enable()


def test_a_context_grows_as_prompts_do_and_tells_what_it_takes(own: Any) -> None:
    with StreamHandle(own) as stream:
        assert (stream.state.n_context, stream.state.n_context_max, stream.state.cache_bytes) == (256, 512, 0)
        stream.prefill([1, 300])
        small = stream.state.cache_bytes
        stream.prefill([1, *range(300, 360)] * 5)
        state = stream.state
        assert (state.n_context, state.cache_bytes) == (512, 2 * small)


def test_common_prefix() -> None:
    def n(a: list[int], b: list[int]) -> int:
        return common_prefix(np.array(a, np.int32), np.array(b, np.int32))

    assert (n([], [1]), n([1], [1]), n([1, 2], [1, 3]), n([1, 2, 3], [1, 2])) == (0, 1, 1, 2)


def test_nothing_is_taken_from_a_llama_that_may_have_evaluated_images(model_paths: dict[str, Path]) -> None:
    llm = llama_cpp.Llama(str(model_paths["tiny"]), n_ctx=512, verbose=False)
    tokens = [300 + i % 50 for i in range(100)]
    llm.eval(tokens)
    llm.chat_handler = object()
    with StreamHandle(llm) as stream:
        stream.prefill(tokens)
        assert stream.state.n_imported == 0
    llm.chat_handler = None
    with StreamHandle(llm) as stream:
        stream.prefill(tokens)
        assert stream.state.n_imported > 0
    llm.close()
