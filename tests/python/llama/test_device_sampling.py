from __future__ import annotations

import random
from typing import Any

import pytest
from token_trie import ArgumentError, StreamHandle, TokenTrie
from token_trie.native.core import _core
from tokenized_choices import ACTIONS, PROMPT

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


@pytest.mark.skipif(not _core.samples_in_graph(), reason="this llama.cpp has no samplers inside the graph")
@pytest.mark.parametrize("mode", ["greedy", "sampled"])
def test_of_random_sets_the_device_takes_what_the_host_takes(tiny: Any, mode: Any) -> None:
    rng = random.Random(1)
    with (
        StreamHandle(tiny, n_ctx=64, seed=7, device_sampling=True) as device,
        StreamHandle(tiny, n_ctx=64, seed=7, device_sampling=False) as host,
    ):
        for _ in range(500):
            names = {"".join(rng.choices("abc", k=rng.randint(1, 5))) for _ in range(rng.randint(2, 30))}
            prompt = "".join(rng.choices("xyz ", k=8))
            members = TokenTrie.from_choices(tiny, names)
            taken = []
            for stream in (device, host):
                stream.set_token_trie(members, mode)
                stream.prefill(prompt)
                taken.append([step.token for step in stream.generate(temperature=2.0)])
                assert stream.state.name in names
            assert taken[0] == taken[1], (names, prompt)
        assert device.state.n_on_device > 500
        assert host.state.n_on_device == 0


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
