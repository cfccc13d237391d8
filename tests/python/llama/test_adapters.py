"""All that is read of a Llama is computed with the adapter that it was made with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import oracle
import pytest
from tiny_model import write_tiny_adapter
from token_trie import (
    Choice,
    StreamHandle,
    TokenTrie,
    choose,
    choose_many,
    decide,
    score,
)
from token_trie.decisions.calibration import fingerprint

PROMPT = "A word about Pizza in Paris:"
CHOICES = ["yes", "no Pizza", "Paris"]
QUESTION = Choice("Which?", ["yes", "no Pizza"])


def opened(path: Path, **options: Any) -> Any:
    return llama_cpp.Llama(
        str(path), n_ctx=512, n_threads=1, n_threads_batch=1, type_k=0, type_v=0, verbose=False, **options
    )


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    path = tmp_path / "adapter.gguf"
    write_tiny_adapter(path, 0)
    return path


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


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_llamas_own_adapter_is_that_of_every_reading(
    model_paths: dict[str, Path], adapter: Path, scale: float
) -> None:
    llm, bare = opened(model_paths["tiny"], lora_path=str(adapter), lora_scale=scale), opened(model_paths["tiny"])
    assert check(llm) != pytest.approx(check(bare), abs=1e-2)
    llm.close()
    bare.close()


@pytest.mark.parametrize("is_reproducible", [False, True])
def test_so_it_is_of_decisions_and_their_priors(
    model_paths: dict[str, Path], adapter: Path, is_reproducible: bool
) -> None:
    llm, bare = opened(model_paths["tiny"], lora_path=str(adapter)), opened(model_paths["tiny"])
    answers = [
        list(decide(each, "Pizza", QUESTION, reproducible=is_reproducible).probabilities.values())
        for each in (llm, bare)
    ]
    assert answers[0] != pytest.approx(answers[1], abs=1e-3)
    llm.close()
    bare.close()


def test_it_is_in_the_fingerprint_by_its_file_and_scale(model_paths: dict[str, Path], adapter: Path) -> None:
    options: list[dict[str, Any]] = [{}, {"lora_path": str(adapter)}, {"lora_path": str(adapter), "lora_scale": 0.5}]
    llms = [opened(model_paths["tiny"], **each) for each in [*options, options[-1]]]
    found = [fingerprint(llm) for llm in llms]
    assert len(set(found)) == 3
    assert found[-1] == found[-2]
    for llm in llms:
        llm.close()
