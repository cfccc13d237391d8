"""One set, walked by everything that walks one: what is allowed is one and the same at every step."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
from rtp_llm import TreeDecode, prefix_dict_of
from token_trie import TokenTrie
from token_trie.engines import BatchMatcher, TrieMatcher
from token_trie.llama.query import SpanOptions, follow_set, read_span
from token_trie.native.core import _core

STEPS = int(os.environ.get("TOKEN_TRIE_EQUAL_STEPS", "4000"))
ROWS, V, END = 40, 300, 2
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_VLLM = importlib.util.find_spec("vllm") is not None


def random_trie(rng: np.random.Generator) -> TokenTrie:
    """Make a set over few tokens, so that prefixes abound, or one with more children than a node lists on a device."""
    if rng.random() < 0.1:
        wide = rng.permutation(np.arange(3, V))[: rng.integers(257, V - 3)]
        return TokenTrie.from_sequences({str(t): [int(t), int(rng.integers(3, 9))] for t in wide} | {"x": [5]})
    n, length, tokens = rng.integers(1, 30), int(rng.integers(1, 5)), int(rng.integers(4, 12))
    rows = {tuple(rng.integers(3, tokens, rng.integers(1, length + 1)).tolist()) for _ in range(n)}
    return TokenTrie.from_sequences({repr(row): row for row in sorted(rows)})


def cursor_at(trie: TokenTrie, walked: list[int]) -> _core.Cursor:
    span = read_span(_core.Vocab(0), None, SpanOptions(end_tokens=[END]))
    cursor = _core.Cursor(trie.core, follow_set(trie.core, _core.Vocab(0), span))
    for token in walked:
        assert cursor.accept(token)
    return cursor


def bits_of(row: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(row.astype("<i4").view(np.uint8), bitorder="little")[:V]).tolist())


class Tensors:
    def __init__(self, tries: list[TokenTrie]) -> None:
        import torch
        from token_trie.engines.torch import DeviceTries

        self.torch, self.tries = torch, DeviceTries(V)
        self.nodes = torch.tensor([self.tries.add(trie, end_tokens=[END]) for trie in tries])
        self.history = [[int(node)] for node in self.nodes]

    def allowed(self) -> list[set[int]]:
        logits = self.tries.mask_(self.torch.zeros(ROWS, V), self.nodes)
        return [set(row.isfinite().nonzero()[:, 0].tolist()) for row in logits]

    def step(self, tokens: list[int]) -> None:
        self.nodes = self.tries.step(self.nodes, self.torch.tensor(tokens))
        for past, node in zip(self.history, self.nodes.tolist(), strict=True):
            past.append(node)

    def rollback(self, counts: list[int]) -> None:
        for past, count in zip(self.history, counts, strict=True):
            del past[len(past) - count :]
        self.nodes = self.torch.tensor([past[-1] for past in self.history])


class VllmRows:
    """The rows of vLLM's first model runner, whose outputs grow and are taken back."""

    def __init__(self, tries: list[TokenTrie]) -> None:
        from test_vllm_rows import RunnerV1, asks_for

        self.runner = RunnerV1(V)
        self.outputs: list[list[int]] = [[] for _ in tries]
        params = [asks_for({leaf.name: leaf.tokens for leaf in trie}) for trie in tries]
        self.runner.update(ROWS, added=[(i, p, [1], self.outputs[i]) for i, p in enumerate(params)])

    def walk(self, walked: list[list[int]]) -> list[set[int]]:
        for output, tokens in zip(self.outputs, walked, strict=True):
            output[:] = tokens
        return self.runner.allowed()


@pytest.mark.parametrize("seed", [0])
def test_what_is_allowed_is_one_and_the_same(seed: int) -> None:
    done = 0
    while done < STEPS:
        rng = np.random.default_rng((seed, done))
        tries = [random_trie(rng) for _ in range(ROWS)]
        matchers = [TrieMatcher(trie, V, end_tokens=[END]) for trie in tries]
        configs = [prefix_dict_of((leaf.tokens for leaf in trie), end=END) for trie in tries]
        plain = [*map(TreeDecode, configs)]
        read = [TrieMatcher(TokenTrie.from_prefix_dict(config), V, end_tokens=[END]) for config in configs]
        tensors = Tensors(tries) if HAS_TORCH else None
        of_vllm = VllmRows(tries) if HAS_VLLM else None
        walked: list[list[int]] = [[] for _ in range(ROWS)]
        mask = np.empty((ROWS, (V + 31) // 32), np.int32)
        for _ in range(20):
            BatchMatcher.batch_fill_next_token_bitmask(matchers, mask)
            of_tensors = tensors.allowed() if tensors else None
            of_rows = of_vllm.walk(walked) if of_vllm else None
            tokens = []
            for i in range(ROWS):
                where = f"seed {seed}, from step {done}, row {i}, behind {walked[i]}"
                expected = plain[i].candidates()
                assert set(matchers[i].allowed_tokens().tolist()) == expected, where
                assert set(read[i].allowed_tokens().tolist()) == expected, where
                assert bits_of(mask[i]) == expected, where
                assert of_tensors is None or of_tensors[i] == expected, where
                assert of_rows is None or of_rows[i] == expected, where
                if END not in walked[i]:
                    cursor = cursor_at(tries[i], walked[i]).allowed()
                    assert cursor is not None and set(cursor.tolist()) == expected, where  # noqa: PT018
                tokens.append(int(rng.choice(sorted(expected))))
            for one, other, token in zip(matchers, read, tokens, strict=True):
                assert one.accept_token(token)
                assert other.accept_token(token)
            if tensors:
                tensors.step(tokens)
            for row, token in zip(walked, tokens, strict=True):
                row.append(token)
            counts = [int(rng.integers(0, len(row) + 1)) if rng.random() < 0.2 else 0 for row in walked]
            for one, other, count in zip(matchers, read, counts, strict=True):
                one.rollback(count)
                other.rollback(count)
            if tensors:
                tensors.rollback(counts)
            for row, tree, count in zip(walked, plain, counts, strict=True):
                del row[len(row) - count :]
                tree.path = list(row)
            done += ROWS
