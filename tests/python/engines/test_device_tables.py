from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_trie import ArgumentError, TokenTrie

torch = pytest.importorskip("torch")
from token_trie.engines import TrieMatcher  # noqa: E402
from token_trie.engines.torch import FREE, DeviceTries  # noqa: E402

V = 12
members = st.sets(st.lists(st.integers(3, V - 1), min_size=1, max_size=5).map(tuple), min_size=1, max_size=25)


def trie_of(sequences: set[tuple[int, ...]]) -> TokenTrie:
    return TokenTrie.from_sequences({str(i): tokens for i, tokens in enumerate(sorted(sequences))})


def laid_out(trie: TokenTrie, *, compact: bool) -> TokenTrie:
    return TokenTrie.of_core(trie.core.laid_out(compact))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(members, st.booleans()), min_size=1, max_size=3),
    st.sets(st.integers(0, 4), min_size=1, max_size=2),
    st.booleans(),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_walks_go_as_matchers_do(
    sets: list[tuple[set[tuple[int, ...]], bool]], ends: set[int], must_end: bool, is_native: bool, random: Any
) -> None:
    tries = DeviceTries(V)
    options: Any = {"end_tokens": sorted(ends)} if must_end else {"on_complete": "release"}
    built = [laid_out(trie_of(of), compact=compact) for of, compact in sets]
    roots = [tries.add(trie, **options) for trie in built]
    if not is_native:
        tries._tables.host = None
    matchers = [TrieMatcher(trie, V, **options) for trie in built]
    nodes = torch.tensor(roots)
    for _ in range(7):
        logits = torch.randn(len(roots), V + 1, dtype=random.choice([torch.float32, torch.float16, torch.bfloat16]))
        masked = tries.mask_(logits.clone(), nodes)
        found = tries.candidates(logits, nodes)
        tokens = []
        for row, matcher in enumerate(matchers):
            is_free = matcher.is_terminated() or (not must_end and len(matcher.allowed_tokens()) == V)
            allowed = sorted(ends) if matcher.is_terminated() else matcher.allowed_tokens().tolist()
            if not is_free:
                assert masked[row].isfinite().nonzero()[:, 0].tolist() == allowed
                n = len(allowed)
                assert found.tokens[row, :n].tolist() == allowed
                assert torch.equal(found.logprobs[row, :n], logits[row, allowed])
                assert found.logprobs[row, n:].eq(-torch.inf).all()
                assert found.nodes[row, n:].eq(FREE).all()
                steps = tries.step(nodes[row].expand(n), torch.tensor(allowed))
                assert found.nodes[row, :n].tolist() == steps.tolist()
            tokens.append(random.choice(allowed))
            if not matcher.is_terminated():
                matcher.accept_token(tokens[-1])
        nodes = tries.step(nodes, torch.tensor(tokens))
        assert tries.is_terminated(nodes).tolist() == [matcher.is_terminated() for matcher in matchers]


@pytest.mark.parametrize("is_native", [True, False])
def test_candidates_are_as_wide_as_asked(is_native: bool) -> None:
    tries = DeviceTries(40)
    root = tries.add(TokenTrie.from_sequences({str(t): [t, 7] for t in range(3, 30)}), end_tokens=[2])
    if not is_native:
        tries._tables.host = None
    logprobs = torch.randn(2, 40)
    nodes = torch.tensor([root, FREE])
    wide, narrow = tries.candidates(logprobs, nodes), tries.candidates(logprobs, nodes, width=4)
    assert wide.tokens.shape == (2, 27)
    assert [torch.equal(a[:, :4], b) for a, b in zip(wide, narrow, strict=True)] == [True] * 3
    assert wide.logprobs[1].eq(-torch.inf).all()
    behind = tries.step(nodes, torch.tensor([5, 5]))
    assert tries.candidates(logprobs, behind).tokens.tolist() == [[7], [0]], "as the rows at hand need"


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_no_rows_have_no_candidates(requires_grad: bool, is_native: bool) -> None:
    tries = DeviceTries(V)
    tries.add(trie_of({(3, 4)}), end_tokens=[2])
    if not is_native:
        tries._tables.host = None
    logprobs, nodes = torch.zeros(0, V, requires_grad=requires_grad), torch.zeros(0, dtype=torch.int64)
    for found in tries.candidates(logprobs, nodes):
        assert found.shape == (0, 1)
    for found in tries.candidates(logprobs, nodes, width=3):
        assert found.shape == (0, 3)


@pytest.mark.parametrize("is_native", [True, False])
def test_what_is_left_of_a_filtered_set_is_walked(is_native: bool) -> None:
    trie = TokenTrie.from_sequences({"A": [5], "B": [7], "C": [7, 8, 4, 4], "D": [7, 8, 6]})
    tries = DeviceTries(V)
    nodes = torch.tensor([tries.add(trie.filtered([False, True, True, False]), end_tokens=[2])])
    if not is_native:
        tries._tables.host = None
    logprobs = torch.zeros(1, V)
    for token, after in ((7, [2, 8]), (8, [4]), (4, [4]), (4, [2])):
        nodes = tries.step(nodes, torch.tensor([token]))
        assert tries.candidates(logprobs, nodes).tokens[0].tolist() == after


def test_tails_take_as_many_bytes_as_tokens_need() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 2048, (50_000, 8)).astype(np.int32)
    trie = TokenTrie.from_arrays(tokens.ravel(), np.arange(0, tokens.size + 1, 8))
    narrow, wide = DeviceTries(2048), DeviceTries(60_000)
    narrow.add(trie, on_complete="release"), wide.add(trie, on_complete="release")
    assert narrow.nbytes < 26 * len(trie)
    assert narrow.nbytes < wide.nbytes < 40 * len(trie)


def test_nodes_that_are_none_are_refused_on_the_host_and_nothing_is_written() -> None:
    tries = DeviceTries(V)
    root = tries.add(trie_of({(3, 4), (3, 5)}), end_tokens=[2])
    logits = torch.zeros(2, V)
    for wrong in (root + 100, -100, 2**40):
        nodes = torch.tensor([root, wrong])
        for call in (
            lambda nodes: tries.mask_(logits, nodes),
            lambda nodes: tries.step(nodes, nodes),
            lambda nodes: tries.candidates(logits, nodes),
        ):
            with pytest.raises(ArgumentError, match=rf"nodes\[1\]: {wrong} is no node"):
                call(nodes)
    assert logits.eq(0).all()


def test_rows_apart_in_memory_and_of_other_types_are_masked_too() -> None:
    tries = DeviceTries(V)
    nodes = torch.tensor([tries.add(trie_of({(3, 4), (5,)}), end_tokens=[2])]).expand(2)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for logits in (torch.zeros(V, 2, dtype=dtype).T, torch.zeros(2, 2 * V, dtype=dtype)[:, :V]):
            tries.mask_(logits, nodes)
            assert logits.isfinite().nonzero().tolist() == [[0, 3], [0, 5], [1, 3], [1, 5]]
    once = torch.zeros(2, V, requires_grad=True)
    assert tries.mask_(once * 1, nodes).isfinite().sum() == 4
