from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
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
        tries._host = None
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
        tries._host = None
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
        tries._host = None
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
        tries._host = None
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


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_row_that_was_left_nothing_gets_back_what_is_allowed(
    dtype: Any, is_native: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tries = DeviceTries(V)
    root = tries.add(trie_of({(3, 4), (5,)}), end_tokens=[2])
    released = tries.add(trie_of({(6,), (6, 7)}), on_complete="release")
    if not is_native:
        tries._host = None
    inner, behind = tries.step(torch.tensor([root, released]), torch.tensor([3, 6])).tolist()
    ended = int(tries.step(tries.step(torch.tensor([root]), torch.tensor([5])), torch.tensor([2])))
    empty = torch.full((1, V), -torch.inf, dtype=dtype)
    empty[0, [0, 9]] = 3.0
    with caplog.at_level(logging.WARNING, "token_trie.torch"):
        assert tries.mask_(empty.clone(), torch.tensor([ended]))[0].isfinite().nonzero().tolist() == [[2]]
        for free in (behind, FREE):
            assert torch.equal(tries.mask_(empty.clone(), torch.tensor([free])), empty)
        assert not caplog.text
        for _ in range(2):
            masked = tries.mask_(empty.repeat(2, 1), torch.tensor([root, inner]))
            assert [row.isfinite().nonzero()[:, 0].tolist() for row in masked] == [[3, 5], [4]]
            assert masked[masked.isfinite()].eq(0).all()
    assert caplog.text.count("put back with equal logits") == 1
    half = empty.clone()
    half[0, 5] = -7.0
    assert tries.mask_(half, torch.tensor([root]))[0].isfinite().nonzero().tolist() == [[5]], "one is enough"
    nothing = tries.mask_(torch.full((1, V), torch.nan, dtype=dtype), torch.tensor([root]))
    assert nothing[0].isnan().nonzero()[:, 0].tolist() == [3, 5], "NaN is not -inf"


@pytest.mark.parametrize("is_native", [True, False])
def test_gradients_pass_through_what_is_allowed(is_native: bool) -> None:
    tries = DeviceTries(V)
    nodes = torch.tensor([tries.add(trie_of({(3, 4), (5,)}), end_tokens=[2]), FREE])
    if not is_native:
        tries._host = None
    weights = torch.randn(2, V, requires_grad=True)
    plain = torch.full((2, V), -torch.inf)
    plain[0, [3, 5]], plain[1] = 0.0, 0.0
    expected = torch.autograd.grad(torch.logsumexp(2 * weights + plain, 1).sum(), weights)[0]
    found = torch.autograd.grad(torch.logsumexp(tries.mask_(2 * weights, nodes), 1).sum(), weights)[0]
    assert torch.allclose(found, expected)
    cut = (2 * weights).index_fill(1, torch.tensor([3, 5]), -torch.inf)
    assert tries.mask_(cut, nodes[:1].repeat(2)).isfinite().nonzero()[:, 1].tolist() == [3, 5, 3, 5]
    with torch.no_grad():
        assert tries.mask_(weights, nodes).isfinite().sum() == 2 + V


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.zeros(1, V).expand(2, V), "logits: share memory"),
        (lambda: torch.zeros(2, 1).expand(2, V), "logits: share memory"),
        (lambda: torch.zeros(30).as_strided((2, V), (3, 1)), "logits: share memory"),
        (lambda: torch.zeros(2, V, requires_grad=True), "logits: a leaf Variable that requires grad"),
        (lambda: torch.zeros(2 * V, requires_grad=True).view(2, V), "logits: a view of a leaf"),
        (lambda: (torch.zeros(2, 2, V, requires_grad=True) * 1).unbind()[0], "logits: Output 0 of Unbind"),
        (lambda: np.zeros((2, V), np.float32), "logits must be a torch.Tensor, not ndarray"),
        (lambda: [[0.0] * V] * 2, "logits must be a torch.Tensor, not list"),
        (lambda: torch.zeros(2, V).to_sparse(), "logits must be a dense tensor"),
        (lambda: torch.nested.nested_tensor([torch.zeros(V)] * 2), "logits must be a dense tensor"),
        (lambda: torch.zeros(2, V).to(torch.float8_e5m2), "logits must be floats on .*, not torch.float8_e5m2"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_logits_that_cannot_be_written_are_refused_before_it(
    make: Callable[[], Any], message: str, is_native: bool
) -> None:
    tries = DeviceTries(V)
    nodes = torch.tensor([tries.add(trie_of({(3, 4), (5,)}), end_tokens=[2])]).expand(2)
    if not is_native:
        tries._host = None
    logits = make()
    with pytest.raises(ArgumentError, match=message):
        tries.mask_(logits, nodes)
    if isinstance(logits, torch.Tensor) and not logits.is_nested:
        assert logits.detach().to_dense().float().count_nonzero() == 0


@pytest.mark.parametrize("is_native", [True, False])
def test_tensors_of_inference_mode_and_negated_views_are_masked_too(is_native: bool) -> None:
    tries = DeviceTries(V)
    nodes = torch.tensor([tries.add(trie_of({(3, 4), (5,)}), end_tokens=[2])]).expand(2)
    if not is_native:
        tries._host = None
    with torch.inference_mode():
        inferred = torch.ones(2, V)
    for logits in (inferred, torch._neg_view(torch.ones(2, V))):
        assert tries.mask_(logits, nodes).isneginf().sum() == 2 * V - 4


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda tries: pickle.loads(pickle.dumps(tries))])
def test_tables_are_copied_and_pickled(copied: Callable[[Any], Any]) -> None:
    tries = DeviceTries(V)
    nodes = torch.tensor([tries.add(trie_of({(3, 4), (5,)}), end_tokens=[2])])
    again = copied(tries)
    assert torch.equal(again.mask_(torch.zeros(1, V), nodes), tries.mask_(torch.zeros(1, V), nodes))
    root = again.add(trie_of({(7,)}), end_tokens=[2])
    assert again.candidates(torch.zeros(1, V), torch.tensor([root])).tokens.tolist() == [[7]]
    with pytest.raises(ArgumentError, match="is no node"):
        tries.step(torch.tensor([root]), torch.tensor([7]))


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
