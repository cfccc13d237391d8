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
