"""Who fills and applies masks, each ready for one vocabulary, one set and a number of rows."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.contenders.base import Measure, samples, timed
from bench.contenders.llguidance import LLGuidance
from bench.contenders.xgrammar import XGrammar
from bench.models import Model
from bench.native import Samples
from bench.sets import Answers

if TYPE_CHECKING:
    from token_trie import TokenTrie

BITMASK, TENSORS, XGRAMMAR, LLGUIDANCE, TRANSFORMERS = (
    "token-trie bitmask",
    "token-trie tensors",
    "xgrammar",
    "llguidance",
    "transformers",
)
MEMORY = "memset"


def repeated(call: Callable[[], object]) -> Callable[[int], Samples]:
    """Return what times a call n times."""
    return lambda n: samples([timed(call)[0] for _ in range(n)])


def _measure(quantity: str, call: Callable[[], object]) -> Measure:
    time = repeated(call)
    return lambda n: {quantity: time(n)}


class Batch:
    """Rows of logits of one vocabulary, and what is done to them."""

    def __init__(self, n_vocab: int, rows: int) -> None:
        import torch

        self.torch, self.n_vocab, self.rows = torch, n_vocab, rows
        self.logits = torch.randn(rows, n_vocab)
        self.mask = np.full((rows, (n_vocab + 31) // 32), -1, np.int32)

    def memory(self) -> dict[str, Measure]:
        """Return the time that the bytes of the masks take to be written, and nothing else."""
        return {"fill": _measure("fill", lambda: self.mask.fill(0))}

    def applied(self) -> dict[str, Measure]:
        """Return xgrammar's kernel for logits in main memory, on a mask that allows 30 tokens."""
        import xgrammar

        self.mask[:] = 0
        self.mask[:, :30] = 1
        mask = self.torch.from_numpy(self.mask)
        return {"apply": _measure("apply", lambda: xgrammar.apply_token_bitmask_inplace(self.logits, mask))}

    def bitmask(self, trie: "TokenTrie", end: int) -> dict[str, Measure]:
        """Return ours on the host: fill, and a step there and back."""
        from token_trie.engines import BatchMatcher, TrieMatcher

        matcher = TrieMatcher(trie, self.n_vocab, end_tokens=[end])
        matchers = [matcher.fork() for _ in range(self.rows)]
        tokens = [trie[0].tokens[0]] * self.rows

        def step() -> None:
            BatchMatcher.batch_accept_token(matchers, tokens)
            BatchMatcher.batch_rollback(matchers, 1)

        fill = BatchMatcher.batch_fill_next_token_bitmask
        return {
            "fill": _measure("fill", lambda: fill(matchers, self.mask)),
            "step and back": _measure("step and back", step),
        }

    def tensors(self, trie: "TokenTrie", end: int) -> dict[str, Measure]:
        """Return ours as tensors, at random nodes of the set: mask, step, and both as one step takes them."""
        from token_trie.engines.torch import DeviceTries

        tries = DeviceTries(self.n_vocab)
        root = tries.add(trie, end_tokens=[end])
        rng = np.random.default_rng(0)
        sequences = [trie[int(i)].tokens for i in rng.integers(len(trie), size=self.rows)]
        nodes = self.torch.full((self.rows,), root)
        depth = int(rng.integers(min(len(s) for s in sequences)))
        for i in range(depth):
            nodes = tries.step(nodes, self.torch.tensor([s[i] for s in sequences]))
        tokens = self.torch.tensor([s[depth] for s in sequences])
        return {
            "mask": _measure("mask", lambda: tries.mask_(self.logits, nodes)),
            "step": _measure("step", lambda: tries.step(nodes, tokens)),
            "mask+step": _measure("mask+step", lambda: (tries.mask_(self.logits, nodes), tries.step(nodes, tokens))),
        }

    def xgrammar(self, model: Model, answers: Answers) -> dict[str, Measure]:
        """Return its batch fill."""
        import xgrammar

        engine = XGrammar(model, "cpu")
        first: Any = engine.build(engine.text(answers))
        matchers = [first.fork() for _ in range(self.rows)]
        batch = xgrammar.BatchGrammarMatcher()
        mask = self.torch.from_numpy(self.mask)
        return {"fill": _measure("fill", lambda: batch.batch_fill_next_token_bitmask(matchers, mask))}

    def llguidance(self, model: Model, answers: Answers) -> dict[str, Measure]:
        """Return its parallel fill."""
        from llguidance import LLExecutor
        from llguidance.numpy import fill_next_token_bitmask_par

        engine = LLGuidance(model, "numpy")
        first: Any = engine.build(engine.text(answers))
        matchers = [(first.deep_copy(), i) for i in range(self.rows)]
        executor = LLExecutor()
        return {"fill": _measure("fill", lambda: fill_next_token_bitmask_par(executor, matchers, self.mask))}

    def transformers(self, trie: "TokenTrie", end: int) -> dict[str, Measure]:
        """Return its own way from lists of allowed tokens to logits, the lists made by ours."""
        from token_trie.engines import TrieMatcher
        from token_trie.engines.transformers import prefix_allowed_tokens_fn
        from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor

        allowed = prefix_allowed_tokens_fn(TrieMatcher(trie, self.n_vocab, end_tokens=[end]), 1)
        process = PrefixConstrainedLogitsProcessor(allowed, 1)
        ids = self.torch.ones((self.rows, 1), dtype=self.torch.int64)
        return {"fill+apply": _measure("fill+apply", lambda: process(ids, self.logits))}
