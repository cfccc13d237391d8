from __future__ import annotations

from typing import Any

import pytest
from asked import ACTIONS, PROMPT
from token_trie import ArgumentError, StreamHandle, TokenTrie, _core

REQUESTS = ["Open the file.", "What is the weather?", "Call my mother.", "Set a timer.", "Stop the music.", "Hello."]


@pytest.mark.skipif(not _core.samples_in_graph(), reason="this llama.cpp has no samplers inside the graph")
@pytest.mark.parametrize("mode", ["greedy", "sampled"])
def test_the_device_answers_what_the_host_answers(llm: Any, mode: Any) -> None:
    answers = []
    for device_sampling in (True, False):
        with StreamHandle(llm, n_ctx=256, seed=7, device_sampling=device_sampling) as stream:
            stream.set_token_trie(TokenTrie.from_choices(llm, ACTIONS, prompt=PROMPT), mode)
            answers.append([])
            for request in REQUESTS:
                stream.prefill(f"{request}\n{PROMPT}")
                answers[-1].append([(step.token, step.forced) for step in stream.generate(temperature=2.0)])
            assert (stream.state.n_on_device > 0) == device_sampling
    assert answers[0] == answers[1]


def test_without_a_device_it_is_the_host_that_chooses(llm: Any) -> None:
    if llm.model_params.n_gpu_layers:
        pytest.skip("the model is on a device")
    with StreamHandle(llm, n_ctx=256) as stream:
        stream.prefill(PROMPT)
        stream.set_token_trie(TokenTrie.from_choices(llm, ACTIONS, prompt=PROMPT))
        assert list(stream.generate())
        assert stream.state.n_on_device == 0


@pytest.mark.parametrize("wrong", ["yes", None, 1])
def test_another_value_is_refused(llm: Any, wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="device_sampling"):
        StreamHandle(llm, device_sampling=wrong)
