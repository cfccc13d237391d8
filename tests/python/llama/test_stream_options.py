from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError, StreamHandle


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"llm": "nowhere.gguf"}, "nowhere.gguf"),
        ({"llm": __file__}, "could not be loaded as a model"),
        ({"penalty_repeat": -1.0}, "penalty_repeat"),
        ({"penalty_freq": 10**400}, "penalty_freq: int too large"),
        ({"seed": -1}, "seed: -1"),
        ({"seed": True}, "seed: True"),
        ({"penalty_last_n": "many"}, "penalty_last_n must be an integer, not str"),
        ({"penalty_last_n": 2**31}, "penalty_last_n: 2147483648 has more than 32 bits"),
        ({"n_threads": True}, "n_threads must be "),
        ({"n_ctx": -1}, "n_ctx"),
        ({"n_ctx": True}, "n_ctx: True is not a count"),
        ({"n_ctx": np.array([1, 2])}, "n_ctx: array"),
        ({"max_state_bytes": 0}, "max_state_bytes: 0 is not a count"),
        ({"jump_forward": np.array([1, 2])}, "jump_forward must be "),
        ({"device_sampling": np.array([1, 2])}, "device_sampling must be one of"),
    ],
)
def test_bad_options_are_refused(
    smollm2: Any, model_paths: dict[str, Path], options: dict[str, Any], message: str
) -> None:
    for llm in [options["llm"]] if "llm" in options else [smollm2, model_paths["tiny"]]:
        with pytest.raises(ArgumentError, match=message):
            StreamHandle(**{"llm": llm, **options})


def test_integers_may_be_numpys(tiny: Any, model_paths: dict[str, Path]) -> None:
    for llm in (tiny, model_paths["tiny"]):
        with StreamHandle(llm, n_ctx=np.int64(256), seed=np.uint32(5), penalty_last_n=np.int32(3)) as stream:  # type: ignore[arg-type]
            assert stream.state.n_context_max == 256
            stream.prefill("Answer:")
            assert len(list(stream.generate(np.int64(3)))) <= 3  # type: ignore[arg-type]


def test_states_take_the_memory_that_they_may(recurrent: Any, tiny: Any) -> None:
    with StreamHandle(recurrent, max_state_bytes=1) as few, StreamHandle(recurrent) as many, StreamHandle(tiny) as none:
        assert few.state.n_states_max == 8 < many.state.n_states_max == 64
        assert few.state.state_bytes == many.state.state_bytes > 0 == none.state.state_bytes == none.state.n_states_max
        answers = []
        for handle in (few, many):
            handle.prefill("a b c")
            answers.append(handle.score([f"{i} x{i % 3}" for i in range(40)]))
        assert answers[0] == pytest.approx(answers[1], abs=1e-3)
