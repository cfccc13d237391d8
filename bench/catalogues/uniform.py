"""Ids of 8 uniform tokens out of 2,048, the shape that STATIC is measured on."""

import gc
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from bench import native
from bench.catalogues.figures import CatalogueRow, Collector
from bench.contenders.samplers import Owned
from bench.contenders.token_trie import greedy
from bench.models import Logits

V, LENGTH, ROWS = 2048, 8, 140
_FEW = 30
_OURS, _STATIC, _MARISA = "token-trie", "STATIC", "marisa-trie"
_MOST_MARISA = 10_000_000
_MOST_TENSORS = 10_000_000


def drawn(n: int) -> Any:
    """Return n different ids in the order of their tokens."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, V, (n, LENGTH), dtype=np.int32)
    keys = ids[:, 0].astype(np.int64) << 44
    for i in range(1, 5):
        keys |= ids[:, i].astype(np.int64) << (44 - 11 * i)
    return ids[np.argsort(keys, kind="stable")]


def _seconds(work: Callable[[], Any], times: int = 1) -> float:
    taken = []
    for _ in range(times):
        start = perf_counter()
        work()
        taken.append(perf_counter() - start)
    return median(taken)


def _memory(what: str) -> int:
    """Return a figure of this process's memory in bytes, as Linux tells it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) << 10


def measure(n: int) -> list[CatalogueRow]:
    """Measure a set of n members, by all contenders that go so far."""
    from token_trie import TokenTrie

    rows: list[CatalogueRow] = []
    to = Collector(rows, "uniform", n)
    ids = drawn(n)
    shuffled = _built(to, ids[np.random.default_rng(5).permutation(n)], "")
    mask = np.random.default_rng(6).random(len(shuffled)) < 0.1
    to.put(_OURS, "filter, members in no order", _seconds(partial(shuffled.filtered, mask), 3) * 1e3, "ms")
    del shuffled, mask
    trie = _built(to, ids, ", in token order")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ids.trie"
        to.put(_OURS, "save", _seconds(lambda: trie.save(file)), "s")
        to.put(_OURS, "open and first step", _seconds(lambda: TokenTrie.open(file).children([]), 5) * 1e3, "ms")
        mapped = TokenTrie.open(file)
        paths = ids[np.random.default_rng(1).integers(0, n, 20_000)]
        _steps(to, mapped, paths)
        _applies(to, mapped, paths, "")
        _few(to, ids[:: max(1, n // _FEW)][:_FEW])
        if n <= _MOST_TENSORS:
            _tensors(to, mapped, paths)
    if n <= _MOST_MARISA:
        _marisa(to, ids)
    return rows


def _built(to: Collector, ids: Any, order: str) -> Any:
    from token_trie import TokenTrie

    tokens, offsets = ids.ravel(), np.arange(0, ids.size + 1, LENGTH)
    if can_tell := Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _memory("VmRSS")
    start = perf_counter()
    trie = TokenTrie.from_arrays(tokens, offsets)
    to.put(_OURS, "build" + order, perf_counter() - start, "s")
    if can_tell:
        to.put(_OURS, "peak of build, of the result" + order, (_memory("VmHWM") - before) / trie.nbytes, "x")
    to.put(_OURS, "bytes a member" + order, trie.nbytes / to.members, "B")
    return trie


def _steps(to: Collector, trie: Any, paths: Any) -> None:
    """Tell what a walk to a member's end takes, a step, without a filter and with some."""
    keep = np.random.default_rng(2)
    for share, name in ((None, "step"), (0.1, "step, 10 % left"), (0.0001, "step, 0.01 % left")):
        left, walks = trie, paths
        if share is not None:
            mask = keep.random(len(trie)) < share
            to.put(_OURS, f"filter, {name[6:]}", _seconds(lambda mask=mask: trie.filtered(mask), 3) * 1e3, "ms")
            left = trie.filtered(mask)
            some = keep.choice(np.flatnonzero(mask), 2000)
            walks = np.stack([trie.core.sequence(int(i)) for i in some])
        to.put(_OURS, name, _walk(left, walks), "µs")
        if share is not None:
            _applies(to, left, walks, name[4:])


def _few(to: Collector, ids: Any) -> None:
    """Tell what the same takes in a set of few members, some of the same."""
    from token_trie import TokenTrie

    trie = TokenTrie.from_arrays(ids.ravel(), np.arange(0, ids.size + 1, LENGTH))
    paths = ids[np.random.default_rng(3).integers(0, len(ids), 20_000)]
    to.put(_OURS, f"step, {_FEW} members", _walk(trie, paths), "µs")
    _applies(to, trie, paths, f", {_FEW} members")


def _walk(trie: Any, paths: Any) -> float:
    """Return the microseconds of a step of the tree alone, on the way to a member's end."""
    core = trie.core
    return _seconds(lambda: [core.descend(path) for path in paths], 3) * 1e6 / paths.size


def _applies(to: Collector, trie: Any, paths: Any, name: str) -> None:
    """Tell what the sampler's apply takes at each depth: all that it adds to a step of llama.cpp's."""
    sampler = Owned(greedy(trie))
    logits = np.random.default_rng(4).standard_normal(V).astype(np.float32)
    part = len(paths) // LENGTH
    for depth in range(LENGTH):
        # Others at the next depth, as a path that was walked before is in the cache.
        some = np.ascontiguousarray(paths[depth * part : (depth + 1) * part, :depth], np.int32)
        taken = native.apply(sampler.pointer, Logits(logits), 2000, some if depth else None)
        to.put(_OURS, f"apply{name}", float(np.mean(taken)) / 1e3, "µs", depth)


def _tensors(to: Collector, trie: Any, paths: Any) -> None:
    """Candidates and next nodes of 140 rows at each depth, beside STATIC's code where its folder is given."""
    import torch
    from token_trie.engines.torch import DeviceTries

    tries = DeviceTries(V)
    root = tries.add(trie, on_complete="release")
    to.put(_OURS, "bytes a member on a device", tries.nbytes / len(trie), "B")
    logprobs = torch.log_softmax(torch.randn(ROWS, V, generator=torch.Generator().manual_seed(0)), -1)
    nodes, rows = torch.full((ROWS,), root), torch.tensor(paths[:ROWS], dtype=torch.int64)
    static = _static(to, rows, logprobs)
    for depth in range(LENGTH):
        ours = lambda nodes=nodes: tries.candidates(logprobs, nodes)  # noqa: E731
        turns = {_OURS: ours} | ({} if static is None else {_STATIC: static[depth]})
        taken: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(30):
            for name, work in turns.items():
                taken[name].append(_seconds(lambda work=work: [work() for _ in range(20)]) / 20)
        for name, them in taken.items():
            to.put(name, "candidates of 140 rows", median(them) * 1e6, "µs", depth)
        mask = partial(tries.mask_, logprobs.clone(), nodes)
        masks = [_seconds(mask) for _ in range(200)]
        to.put(_OURS, "mask_ of 140 rows", median(masks) * 1e6, "µs", depth)
        nodes = tries.step(nodes, rows[:, depth])


def _static(to: Collector, rows: Any, logprobs: Any) -> list[Callable[[], Any]] | None:
    """Return STATIC's step at each depth: what its sparse_transition_torch does before it ranks the beams."""
    folder = os.environ.get("STATIC_DIR")
    if folder is None or to.members > 1_000_000:
        return None
    import torch

    sys.path.insert(0, folder)
    from static_decoding.csr_utils import build_static_index  # type: ignore[import-not-found,unused-ignore]
    from static_decoding.decoding_pt import (  # type: ignore[import-not-found,unused-ignore]
        generate_and_apply_logprobs_mask,
    )

    start = perf_counter()
    made = build_static_index(drawn(to.members), V, 2)
    to.put(_STATIC, "build", perf_counter() - start, "s")
    to.put(_STATIC, "bytes a member on a device", sum(np.asarray(each).nbytes for each in made) / to.members, "B")
    packed, indptr, limits, start_mask, dense_mask, dense_states = (
        torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in made
    )
    minus, beams = torch.tensor(-float("inf")), 70
    device = torch.device("cpu")

    def first() -> Any:
        return torch.where(start_mask, logprobs, minus).topk(beams, -1)

    def second() -> Any:
        masked = torch.where(dense_mask[rows[:, 0]], logprobs, minus)
        best = masked.topk(beams, -1)
        return best, dense_states[rows[:, 0].unsqueeze(1), best.indices]

    steps: list[Callable[[], Any]] = [first, second]
    states = dense_states[rows[:, 0], rows[:, 1]]
    for depth in range(2, LENGTH):
        here, limit = states, int(limits[depth])

        def sparse(here: Any = here, limit: int = limit) -> Any:
            return generate_and_apply_logprobs_mask(logprobs, here, packed, indptr, limit, V, device)

        steps.append(sparse)
        _, tokens, nexts = sparse()
        states = nexts.gather(1, (tokens == rows[:, depth : depth + 1]).int().argmax(1, keepdim=True))[:, 0]
    return steps


def _marisa(to: Collector, ids: Any) -> None:
    try:
        import marisa_trie
    except ImportError:
        return
    keys = ids.astype(">u2")
    gc.collect()
    start = perf_counter()
    made = marisa_trie.Trie(bytes(key).decode("utf-16-be", "surrogatepass") for key in keys)
    to.put(_MARISA, "build", perf_counter() - start, "s")
    to.put(_MARISA, "bytes a member", len(made.tobytes()) / to.members, "B")
