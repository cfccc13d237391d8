from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from model_readings import read_rows
from token_trie import ArgumentError, Choice, StreamHandle, choose_many
from token_trie.decisions.choose import ChoiceRequest
from token_trie.decisions.options import ChooseOptions
from token_trie.llama.batch import Batch
from token_trie.llama.query import Query
from token_trie.llama.stream import Stream

SHARED = "This is what they all begin with, and it is long enough to be shared. " * 2
PROMPTS = ["a", *(f"{SHARED}Row {i}:{' words' * (7 * i % 40)}" for i in range(12)), "another one", f"{SHARED * 3}end"]
CHOICES = [" yes", " no", " yes and no"]
STATE = Query("text", with_state=True)
FEW = [PROMPTS[i] for i in (0, 1, 7)]
"""For real models, which take a second a prompt."""
MODELS = {"tiny": 1e-5, "bpe": 1e-5, "smollm2": 0.12, "gemma": 0.16}
"""With how far states may be off, in parts of their length: quantized products round with the rows beside them."""


@pytest.fixture(scope="module", params=MODELS)
def model(request: Any, model_paths: dict[str, Path]) -> Iterator[tuple[Any, Any, float, list[str]]]:
    """Return a Llama, the states by llama.cpp itself, how far they may be off, and prompts."""
    options: Any = {"n_ctx": 1024, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    # With the cache in F32, states hardly depend on the batch. In F16, those of llama.cpp itself differ by up to 1e-3.
    options |= {"type_k": 0, "type_v": 0}
    llm = llama_cpp.Llama(str(model_paths[request.param]), **options)
    oracle = llama_cpp.Llama(str(model_paths[request.param]), embedding=True, pooling_type=0, **options)

    def states(prompt: str) -> Any:
        oracle.reset()
        rows: Any = oracle.embed(prompt, normalize=False)
        return np.array(rows[-1], np.float32)

    yield llm, states, MODELS[request.param], FEW if request.param in ("smollm2", "gemma") else PROMPTS
    llm.close()
    oracle.close()


def near(a: Any, b: Any, tolerance: float) -> None:
    assert a.shape == b.shape
    assert a.dtype == np.float32
    assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


def test_a_stream_has_the_hidden_state_after_its_last_token(model: Any) -> None:
    llm, oracle, tolerance, prompts = model
    with StreamHandle(llm) as handle:
        for prompt in prompts:
            handle.prefill(prompt)
            expected = oracle(prompt)
            own = handle._stream.answer(STATE).state
            near(own, expected, tolerance)
            handle.score(CHOICES)  # whose rows are evaluated beside it
            near(handle._stream.answer(STATE).state, expected, tolerance)
            assert handle.choose(CHOICES).text in CHOICES


def test_a_batch_gives_states_alone_and_with_scores_in_any_company(model: Any) -> None:
    llm, oracle, tolerance, prompts = model
    expected = [oracle(prompt) for prompt in prompts]
    alone = read_rows(llm, prompts, CHOICES)
    read = read_rows(llm, prompts, CHOICES, states=True)
    assert read.states is not None
    for own, other in zip(read.states, expected, strict=True):
        near(own, other, tolerance)
    assert read.raw == pytest.approx(alone.raw, abs=1e-3 if tolerance < 0.01 else 1.0)
    batch = Batch(llm)
    try:
        tickets = {batch.submit(llm.tokenize(prompt.encode()), STATE): i for i, prompt in enumerate(prompts)}
        found = {}
        while len(found) < len(tickets):
            answer = batch.next()
            if answer is not None:
                assert answer.error is None
                found[tickets[answer.ticket]] = answer.state
    finally:
        batch.close()
    for i, other in enumerate(expected):
        near(found[i], other, tolerance)


def test_models_without_shared_cells_have_states_too(recurrent: Any) -> None:
    read = read_rows(recurrent, ["a b", "c"], CHOICES, states=True)
    assert read.states is not None
    with StreamHandle(recurrent) as handle:
        for prompt, state in zip(["a b", "c"], read.states, strict=True):
            handle.prefill(prompt)
            near(handle._stream.answer(STATE).state, state, 1e-4)


def test_a_state_of_nothing_is_refused(tiny: Any) -> None:
    stream = Stream(tiny)
    with pytest.raises(ArgumentError, match="prefill first"):
        stream.answer(STATE)
    stream.close()


def test_a_request_may_want_a_state_beside_its_answer(tiny: Any) -> None:
    request = ChoiceRequest.read(CHOICES, ChooseOptions())
    assert not request.with_state
    assert next(choose_many(tiny, ["a"], CHOICES)).text in CHOICES


@pytest.mark.parametrize("question", [Choice("Which?", ["a", "b"])])
def test_states_after_a_question_are_those_of_its_prompt(tiny: Any, question: Any) -> None:
    read = read_rows(tiny, ["one", "two"], question, states=True)
    assert read.states is not None
    with StreamHandle(tiny) as handle:
        for state, own in zip(["one", "two"], read.states, strict=True):
            handle.prefill(f"{state}\n\nQuestion: Which?\nAnswer:")
            near(own, handle._stream.answer(STATE).state, 1e-4)
