"""The ways to a decision: step by step, by scoring the whole set, or by a search for the best of it."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np
import numpy.typing as npt

from token_trie.decisions.decision import Candidate, Decision, Stats
from token_trie.decisions.native_scores import End, Scores, score_leaves, search_leaves
from token_trie.errors import InternalError
from token_trie.llama.stream import StreamHandle
from token_trie.sets.trie import TokenTrie


def walk(
    handle: StreamHandle,
    trie: TokenTrie,
    prompt: list[int],
    mode: Literal["greedy", "sampled"],
    temperature: float,
    top_p: float,
) -> Decision:
    """Take the best or a drawn token at each branch point."""
    handle.set_token_trie(trie, mode)
    clock = Clock(handle, prompt)
    before = handle._state()  # as C has it: `state` costs as much as a branch point
    steps = list(handle.generate(temperature=temperature, top_p=top_p))
    after = handle._state()
    if after.leaf < 0:
        raise InternalError(f"the decision ended as {handle.state} without an answer")
    stats = clock.stats(
        n_branches=after.n_branches - before.n_branches,
        n_forced=after.n_forced - before.n_forced,
        n_passes=after.n_passes - before.n_passes,
    )
    tokens = tuple(step.token for step in steps)
    return Decision(trie[after.leaf].name, after.leaf, tokens, after.logprob, stats, trie=trie)


def score_whole(
    handle: StreamHandle, trie: TokenTrie, prompt: list[int], end: End, n_best: int, drawn: bool, seed: int | None
) -> Decision:
    """Score the whole set."""
    handle._hold(trie)
    clock = Clock(handle, prompt)
    scores = score_leaves(handle, trie, end=end)
    stats = clock.stats(n_passes=scores.n_passes, n_evaluated=scores.n_evaluated)
    return weigh(trie, scores, stats, n_best, drawn, seed)


def weigh(trie: TokenTrie, scores: Scores, stats: Stats, n_best: int, drawn: bool, seed: int | None) -> Decision:
    """Decide by the scores of the whole set."""
    best = float(scores.leaves.max())
    if best == -np.inf:
        raise InternalError("the model gives no answer of the set a finite score")
    weights = np.exp(scores.leaves - best)
    p = weights / weights.sum()
    # By tokens, so that the order in which the choices were given changes nothing.
    nodes = trie._handle.leaf_nodes()
    ranked = np.lexsort((nodes, -scores.leaves))
    by_tokens = np.argsort(nodes)
    leaf = int(np.random.default_rng(seed).choice(by_tokens, p=p[by_tokens]) if drawn else ranked[0])
    candidates = () if drawn else _candidates(trie, ranked[:n_best], scores.leaves[ranked[:n_best]])
    # Answers that do not exclude each other may add up to more.
    coverage = min(1.0, float(np.exp(scores.leaves).sum()))
    return Decision(
        trie[leaf].name, leaf, trie[leaf].tokens, float(scores.leaves[leaf]), stats, candidates, 0.0, p, coverage, trie
    )


def search(
    handle: StreamHandle,
    trie: TokenTrie,
    prompt: list[int],
    end: End,
    n_best: int,
    beam_width: int,
    max_nodes: int,
) -> Decision:
    """Find the best answers without scoring the whole set."""
    handle._hold(trie)
    clock = Clock(handle, prompt)
    found = search_leaves(handle, trie, n_best, end=end, beam_width=beam_width, max_nodes=max_nodes)
    if len(found.leaves) == 0:
        raise InternalError("the model gives no answer of the set a finite score")
    stats = clock.stats(n_passes=found.n_passes, n_evaluated=found.n_evaluated)
    candidates = _candidates(trie, found.leaves, found.logprobs)
    best = candidates[0]
    return Decision(
        best.value, best.leaf, trie[best.leaf].tokens, best.logprob, stats, candidates, found.gap, trie=trie
    )


def _candidates(
    trie: TokenTrie, leaves: npt.NDArray[np.int64], logprobs: npt.NDArray[np.float64]
) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(trie[leaf].name, leaf, logprob)
        for leaf, logprob in zip(leaves.tolist(), logprobs.tolist(), strict=True)
    )


class Clock:
    """Evaluates the prompt and measures it apart from what follows."""

    def __init__(self, handle: StreamHandle, prompt: list[int]) -> None:
        self._n_prompt = len(prompt)
        self._started = time.perf_counter()
        handle.prefill(prompt)
        self._evaluated = time.perf_counter()

    def stats(self, n_branches: int = 0, n_forced: int = 0, n_passes: int = 0, n_evaluated: int = 0) -> Stats:
        """Return what was counted, and the time since the prompt was evaluated."""
        ended = time.perf_counter()
        return Stats(
            n_prompt=self._n_prompt,
            n_branches=n_branches,
            n_forced=n_forced,
            n_passes=n_passes,
            prompt_ms=(self._evaluated - self._started) * 1e3,
            decide_ms=(ended - self._evaluated) * 1e3,
            n_evaluated=n_evaluated,
        )
