"""The ways to a decision: step by step, by scoring the whole set, or by a search for the best of it."""

from __future__ import annotations

import time
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.decisions.answers import Answers
from token_trie.decisions.decision import Candidate, Decision, Stats
from token_trie.decisions.native_scores import End, Scores, Search, score_leaves, search_leaves
from token_trie.errors import CancelledError, InternalError
from token_trie.llama.run_span import run_span
from token_trie.llama.stream import StreamHandle

T = TypeVar("T")
Floats = npt.NDArray[np.float64]


def walk(
    handle: StreamHandle,
    answers: Answers[T],
    prompt: list[int],
    mode: Literal["greedy", "sampled"],
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> Decision[T]:
    """Take the best or a drawn token at each branch point."""
    handle.set_token_trie(answers.trie, mode)
    clock = Clock(handle, prompt)
    before = handle._state()  # as C has it: `state` costs as much as a branch point
    tokens = run_span(handle, temperature, top_p)
    after = handle._state()
    if after.leaf < 0:
        if handle.state.stop == "cancelled":
            raise CancelledError("the decision was cancelled")
        raise InternalError(f"the decision ended as {handle.state} without an answer")
    stats = clock.stats(
        n_branches=after.n_branches - before.n_branches,
        n_forced=after.n_forced - before.n_forced,
        n_passes=after.n_passes - before.n_passes,
    )
    return walked(answers, after.leaf, after.logprob, tuple(tokens), stats)


def walked(answers: Answers[T], leaf: int, logprob: float, tokens: tuple[int, ...], stats: Stats) -> Decision[T]:
    """Return the decision that a walk came to."""
    return _decision(answers, leaf, None, stats, branch_logprob=logprob, tokens=tokens)


def score_whole(
    handle: StreamHandle,
    answers: Answers[T],
    prompt: list[int],
    end: End,
    *,
    n_best: int = 1,
    prior: Floats | None = None,
    drawn: bool = False,
    seed: int | None = None,
) -> Decision[T]:
    """Score the whole set; with a prior, less this of each leaf."""
    handle._hold(answers.trie)
    clock = Clock(handle, prompt)
    scores = score_leaves(handle, answers.trie, end=end)
    stats = clock.stats(n_passes=scores.n_passes, n_evaluated=scores.n_evaluated)
    return weigh(answers, scores, stats, n_best=n_best, prior=prior, drawn=drawn, seed=seed)


def weigh(
    answers: Answers[T],
    scores: Scores,
    stats: Stats,
    *,
    n_best: int = 1,
    prior: Floats | None = None,
    drawn: bool = False,
    seed: int | None = None,
) -> Decision[T]:
    """Decide by the scores of the whole set."""
    ranks = scores.leaves if prior is None else scores.leaves - prior
    best = float(ranks.max())
    if not np.isfinite(best):
        raise InternalError("the model gives no answer of the set a finite score")
    weights = np.exp(ranks - best)
    p = weights / weights.sum()
    # By tokens, so that the order in which the choices were given changes nothing.
    nodes = answers.trie._handle.leaf_nodes()
    order = np.lexsort((nodes, -ranks))
    by_tokens = np.argsort(nodes)
    leaf = int(np.random.default_rng(seed).choice(by_tokens, p=p[by_tokens]) if drawn else order[0])
    first = [] if drawn else [(int(i), float(scores.leaves[i])) for i in order[:n_best]]
    return _decision(
        answers,
        leaf,
        float(scores.leaves[leaf]),
        stats,
        candidates=_candidates(answers, first),
        lead=None if drawn else float(ranks[leaf] - (ranks[order[1]] if len(order) > 1 else -np.inf)),
        probabilities=answers.aligned(p),
        # Answers that do not exclude each other may add up to more.
        coverage=min(1.0, float(np.exp(scores.leaves).sum())),
    )


def search(
    handle: StreamHandle,
    answers: Answers[T],
    prompt: list[int],
    end: End,
    *,
    n_best: int = 1,
    beam_width: int = 0,
    max_nodes: int = 0,
    timeout_ms: int = 0,
) -> Decision[T]:
    """Find the best answers without scoring the whole set."""
    handle._hold(answers.trie)
    clock = Clock(handle, prompt)
    bounds = {"beam_width": beam_width, "max_nodes": max_nodes, "timeout_ms": timeout_ms}
    found = search_leaves(handle, answers.trie, n_best, end=end, **bounds)
    return best_of(answers, found, clock.stats(n_passes=found.n_passes, n_evaluated=found.n_evaluated))


def best_of(answers: Answers[T], found: Search, stats: Stats) -> Decision[T]:
    """Decide by what a search has found."""
    if len(found.leaves) == 0:
        raise InternalError("the model gives no answer of the set a finite score")
    others = [*found.logprobs[1:2].tolist(), found.rival]
    best = list(zip(found.leaves.tolist(), found.logprobs.tolist(), strict=True))
    return _decision(
        answers,
        *best[0],
        stats,
        candidates=_candidates(answers, best),
        gap=found.gap,
        lead=best[0][1] - max(others),
        _mass_max=found.mass_max,
    )


def _decision(
    answers: Answers[T],
    leaf: int,
    logprob: float | None,
    stats: Stats,
    *,
    tokens: tuple[int, ...] | None = None,
    **more: Any,
) -> Decision[T]:
    index = answers.index(leaf)
    return Decision(
        value=answers.value(index),
        text=answers.text(index),
        index=index,
        tokens=answers.trie[leaf].tokens if tokens is None else tokens,
        logprob=logprob,
        stats=stats,
        trie=answers.trie,
        _answers=answers,
        **more,
    )


def _candidates(answers: Answers[T], leaves: list[tuple[int, float]]) -> tuple[Candidate[T], ...]:
    places = [(answers.index(leaf), logprob) for leaf, logprob in leaves]
    return tuple(Candidate(answers.value(i), answers.text(i), i, logprob) for i, logprob in places)


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
