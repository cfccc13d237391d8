"""From what was found of the answers to a decision: by steps, by the scores of all, or by a search for the best."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import numpy as np

from token_trie.decisions.bound import BoundChoices, check_finite
from token_trie.decisions.calibration import BoundCalibration
from token_trie.decisions.calibrator import Floats, States
from token_trie.decisions.decision import Candidate, Decision, Stats
from token_trie.llama.query import Answer
from token_trie.llama.stream import Stream

T = TypeVar("T")


def by_steps(choices: BoundChoices[T], answer: Answer, stats: Stats, thought: str | None = None) -> Decision[T]:
    """Decide as the tokens were taken."""
    own: dict[str, Any] = {"branch_logprob": answer.logprob, "tokens": answer.tokens}
    return _decision(choices, answer.leaf, None, stats, thought=thought, **own)


def by_scores(
    choices: BoundChoices[T],
    own: Floats | None,
    stats: Stats,
    thought: str | None = None,
    *,
    n_best: int = 1,
    calibration: BoundCalibration | None = None,
    state: States | None = None,
    drawn: tuple[int | None] | None = None,
) -> Decision[T]:
    """Decide by the scores of all leaves, calibrated or as they are: for the best, or one drawn by a seed.

    Where a calibration takes the prompt's hidden state alone there are no scores.
    """
    ranks = own if calibration is None else calibration.log_weights(own, state)
    assert ranks is not None  # as there is one of the two
    ranks = choices.of_left(ranks, -np.inf)
    check_finite(ranks)
    weights = np.exp(ranks - ranks.max())
    p = weights / weights.sum()
    if drawn is None:
        order = choices.ranked(ranks)
        leaf = int(order[0])
        first = [(int(i), float(np.log(p[i]) if own is None else own[i])) for i in order[:n_best]]
        lead = float(ranks[leaf] - (ranks[order[1]] if len(order) > 1 else -np.inf))
    else:
        by_tokens = np.argsort(choices.trie.core.leaf_nodes())
        leaf = int(np.random.default_rng(*drawn).choice(by_tokens, p=p[by_tokens]))
        first, lead = [], None
    return _decision(
        choices,
        leaf,
        None if own is None else float(own[leaf]),
        stats,
        thought=thought,
        candidates=_candidates(choices, first),
        lead=lead,
        probabilities=choices.aligned(p),
        # Answers that do not exclude each other may add up to more.
        mass=None if own is None else min(1.0, float(np.exp(own).sum())),
        calibration="raw" if calibration is None else calibration.kind,
    )


def by_search(
    choices: BoundChoices[T],
    found: Answer,
    stats: Stats,
    thought: str | None = None,
    *,
    calibration: BoundCalibration | None = None,
) -> Decision[T]:
    """Decide for the best that was found, by what a calibration adds to each."""
    check_finite(found.logprobs)
    ranks = found.logprobs if calibration is None else found.logprobs + calibration.weights_of(found.leaves)
    figures = found.figures
    others = [*ranks[1:2].tolist(), figures.rival_max]
    best = list(zip(found.leaves.tolist(), found.logprobs.tolist(), strict=True))
    return _decision(
        choices,
        *best[0],
        stats,
        thought=thought,
        candidates=_candidates(choices, best),
        gap=figures.gap,
        lead=float(ranks[0]) - max(others),
        calibration="raw" if calibration is None else calibration.kind,
        _mass_max=figures.mass_max,
    )


def _decision(
    choices: BoundChoices[T],
    leaf: int,
    logprob: float | None,
    stats: Stats,
    *,
    tokens: tuple[int, ...] | None = None,
    **more: Any,
) -> Decision[T]:
    index = choices.index(leaf)
    return Decision(
        value=choices.value(index),
        text=choices.text(index),
        index=index,
        tokens=choices.trie[leaf].tokens if tokens is None else tokens,
        logprob=logprob,
        stats=stats,
        _choices=choices,
        **more,
    )


def _candidates(choices: BoundChoices[T], leaves: list[tuple[int, float]]) -> tuple[Candidate[T], ...]:
    found = [(choices.index(leaf), logprob) for leaf, logprob in leaves]
    return tuple(Candidate(choices.value(i), choices.text(i), i, logprob) for i, logprob in found)


class Clock:
    """Evaluates the prompt and measures it apart from what follows."""

    def __init__(self, stream: Stream, prompt: list[int]) -> None:
        self._n_prompt = len(prompt)
        self._started = time.perf_counter()
        stream.prefill(prompt)
        self._evaluated = time.perf_counter()

    def stats(self, *answers: Answer) -> Stats:
        """Return what answers cost, and the time since the prompt was evaluated."""
        ended = time.perf_counter()
        costs = [answer.figures for answer in answers]
        return Stats(
            n_prompt=self._n_prompt,
            n_branches=sum(cost.n_branches for cost in costs),
            n_forced=sum(cost.n_forced for cost in costs),
            n_passes=sum(cost.n_passes for cost in costs),
            prompt_ms=(self._evaluated - self._started) * 1e3,
            decide_ms=(ended - self._evaluated) * 1e3,
            n_evaluated=sum(len(a.tokens) == 0 and a.figures.n_evaluated for a in answers),
        )
