"""Whatever adapters a Llama has at the moment, all that is read of it is computed with them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import oracle
import pytest
from llama_cpp import llama_adapter_lora_init, llama_set_adapters_lora
from tiny_model import N_EMBD, write_tiny_adapter
from token_trie import (
    ArgumentError,
    Choice,
    StreamHandle,
    TokenTrie,
    choose,
    choose_many,
    constrain,
    decide,
    score,
)
from token_trie.decisions.calibration import fingerprint
from token_trie.llama.batch import Batch
from token_trie.llama.query import Query
from token_trie.native import loaded

PROMPT = "A word about Pizza in Paris:"
CHOICES = ["yes", "no Pizza", "Paris"]
QUESTION = Choice("Which?", ["yes", "no Pizza"])


def opened(path: Path, **options: Any) -> Any:
    return llama_cpp.Llama(
        str(path), n_ctx=512, n_threads=1, n_threads_batch=1, type_k=0, type_v=0, verbose=False, **options
    )


@pytest.fixture
def adapters(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one.gguf", tmp_path / "two.gguf"]
    for seed, path in enumerate(paths):
        write_tiny_adapter(path, seed)
    return paths


@pytest.fixture
def llm(model_paths: dict[str, Path]) -> Iterator[Any]:
    llm = opened(model_paths["tiny"])
    yield llm
    llm.close()


def apply(llm: Any, *adapters: tuple[Any, float]) -> None:
    pointers = (llama_cpp.llama_adapter_lora_p_ctypes * len(adapters))(*(one for one, _ in adapters))
    scales = (ctypes.c_float * len(adapters))(*(scale for _, scale in adapters))
    assert llama_set_adapters_lora(llm.ctx, pointers, len(adapters), scales) == 0


def expected(llm: Any) -> np.ndarray:
    """Return the scores that the Llama's own context gives, from nothing."""
    trie = TokenTrie.from_choices(llm, CHOICES, prompt=PROMPT)
    llm.reset()
    llm._ctx.kv_cache_clear()
    tokens = llm.tokenize(PROMPT.encode())
    of_leaves = {leaf.name: sum(oracle.logprobs(llm, tokens, tuple(leaf.tokens))) for leaf in trie}
    return np.array([of_leaves[text] for text in CHOICES])


def read(llm: Any) -> dict[str, np.ndarray]:
    """Return the scores that each way of reading gives."""

    def scores(decision: Any) -> np.ndarray:
        return np.log(decision.probabilities) + np.log(decision.mass)

    with StreamHandle(llm) as handle:
        handle.prefill(PROMPT)
        on_handle = scores(handle.choose(CHOICES, probabilities=True, leaf_end="any"))
    return {
        "score": np.array(score(llm, PROMPT, CHOICES, leaf_end="any")),
        "choose": scores(choose(llm, PROMPT, CHOICES, probabilities=True, leaf_end="any")),
        "many": scores(next(choose_many(llm, [PROMPT], CHOICES, probabilities=True, leaf_end="any"))),
        "handle": on_handle,
    }


def check(llm: Any) -> np.ndarray:
    right = expected(llm)
    for way, found in read(llm).items():
        assert found == pytest.approx(right, abs=1e-4), way
    return right


def test_adapters_set_scaled_and_taken_away_at_run_time_are_those_of_every_reading(
    llm: Any, adapters: list[Path]
) -> None:
    one, two = (llama_adapter_lora_init(llm.model, str(path).encode()) for path in adapters)
    changes: list[Callable[[], None]] = [
        lambda: None,
        lambda: apply(llm, (one, 1.0)),
        lambda: apply(llm, (one, 0.25)),
        lambda: apply(llm, (one, 0.25), (two, 2.0)),
        lambda: apply(llm, (two, 2.0)),
        lambda: apply(llm),
    ]
    seen = []
    for change in changes:
        change()
        seen.append(check(llm))
    assert seen[-1] == pytest.approx(seen[0], abs=1e-4)
    for i, before in enumerate(seen[:-1]):
        assert all(before != pytest.approx(after, abs=1e-2) for after in seen[i + 1 : -1])


def test_cells_of_other_adapters_are_not_taken_over(llm: Any, adapters: list[Path]) -> None:
    one = llama_adapter_lora_init(llm.model, str(adapters[0]).encode())
    apply(llm, (one, 1.0))
    right = expected(llm)
    apply(llm)
    llm.eval(llm.tokenize(PROMPT.encode()))  # these cells are of no adapter
    state = llm.save_state()
    apply(llm, (one, 1.0))
    assert score(llm, PROMPT, CHOICES, leaf_end="any") == pytest.approx(right, abs=1e-4)
    llm.reset()
    llm._ctx.kv_cache_clear()
    assert not loaded.is_mixed(llm)
    llm.load_state(state)
    assert loaded.is_mixed(llm)
    assert score(llm, PROMPT, CHOICES, leaf_end="any") == pytest.approx(right, abs=1e-4)


def test_a_llamas_own_adapter_is_that_of_its_context_whatever_it_says_later(
    model_paths: dict[str, Path], adapters: list[Path]
) -> None:
    llm = opened(model_paths["tiny"], lora_path=str(adapters[0]), lora_scale=0.5)
    assert not loaded.is_mixed(llm)
    before = check(llm)
    llm.lora_scale = 2.0  # which llama-cpp-python reads when it makes a Llama
    assert check(llm) == pytest.approx(before, abs=1e-5)
    apply(llm, (llm._lora_adapter, 2.0))
    assert check(llm) != pytest.approx(before, abs=1e-2)
    llm.close()


@pytest.mark.parametrize("is_reproducible", [False, True])
def test_priors_are_those_of_the_same_adapters(
    llm: Any, model_paths: dict[str, Path], adapters: list[Path], is_reproducible: bool
) -> None:
    def answer(of: Any) -> list[float]:
        return list(decide(of, "Pizza", QUESTION, reproducible=is_reproducible).probabilities.values())

    other = opened(model_paths["tiny"], lora_path=str(adapters[0]))
    bare = answer(llm)
    apply(llm, (llama_adapter_lora_init(llm.model, str(adapters[0]).encode()), 1.0))
    assert answer(llm) == pytest.approx(answer(other), abs=1e-5)
    assert answer(llm) != pytest.approx(bare, abs=1e-3)
    apply(llm)
    assert answer(llm) == pytest.approx(bare, abs=1e-5)
    other.close()


def test_what_was_opened_before_is_refused_and_closes(llm: Any, adapters: list[Path]) -> None:
    one = llama_adapter_lora_init(llm.model, str(adapters[0]).encode())
    batch = Batch(llm)
    handle = StreamHandle(llm)
    handle.prefill(PROMPT)
    apply(llm, (one, 1.0))
    with pytest.raises(ArgumentError, match="were changed after this was opened; open another"):
        handle.choose(CHOICES)
    with pytest.raises(ArgumentError, match="open another"):
        batch.submit([1, 2], Query("hidden_state"))
    handle.close()
    batch.close()
    check(llm)


def test_a_control_vector_is_refused_where_it_would_be_missing(llm: Any) -> None:
    vector = (ctypes.c_float * N_EMBD)(*([0.5] * N_EMBD))
    score(llm, PROMPT, CHOICES)

    def steer(data: Any, n: int) -> None:
        assert llama_cpp.llama_set_adapter_cvec(llm.ctx, data, n, N_EMBD, 1, 1) == 0

    steer(ctypes.cast(vector, ctypes.POINTER(ctypes.c_float)), N_EMBD)
    for refused in (
        lambda: score(llm, PROMPT, CHOICES),
        lambda: StreamHandle(llm),
        lambda: list(choose_many(llm, ["a"], CHOICES)),
    ):
        with pytest.raises(ArgumentError, match="has a control vector"):
            refused()
    with constrain(llm, TokenTrie.from_choices(llm, CHOICES, prompt=PROMPT)):
        assert llm.create_completion(PROMPT, max_tokens=8)["choices"][0]["text"].strip() in CHOICES
    steer(None, 0)
    check(llm)


def test_they_are_in_the_fingerprint_by_their_files(
    llm: Any, model_paths: dict[str, Path], adapters: list[Path]
) -> None:
    bare = fingerprint(llm)
    one, two = (llama_adapter_lora_init(llm.model, str(path).encode()) for path in adapters)
    apply(llm, (one, 0.5))
    own = fingerprint(llm)
    apply(llm, (two, 0.5))
    assert len({bare, own, fingerprint(llm)}) == 3
    other = opened(model_paths["tiny"], lora_path=str(adapters[0]), lora_scale=0.5)
    assert fingerprint(other) == own
    other.close()
    apply(llm)
    assert fingerprint(llm) == bare
