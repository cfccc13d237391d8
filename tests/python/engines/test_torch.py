from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from token_trie import ArgumentError, TokenTrie, VocabularyError

torch = pytest.importorskip("torch")
from token_trie.engines import TrieMatcher  # noqa: E402
from token_trie.engines.torch import FREE, DeviceTries  # noqa: E402

END, V = 2, 40
TRIE = TokenTrie.from_sequences({"READ": [7], "READ_FILE": [7, 8]})


def tries() -> tuple[DeviceTries, int]:
    made = DeviceTries(V)
    return made, made.add(TRIE, end_tokens=[END])


def allowed(made: DeviceTries, nodes: Any, padding: int = 0) -> list[list[int]]:
    logits = made.mask_(torch.zeros(len(nodes), made.vocab_size + padding), nodes)
    return [row.isfinite().nonzero()[:, 0].tolist() for row in logits]


def test_a_walk_by_hand() -> None:
    made, root = tries()
    nodes = torch.tensor([root, FREE, root])
    assert allowed(made, nodes) == [[7], list(range(V)), [7]]
    nodes = made.step(nodes, torch.tensor([7, 30, 7], dtype=torch.int32))
    assert allowed(made, nodes, 3) == [[END, 8], list(range(V + 3)), [END, 8]]
    nodes = made.step(nodes, torch.tensor([END, 31, 8]))
    assert allowed(made, nodes) == [[END], list(range(V)), [END]]
    assert made.is_terminated(nodes).tolist() == [True, False, False]
    nodes = made.step(nodes, torch.tensor([0, 7, 9]))
    assert made.is_terminated(nodes).tolist() == [True, False, False], "padding does not move what has ended"
    assert nodes.tolist()[1:] == [FREE, FREE], "and what is not allowed ends the constraint"


def test_logits_that_are_allowed_stay_to_the_bit() -> None:
    made, root = tries()
    nodes = made.step(torch.tensor([root, root, FREE]), torch.tensor([7, 5, 7]))
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    assert made.mask_(logits, nodes) is logits
    assert torch.equal(logits[1:], before[1:])
    assert torch.equal(logits[0, [END, 8]], before[0, [END, 8]])
    assert int(logits[0].isfinite().sum()) == 2


def test_a_released_row_is_free_and_may_still_go_on() -> None:
    made = DeviceTries(V)
    root = made.add(TRIE, on_complete="release")
    nodes = made.step(torch.tensor([root, root]), torch.tensor([7, 7]))
    assert allowed(made, nodes) == [list(range(V))] * 2
    nodes = made.step(nodes, torch.tensor([8, 9]))
    assert nodes[0] != FREE
    assert nodes[1] == FREE
    assert not made.is_terminated(nodes).any()


def test_sets_joined_later_leave_the_nodes_of_others_alone() -> None:
    made, root = tries()
    nodes = made.step(torch.tensor([root]), torch.tensor([7]))
    wide = TokenTrie.from_sequences({str(t): [t, 9] for t in range(3, 400)})
    large = DeviceTries(400)
    of_first = large.add(TRIE, end_tokens=[END])
    of_wide = large.add(wide, end_tokens=[END, 399])
    rows = torch.tensor([of_wide, of_first, of_wide])
    assert allowed(large, rows, 10) == [list(range(3, 400)), [7], list(range(3, 400))]
    rows = large.step(rows, torch.tensor([399, 7, 5]))
    assert large.is_terminated(rows).tolist() == [False, False, False]
    assert allowed(large, rows) == [[9], [END, 8], [9]]
    assert made.add(wide_of(V), end_tokens=[END]) > root
    assert allowed(made, nodes) == [[END, 8]]


def wide_of(n: int) -> TokenTrie:
    return TokenTrie.from_sequences({str(t): [t] for t in range(3, n)})


def test_beams_are_reordered_and_drafts_are_rows() -> None:
    made, root = tries()
    nodes = made.step(torch.tensor([root, root]), torch.tensor([7, 9]))
    assert nodes.index_select(0, torch.tensor([1, 0, 0])).tolist() == [FREE, nodes[0], nodes[0]]
    drafts, rows = [7, 8, END], [torch.tensor([root])]
    for token in drafts:
        rows.append(made.step(rows[-1], torch.tensor([token])))
    assert allowed(made, torch.cat(rows)) == [[7], [END, 8], [END], [END]]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.filterwarnings("ignore")  # the compiler's warnings
@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a compiler")
def test_it_compiles_without_a_break_in_the_graph(backend: str) -> None:
    made, root = tries()

    def both(logits: Any, nodes: Any) -> Any:
        tokens = made.mask_(logits, nodes).argmax(-1)
        return tokens, made.step(nodes, tokens)

    compiled = torch.compile(both, fullgraph=True, backend=backend)
    nodes = torch.tensor([root, FREE])
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(2))
    expected = both(logits.clone(), nodes)
    for got, want in zip(compiled(logits.clone(), nodes), expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DeviceTries(0), "vocab_size: 0"),
        (lambda: DeviceTries(V, device="nowhere"), "device: "),
        (lambda: DeviceTries(V).add(TRIE), "end_tokens: needed with on_complete end"),
        (lambda: DeviceTries(V).add(TRIE, on_complete="release", end_tokens=[END]), "end_tokens: needed with"),
        (lambda: DeviceTries(V).add(TRIE, on_complete="restart"), "on_complete must be one of"),  # type: ignore
        (lambda: DeviceTries(8).add(TRIE, end_tokens=[END]), "trie: 8 is outside the vocabulary"),
        (lambda: DeviceTries(V).add(TRIE, end_tokens=[V]), "end_tokens: 40 is outside the vocabulary"),
        (lambda: DeviceTries(V).add(TRIE, end_tokens=[-1]), "end_tokens: -1 is outside the vocabulary"),
        (lambda: tries()[0].mask_(torch.zeros(2, V), torch.tensor([0])), r"logits must have shape \(1, 40 or"),
        (lambda: tries()[0].mask_(torch.zeros(1, V - 1), torch.tensor([0])), r"must have .*, not \(1, 39\)"),
        (lambda: tries()[0].mask_(torch.zeros(1, V, dtype=torch.int32), torch.tensor([0])), "not torch.int32"),
        (lambda: tries()[0].mask_(torch.zeros(1, V, device="meta"), torch.tensor([0])), "logits must .* on meta"),
        (lambda: tries()[0].mask_(torch.zeros(1, V), torch.tensor([0.5])), "nodes must be int64"),
        (lambda: tries()[0].step(torch.tensor([0]), torch.tensor([0, 1])), "tokens: 2 for 1 nodes"),
        (lambda: tries()[0].step(torch.tensor([0]), torch.tensor([[0]])), "tokens must be int64 in one"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ArgumentError, VocabularyError), match=message):
        call()


def test_tokens_that_are_none_end_the_constraint() -> None:
    made, root = tries()
    nodes = torch.full((4,), root)
    assert made.step(nodes, torch.tensor([-1, V, V + 7, 2**40])).tolist() == [FREE] * 4


def test_a_matcher_fills_tensors_too() -> None:
    matcher = TrieMatcher(TRIE, V, end_tokens=[END])
    mask = torch.zeros(2, 2, dtype=torch.int32)
    assert matcher.fill_next_token_bitmask(mask, 1)
    assert mask.tolist() == [[0, 0], [1 << 7, 0]]
    with pytest.raises(ArgumentError, match="bitmask: "):
        matcher.fill_next_token_bitmask(torch.zeros(1, 2, dtype=torch.int32, device="meta"))
    with pytest.raises(ArgumentError, match="bitmask must be int32, not int64"):
        matcher.fill_next_token_bitmask(torch.zeros(1, 2, dtype=torch.int64))


def test_nothing_heavy_is_imported_unasked() -> None:
    code = "import sys, token_trie, token_trie.engines; print({'torch', 'transformers', 'vllm'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
