"""A decision as a question to a batch, and what its answer says."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from token_trie.decisions.answers import Answers
from token_trie.decisions.decision import Decision, Stats
from token_trie.decisions.how import ANY_SEED, How, warn_where_unfit
from token_trie.decisions.native_scores import ENDS, Scores, Search
from token_trie.decisions.ways import best_of, walked, weigh
from token_trie.llama.batch import Answer, Batch
from token_trie.llama.company import Company
from token_trie.native.ffi import lib


class Asked(NamedTuple):
    """A prompt, ready for a batch."""

    tokens: list[int]
    answers: Answers[Any]
    how: Any
    """Whatever the asker needs to know of it again: of a choice, a `How`."""


def decide_in(company: Company, asked: Asked) -> Decision[Any]:
    """Decide together with other threads."""
    n_tokens = asked.answers.trie.max_tokens
    return read_choice(
        asked, company.answer(lambda batch: submit_choice(batch, asked), n_members_of(asked), max(n_tokens, 1))
    )


def submit_choice(batch: Batch, asked: Asked) -> int:
    """Put it into a batch; return its ticket."""
    how: How = asked.how
    modes = {"greedy": lib.TOKEN_TRIE_BATCH_GREEDY, "sampled": lib.TOKEN_TRIE_BATCH_SAMPLED}
    searched = lib.TOKEN_TRIE_BATCH_SCORES if how.is_whole else lib.TOKEN_TRIE_BATCH_BEST
    return batch.submit(
        asked.answers.trie,
        asked.tokens,
        mode=modes.get(how.mode, searched),
        seed=ANY_SEED if how.seed is None else int(how.seed),
        temperature=how.temperature,
        top_p=how.top_p,
        leaf_end=ENDS[how.end],
        n_best=min(how.n_best, len(asked.answers.trie)),
        beam_width=how.beam_width if how.mode == "beam" else 0,
        max_nodes=how.max_nodes or 0 if how.mode == "exact" else 0,
    )


def n_members_of(asked: Asked) -> int:
    """Return how many its answer may have at most."""
    return len(asked.answers.trie) if asked.how.is_whole else min(asked.how.n_best, len(asked.answers.trie))


def read_choice(asked: Asked, answer: Answer) -> Decision[Any]:
    """Return the decision that its answer is."""
    how: How = asked.how
    answers = asked.answers
    stats = _stats(asked, answer)
    if how.mode in ("greedy", "sampled"):
        return walked(answers, answer.leaf, answer.logprob, answer.tokens, stats)
    cost = stats.n_evaluated, stats.n_passes, 0
    if not how.is_whole:
        figures = answer.figures
        return best_of(answers, Search(answer.leaves, answer.logprobs, figures.gap, figures.rival_max, *cost), stats)
    scores = Scores(answer.logprobs, np.empty(0), *cost)
    decision = weigh(answers, scores, stats, n_best=how.n_best, drawn=how.mode == "aligned", seed=how.seed)
    warn_where_unfit(decision)
    return decision


def _stats(asked: Asked, answer: Answer) -> Stats:
    figures = answer.figures
    return Stats(
        n_prompt=len(asked.tokens),
        n_branches=figures.n_branches,
        n_forced=figures.n_forced,
        n_passes=figures.n_passes,
        prompt_ms=figures.prompt_ns / 1e6,
        decide_ms=figures.decide_ns / 1e6,
        n_evaluated=figures.n_evaluated,
    )
