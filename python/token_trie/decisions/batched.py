"""What is asked of a batch about a prompt, and what its answer says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from token_trie.decisions.answers import Answers, ask
from token_trie.decisions.decision import Decision, Stats
from token_trie.decisions.how import ANY_SEED, How, check_decidable, warn_where_unfit, warn_where_unproved
from token_trie.decisions.native_scores import ENDS, Scores, Search
from token_trie.decisions.think import any_set, marker_tokens
from token_trie.decisions.ways import best_of, walked, weigh
from token_trie.errors import ContextError, TokenTrieError
from token_trie.llama.batch import Answer, Batch
from token_trie.llama.company import Company
from token_trie.llama.program import behind
from token_trie.native.core import Llama, vocab_of
from token_trie.native.ffi import lib
from token_trie.native.lease import lease
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt

R = TypeVar("R")

_RESPELLED = 16
"""Tokens that the beginning of one may take, where a marker stands inside it."""


class Question(ABC, Generic[R]):
    """A prompt, ready for a batch."""

    @property
    @abstractmethod
    def n_members(self) -> int:
        """Those that its answer may have at most."""

    @property
    @abstractmethod
    def n_tokens(self) -> int:
        """Likewise."""

    @abstractmethod
    def submit(self, batch: Batch) -> int:
        """Put it into a batch; return its ticket."""

    @abstractmethod
    def read(self, answer: Answer) -> R | Question[R]:
        """Return what its answer says, or what is to be asked behind that."""


def read_choice(llm: Llama, prompt: Prompt, choices: ChoicesLike, how: How, room: int) -> Question[Decision[Any]]:
    """Read a prompt and its set, for so many tokens; the caller holds a lease.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        As of `ask`.
    """
    tokens, answers = ask(llm, prompt, choices, room=room, **_spelled(how))
    check_decidable(answers, how)
    return question_of(llm, tokens, choices, answers, how)


def question_of(
    llm: Llama, tokens: list[int], choices: ChoicesLike, answers: Answers[Any], how: How
) -> Question[Decision[Any]]:
    """Return what is asked first about a prompt that was read; the caller holds a lease."""
    if how.think is None:
        return _Choice(tokens, answers, how)
    return _Thought(llm, tokens, choices, how, marker_tokens(how.think, vocab_of(llm)))


def decide_in(company: Company, question: Question[Decision[Any]]) -> Decision[Any]:
    """Decide together with other threads."""
    while True:
        answer = company.answer(question.submit, question.n_members, question.n_tokens)
        try:
            told = question.read(answer)
        except TokenTrieError:
            company.require_open()
            raise
        if not isinstance(told, Question):
            return told
        question = told


@dataclass(frozen=True)
class _Choice(Question[Decision[Any]]):
    tokens: list[int]
    answers: Answers[Any]
    how: How
    thought: str | None = None

    @property
    def n_members(self) -> int:
        return len(self.answers.trie) if self.how.is_whole else min(self.how.n_best, len(self.answers.trie))

    @property
    def n_tokens(self) -> int:
        return self.answers.trie.max_tokens

    def submit(self, batch: Batch) -> int:
        how = self.how
        modes = {"greedy": lib.TOKEN_TRIE_BATCH_GREEDY, "sampled": lib.TOKEN_TRIE_BATCH_SAMPLED}
        searched = lib.TOKEN_TRIE_BATCH_SCORES if how.is_whole else lib.TOKEN_TRIE_BATCH_BEST
        return batch.submit(
            self.answers.trie,
            self.tokens,
            mode=modes.get(how.mode, searched),
            seed=_seed(how),
            temperature=how.temperature,
            top_p=how.top_p,
            leaf_end=ENDS[how.end],
            n_best=self.n_members,
            **how.bounds,
        )

    def read(self, answer: Answer) -> Decision[Any]:
        return replace(self._decision(answer), thought=self.thought)

    def _decision(self, answer: Answer) -> Decision[Any]:
        how, answers, stats = self.how, self.answers, self._stats(answer)
        if how.mode in ("greedy", "sampled"):
            return walked(answers, answer.leaf, answer.logprob, answer.tokens, stats)
        cost = stats.n_evaluated, stats.n_passes, 0
        if not how.is_whole:
            bounds = answer.figures.gap, answer.figures.rival_max, answer.figures.mass_max
            decision = best_of(answers, Search(answer.leaves, answer.logprobs, *bounds, *cost), stats)
            if how.mode == "exact":
                warn_where_unproved(decision)
            return decision
        scores = Scores(answer.logprobs, np.empty(0), *cost)
        decision = weigh(answers, scores, stats, n_best=how.n_best, drawn=how.mode == "aligned", seed=how.seed)
        warn_where_unfit(decision)
        return decision

    def _stats(self, answer: Answer) -> Stats:
        figures = answer.figures
        return Stats(
            n_prompt=len(self.tokens),
            n_branches=figures.n_branches,
            n_forced=figures.n_forced,
            n_passes=figures.n_passes,
            prompt_ms=figures.prompt_ns / 1e6,
            decide_ms=figures.decide_ns / 1e6,
            n_evaluated=figures.n_evaluated,
        )


@dataclass(frozen=True)
class _Thought(Question[Decision[Any]]):
    """Up to the marker; the choice is asked behind it."""

    llm: Llama
    tokens: list[int]
    choices: ChoicesLike
    how: How
    marker: list[int]

    n_members = 0

    @property
    def n_tokens(self) -> int:
        assert self.how.think is not None
        return self.how.think.max_tokens + len(self.marker) + _RESPELLED

    def submit(self, batch: Batch) -> int:
        think = self.how.think
        assert think is not None
        return batch.submit(
            any_set(self.marker),
            self.tokens,
            mode=lib.TOKEN_TRIE_BATCH_TEXT,
            seed=_seed(self.how),
            temperature=float(think.temperature),
            top_p=float(think.top_p),
            # Where the context has less room, a thought that ends in time has as much as alone.
            max_tokens=min(self.n_tokens, max(batch.room - len(self.tokens), 0)),
            start_after=self.marker,
            max_before=think.max_tokens,
            stop_strings=[think.marker] if isinstance(think.marker, str) else [],
        )

    def read(self, answer: Answer) -> Question[Decision[Any]]:
        assert self.how.think is not None
        if answer.figures.stop == lib.TOKEN_TRIE_STOP_MAX_TOKENS:
            raise ContextError("the context is full before the thought has ended")
        marker = self.how.think.marker
        thought, tokens = list(answer.tokens), [*self.tokens, *answer.tokens]
        with lease(self.llm):
            vocab = vocab_of(self.llm)
            if answer.figures.stop == lib.TOKEN_TRIE_STOP_STRING:
                n_kept, more = behind(vocab, tokens, str(marker).encode())
                tokens = tokens[:n_kept] + more
            else:
                thought = thought[: -len(self.marker)]
            asked, answers = ask(self.llm, tokens, self.choices, **_spelled(self.how))
            text = vocab.detokenize(thought).decode(errors="replace")
        return _Choice(asked, answers, self.how, text)


def _spelled(how: How) -> dict[str, Any]:
    return {"leading_space": how.leading_space, "tokenization": how.tokenization, "heal": how.heal}


def _seed(how: How) -> int:
    return ANY_SEED if how.seed is None else int(how.seed)
