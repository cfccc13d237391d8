"""Models with states: snapshots and forks in contexts that are nearly full, and beside what the Llama has read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from architectures import HYBRID
from plain_model import opened
from tiny_model import sentence_pieces
from token_trie import StreamHandle, choose

N_CTX = 512
TOKENS = [1, *random.Random(0).choices(range(5, 60), k=N_CTX)]


@pytest.fixture
def hybrid(tmp_path: Path) -> Iterator[Any]:
    """Return a tiny LFM2."""
    HYBRID["lfm2"](tmp_path / "lfm2.gguf", sentence_pieces())
    llm = opened(tmp_path / "lfm2.gguf", N_CTX)
    yield llm
    llm.close()


def test_what_the_llama_has_read_is_taken_beside_snapshots(hybrid: Any) -> None:
    members = [" yes", " no"]
    for n_ctx in (256, N_CTX):
        with StreamHandle(hybrid, n_ctx=n_ctx) as handle, StreamHandle(hybrid, n_ctx=n_ctx) as other:
            hybrid.reset()
            handle.prefill(TOKENS[:120])
            handle.score(members)
            hybrid.eval(TOKENS[:200])
            for n in (210, 220):
                handle.prefill(TOKENS[:n])
                other.prefill(TOKENS[:n])
                assert handle.score(members) == pytest.approx(other.score(members), abs=1e-3)
    hybrid.reset()
    choose(hybrid, TOKENS[:120], members)
    hybrid.eval(TOKENS[:200])
    choose(hybrid, TOKENS[:210], members)


@pytest.mark.parametrize("seed", range(40))
def test_a_choice_is_made_wherever_the_longest_member_fits(hybrid: Any, seed: int) -> None:
    rng = random.Random(seed)
    texts = ["".join(rng.choices("abx", k=rng.randint(1, 7))) for _ in range(rng.randint(2, 60))]
    members = sorted({f" {text}" for text in texts} | {" c"})
    longest = max(len(hybrid.tokenize(member.encode(), add_bos=False)) for member in members)
    with (
        StreamHandle(hybrid, n_ctx=256, max_state_bytes=rng.choice([1, 1 << 20])) as handle,
        StreamHandle(hybrid) as other,
    ):
        for n in range(256 - longest - 4, 256 - longest):
            handle.prefill(TOKENS[:n])
            other.prefill(TOKENS[:n])
            n_best = rng.choice([1, 3])
            if n_best == 1:
                assert handle.score(members) == pytest.approx(other.score(members), abs=2e-3)
            found = handle.choose(members, n_best=min(n_best, len(members)))
            assert found.logprob == pytest.approx(other.choose(members, n_best=1).logprob, abs=2e-3)
            handle.prefill(TOKENS[:2])
            other.prefill(TOKENS[:2])
