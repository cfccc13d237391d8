"""Masks for batches of rows: ours on the host and as tensors beside xgrammar and llguidance."""

from collections.abc import Callable
from typing import Any

import numpy as np
from token_trie import TokenTrie

from bench.contenders import LLGuidance, XGrammar, single_threaded_torch
from bench.models import Model, load
from bench.results import Results, Table, progress
from bench.sets import Answers, actions, catalogue, fan_out
from bench.timing import Measure, repeated, take_turns

_BATCHES = (1, 8, 64, 256)
_FANS = (30, 1000, 100_000, 1_000_000)  # leaves
_QUANTITIES = ("fill", "apply", "mask", "step", "mask+step")


def run(options: Any) -> None:
    """Measure with the vocabularies of all models."""
    single_threaded_torch()
    results = Results("mask")
    for model in map(load, options.models):
        sets = [actions(model), catalogue(model, 1000), *(fan_out(model.n_vocab, n) for n in _FANS)]
        lines = []
        for answers, n_rows in progress([(a, n) for a in sets for n in _BATCHES], model.name):
            trie = TokenTrie.from_sequences({str(i): tokens for i, tokens in enumerate(answers.tokens)})
            of: dict[str, dict[str, float]] = {}
            for row in take_turns(_contenders(model, answers, trie, n_rows), options.rounds or 10):
                of.setdefault(row["contender"], {})[row["quantity"]] = row["median_us"]
            where = {"set": answers.name, ">rows": n_rows}
            lines += [where | {"contender": who, **{f">{q}": us.get(q) for q in _QUANTITIES}} for who, us in of.items()]
        results.tables.append(Table(f"{model.name}, {model.n_vocab:,} tokens: median microseconds", lines))
    results.finish(options.output)


def _contenders(model: Model, answers: Answers, trie: TokenTrie, rows: int) -> dict[str, dict[str, Measure]]:
    import torch
    import xgrammar
    from token_trie.engines import BatchMatcher, TrieMatcher

    logits = torch.randn(rows, model.n_vocab)
    mask = np.full((rows, (model.n_vocab + 31) // 32), -1, np.int32)
    few = torch.zeros(mask.shape, dtype=torch.int32)
    few[:, :30] = 1
    matcher = TrieMatcher(trie, model.n_vocab, end_tokens=[0])
    matchers = [matcher.fork() for _ in range(rows)]
    calls: dict[str, dict[str, Callable[[], object]]] = {
        "token-trie bitmask": {"fill": lambda: BatchMatcher.batch_fill_next_token_bitmask(matchers, mask)},
        "token-trie tensors": _tensors(trie, logits),
        "memset": {"fill": lambda: mask.fill(0)},
        "xgrammar apply": {"apply": lambda: xgrammar.apply_token_bitmask_inplace(logits, few)},  # 30 tokens
    }
    if answers.names:
        calls["xgrammar"] = {"fill": _fill_by_xgrammar(model, answers, mask)}
        calls["llguidance"] = {"fill": _fill_by_llguidance(model, answers, mask)}
    return {who: {quantity: repeated(quantity, call) for quantity, call in of.items()} for who, of in calls.items()}


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


def _fill_by_xgrammar(model: Model, answers: Answers, mask: Any) -> Callable[[], object]:
    import torch
    import xgrammar

    engine = XGrammar(model, "cpu")
    first = engine.build(engine.text(answers))
    matchers = [first.fork() for _ in range(len(mask))]
    batch, bits = xgrammar.BatchGrammarMatcher(), torch.from_numpy(mask)
    return lambda: batch.batch_fill_next_token_bitmask(matchers, bits)


def _fill_by_llguidance(model: Model, answers: Answers, mask: Any) -> Callable[[], object]:
    from llguidance import LLExecutor
    from llguidance.numpy import fill_next_token_bitmask_par

    engine = LLGuidance(model, "numpy")
    first = engine.build(engine.text(answers))
    matchers = [(first.deep_copy(), i) for i in range(len(mask))]
    executor = LLExecutor()
    return lambda: fill_next_token_bitmask_par(executor, matchers, mask)
