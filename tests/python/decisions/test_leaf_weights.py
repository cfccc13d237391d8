"""A search for the best by score and weight, against the scores of all leaves with their weights."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_trie import ArgumentError, TokenTrie
from token_trie.llama.batch import Batch
from token_trie.llama.contexts import StreamOptions
from token_trie.llama.query import LEAF_ENDS, LeafEnd, Query
from token_trie.llama.stream import Stream

PROMPT = [3 + byte for byte in b"The answer is"]
NEAR = 1e-3

texts = st.sets(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=14).map(sorted)
spreads = st.sampled_from([0.0, 1.0, 10.0, 1e6])


def weights_of(trie: TokenTrie, seed: int, spread: float) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).uniform(-spread, spread, len(trie))


@given(texts, st.integers(0, 2**32 - 1), spreads, st.sampled_from(sorted(LEAF_ENDS)), st.integers(1, 4), st.booleans())
@settings(max_examples=60)
def test_a_search_is_for_the_best_by_score_and_weight(
    precise: Any, texts: list[str], seed: int, spread: float, leaf_end: LeafEnd, n_best: int, is_bounded: bool
) -> None:
    trie = TokenTrie.from_choices(precise, texts)
    weights = weights_of(trie, seed, spread)
    with closing(Stream(precise, options=StreamOptions(n_ctx=256))) as stream:
        stream.prefill(PROMPT)
        scores = stream.answer(Query("scores", trie, leaf_end=leaf_end)).logprobs
        max_nodes = 2 if is_bounded else 0
        query = Query("best", trie, n_best=n_best, leaf_end=leaf_end, max_nodes=max_nodes, leaf_weights=weights)
        found = stream.answer(query)
    ranks = scores + weights
    others = np.delete(ranks, found.leaves)
    assert found.logprobs == pytest.approx(scores[found.leaves], abs=NEAR)
    assert all(others <= ranks[found.leaves[-1]] + found.figures.gap + NEAR)
    assert all(others <= found.figures.rival_max + NEAR)
    if not is_bounded:
        assert found.figures.gap == 0
        assert ranks[found.leaves] == pytest.approx(np.sort(ranks)[::-1][:n_best], abs=NEAR)


def test_a_batch_ranks_by_them_too(precise: Any) -> None:
    trie = TokenTrie.from_choices(precise, ["READ", "READ_FILE", "SEND", "SET_ALARM"])
    with closing(Stream(precise, options=StreamOptions(n_ctx=256))) as stream:
        stream.prefill(PROMPT)
        scores = stream.answer(Query("scores", trie)).logprobs
    with closing(Batch(precise, n_ctx=256)) as batch:
        for seed, spread in enumerate([0.0, 1.0, 10.0, 1e6]):
            weights = weights_of(trie, seed, spread)
            batch.submit(PROMPT, Query("best", trie, leaf_weights=weights, n_best=2))
            while (answer := batch.next()) is None:
                pass
            assert answer.leaves.tolist() == np.argsort(-(scores + weights))[:2].tolist()
            assert answer.logprobs == pytest.approx(scores[answer.leaves], abs=NEAR)
            assert answer.figures.gap == 0


def test_weights_that_do_not_fit_are_refused_with_their_position(precise: Any) -> None:
    trie = TokenTrie.from_choices(precise, ["yes", "no"])
    with closing(Stream(precise, options=StreamOptions(n_ctx=256))) as stream:
        stream.prefill(PROMPT)
        with pytest.raises(ArgumentError, match=r"query\.n_leaf_weights: 3 where the trie has 2"):
            stream.answer(Query("best", trie, leaf_weights=np.zeros(3)))
        with pytest.raises(ArgumentError, match=r"query\.leaf_weights\[1\]: nan is not finite"):
            stream.answer(Query("best", trie, leaf_weights=np.array([0, np.nan])))
        assert stream.answer(Query("best", trie, leaf_weights=np.array([0, 1], np.float32)[::-1])).figures.gap == 0
