"""Masks for batches of rows: ours on the host and as tensors beside xgrammar, llguidance and transformers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from token_trie import TokenTrie

from bench.contenders import LLGuidance, XGrammar, single_threaded_torch
from bench.models import Model, load
from bench.results import Results, Table, progress
from bench.sets import Answers, actions, catalogue, fan_out
from bench.timing import Measure, repeated, take_turns

_BATCHES = (1, 8, 64, 256)
_BETWEEN = 151_936  # tokens of a vocabulary without a model
_FANS = (30, 1000, 100_000, 1_000_000)  # leaves
_QUANTITIES = ("fill", "apply", "fill+apply", "mask", "step", "mask+step", "step and back")
BITMASK, TENSORS, MEMORY, APPLY = "token-trie bitmask", "token-trie tensors", "memset", "xgrammar apply"


def run(options: Any) -> None:
    """Measure with the vocabularies of all models, and one between them."""
    single_threaded_torch()
    results = Results("mask")
    for model in [*map(load, options.models), None]:
        n_vocab = _BETWEEN if model is None else model.n_vocab
        named = [] if model is None else [actions(model), catalogue(model, 1000)]
        sets = [*named, *(fan_out(n_vocab, n) for n in _FANS)]
        lines = []
        for answers, n_rows in progress([(a, n) for a in sets for n in _BATCHES], f"{n_vocab:,} tokens"):
            trie = TokenTrie.from_sequences({str(i): tokens for i, tokens in enumerate(answers.tokens)})
            of: dict[str, dict[str, float]] = {}
            for row in take_turns(_contenders(model, answers, trie, n_vocab, n_rows), options.rounds or 10):
                of.setdefault(row["contender"], {})[row["quantity"]] = row["median_us"]
            where = {"set": answers.name, ">rows": n_rows}
            lines += [where | {"contender": who, **{f">{q}": us.get(q) for q in _QUANTITIES}} for who, us in of.items()]
        title = f"{'no model' if model is None else model.name}, {n_vocab:,} tokens: median microseconds"
        results.tables.append(Table(title, lines))
    results.finish(options.output)


def _contenders(
    model: Model | None, answers: Answers, trie: TokenTrie, n_vocab: int, rows: int
) -> dict[str, dict[str, Measure]]:
    import torch

    logits = torch.randn(rows, n_vocab)
    mask = np.full((rows, (n_vocab + 31) // 32), -1, np.int32)
    makers: dict[str, Callable[[], dict[str, Callable[[], object]]]] = {
        BITMASK: partial(_bitmask, trie, n_vocab, mask),
        TENSORS: partial(_tensors, trie, logits),
        MEMORY: lambda: {"fill": lambda: mask.fill(0)},
        APPLY: partial(_applied, logits, mask.copy()),
        "transformers": partial(_transformers, trie, logits),
    }
    if model is not None and answers.names:
        makers["xgrammar"] = partial(_xgrammar, model, answers, mask)
        makers["llguidance"] = partial(_llguidance, model, answers, mask)
    if len(trie) > 1000:
        del makers["transformers"]
    out = {}
    for who, make in makers.items():
        try:
            out[who] = {quantity: repeated(quantity, call) for quantity, call in make().items()}
        except ModuleNotFoundError:
            continue
    return out


def _bitmask(trie: TokenTrie, n_vocab: int, mask: Any) -> dict[str, Callable[[], object]]:
    """Return ours on the host: fill, and a step there and back."""
    from token_trie.engines import BatchMatcher, TrieMatcher

    matcher = TrieMatcher(trie, n_vocab, end_tokens=[0])
    matchers = [matcher.fork() for _ in range(len(mask))]
    tokens = [trie[0].tokens[0]] * len(mask)

    def step() -> None:
        BatchMatcher.batch_accept_token(matchers, tokens)
        BatchMatcher.batch_rollback(matchers, 1)

    return {"fill": lambda: BatchMatcher.batch_fill_next_token_bitmask(matchers, mask), "step and back": step}


def _tensors(trie: TokenTrie, logits: Any) -> dict[str, Callable[[], object]]:
    """Return ours as tensors, at random nodes of the set: mask, step, and both as one step takes them."""
    import torch
    from token_trie.engines.torch import DeviceTries

    tries = DeviceTries(logits.shape[1])
    nodes = torch.full((len(logits),), tries.add(trie, end_tokens=[0]))
    rng = np.random.default_rng(0)
    sequences = [trie[int(i)].tokens for i in rng.integers(len(trie), size=len(logits))]
    depth = int(rng.integers(min(len(s) for s in sequences)))
    for i in range(depth):
        nodes = tries.step(nodes, torch.tensor([s[i] for s in sequences]))
    tokens = torch.tensor([s[depth] for s in sequences])
    return {
        "mask": lambda: tries.mask_(logits, nodes),
        "step": lambda: tries.step(nodes, tokens),
        "mask+step": lambda: (tries.mask_(logits, nodes), tries.step(nodes, tokens)),
    }


def _applied(logits: Any, mask: Any) -> dict[str, Callable[[], object]]:
    """Return xgrammar's kernel for logits in main memory, on a mask that allows 30 tokens."""
    import torch
    import xgrammar

    mask[:] = 0
    mask[:, :30] = 1
    bits = torch.from_numpy(mask)
    return {"apply": lambda: xgrammar.apply_token_bitmask_inplace(logits, bits)}


def _xgrammar(model: Model, answers: Answers, mask: Any) -> dict[str, Callable[[], object]]:
    """Return its batch fill."""
    import torch
    import xgrammar

    engine = XGrammar(model, "cpu")
    first = engine.build(engine.text(answers))
    matchers = [first.fork() for _ in range(len(mask))]
    batch, bits = xgrammar.BatchGrammarMatcher(), torch.from_numpy(mask)
    return {"fill": lambda: batch.batch_fill_next_token_bitmask(matchers, bits)}


def _llguidance(model: Model, answers: Answers, mask: Any) -> dict[str, Callable[[], object]]:
    """Return its parallel fill."""
    from llguidance import LLExecutor
    from llguidance.numpy import fill_next_token_bitmask_par

    engine = LLGuidance(model, "numpy")
    first = engine.build(engine.text(answers))
    matchers = [(first.deep_copy(), i) for i in range(len(mask))]
    executor = LLExecutor()
    return {"fill": lambda: fill_next_token_bitmask_par(executor, matchers, mask)}


def _transformers(trie: TokenTrie, logits: Any) -> dict[str, Callable[[], object]]:
    """Return its own way from lists of allowed tokens to logits, the lists made by ours."""
    import torch
    from token_trie.engines import TrieMatcher
    from token_trie.engines.transformers import prefix_allowed_tokens_fn
    from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor

    allowed = prefix_allowed_tokens_fn(TrieMatcher(trie, logits.shape[1], end_tokens=[0]), 1)
    process = PrefixConstrainedLogitsProcessor(allowed, 1)
    ids = torch.ones((len(logits), 1), dtype=torch.int64)
    return {"fill+apply": lambda: process(ids, logits)}
