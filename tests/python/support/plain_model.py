"""Answers checked against the model read plainly: from an empty memory, by llama-cpp-python, with numpy's softmax."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from oracle import Member, allowed, end_of_generation
from token_trie.llama.drivers import Run
from token_trie.llama.query import Answer, Ask, Query, SpanOptions, follow_set, read_span
from token_trie.native.core import _core, vocab_of
from token_trie.native.ffi import ffi, lib
from token_trie.plan import Model, Plan, run
from token_trie.sets.trie import TokenTrie

NEAR = 1e-4
Rows = np.ndarray


@contextmanager
def watching() -> Iterator[list[tuple[Ask, Answer]]]:
    """Note each answer that a plan is given, whoever runs it."""
    seen: list[tuple[Ask, Answer]] = []
    give = Run.give

    def noting(run: Run[Any], steps: Sequence[Any], i: int, answer: Any) -> None:
        if isinstance(answer, Answer) and isinstance(steps[i], Ask) and not any(answer is one for _, one in seen):
            seen.append((steps[i], answer))
        give(run, steps, i, answer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "give", noting)
        yield seen


class PlainModel:
    """A model of its own, which reads every sequence from its first token on."""

    def __init__(self, path: Path, n_ctx: int) -> None:
        self.llm = opened(path, n_ctx, logits_all=True)
        self.after = functools.lru_cache(maxsize=4096)(self._after)
        self._vocab = vocab_of(self.llm)
        self._ends = end_of_generation(self.llm)

    def close(self) -> None:
        self.llm.close()

    def _after(self, prompt: Member, tokens: Member) -> Rows:
        """Return log-probabilities of every token: after a prompt, and after each token that follows it."""
        self.llm.reset()
        self.llm.eval([*prompt, *tokens])
        rows = self.llm.scores[len(prompt) - 1 : len(prompt) + len(tokens)].astype(np.float64)
        return np.asarray(rows - np.logaddexp.reduce(rows, axis=1, keepdims=True))

    def check(self, step: Ask, answer: Answer) -> None:
        """Check what an answer says of the model."""
        prompt, query = tuple(step.tokens), step.query
        if query.with_state:
            assert answer.state == pytest.approx(self.ask(prompt, query).state, abs=NEAR)
        if query.mode == "text":
            self._check_text(prompt, query, answer)
        elif query.is_decoded:
            self._check_path(prompt, query, answer)
        else:
            self._check_scores(prompt, query, answer)

    def _check_scores(self, prompt: Member, query: Query, answer: Answer) -> None:
        members = members_of(query)
        scored = [self._score(prompt, member, set(members), query) for member in members]
        scores, errors = np.array(scored).T
        of = slice(None) if query.mode == "scores" else answer.leaves
        assert (np.abs(answer.logprobs - scores[of]) < errors[of]).all()
        if query.mode == "best" and answer.figures.gap == 0 and query.beam_width == 0:
            ranks = scores + (0 if query.leaf_weights is None else query.leaf_weights)
            best = np.sort(ranks)[::-1][: query.n_best]
            assert (np.abs(ranks[of] - best) < errors.max() + NEAR).all()

    def _score(self, prompt: Member, member: Member, members: set[Member], query: Query) -> tuple[float, float]:
        """Return a score, and the error that is to be expected."""
        rows, left = self.after(prompt, member), 1.0
        if query.branches:
            return sum(self._branch_shares(rows, member, members)), NEAR
        score = sum(float(row[token]) for row, token in zip(rows, member, strict=False))
        if query.leaf_end == "longest" and (longer := allowed(members, member, set())):
            left = max(1 - float(np.exp(rows[-1][list(longer)]).sum()), 1e-12)  # near 0, an error counts for more
            score += math.log(left)
        if query.leaf_end == "follow":
            score += float(np.logaddexp.reduce(rows[-1][list(self._ends)]))
        return score, NEAR / left

    def _branch_shares(self, rows: Rows, member: Member, members: set[Member]) -> Iterator[float]:
        """Yield the log-shares of a member's tokens, and of its end, among those that are allowed."""
        for i, row in enumerate(rows):
            own = {member[i]} if i < len(member) else self._ends
            others = list(allowed(members, member[:i], self._ends))
            if len(others) > len(own) or (i < len(member) and len(others) > 1):
                yield float(np.logaddexp.reduce(row[list(own)]) - np.logaddexp.reduce(row[others]))

    def _check_path(self, prompt: Member, query: Query, answer: Answer) -> None:
        """Check each step of what was written by a set: the best one, and its share among those that were allowed."""
        assert query.trie is not None
        span = read_span(self._vocab, None, SpanOptions()) if query.span is None else query.span
        ends = list(ffi.unpack(span.end_tokens, span.n_end_tokens)) if span.n_end_tokens else list(self._ends)
        cursor = _core.Cursor(query.trie.core, follow_set(query.trie.core, self._vocab, span))
        rows, logprob = self.after(prompt, answer.tokens), 0.0
        for row, token in zip(rows, answer.tokens, strict=False):
            logprob += self._share(row, cursor, [token], query)[0]
            cursor.accept(token)
        if query.span is None or answer.figures.ending != lib.TOKEN_TRIE_ENDING_NONE:  # nothing was cut off
            legal, logprobs = cursor.allowed(), [logprob]
            if legal is not None and not np.isin(legal, ends).all():
                logprobs = [logprob + share for share in self._share(rows[-1], cursor, ends, query)]
            assert any(answer.logprob == pytest.approx(one, abs=NEAR) for one in logprobs)
        if query.sampling.seed is not None:
            assert self.ask(prompt, query).tokens == answer.tokens

    @staticmethod
    def _share(row: Rows, cursor: _core.Cursor, tokens: list[int], query: Query) -> list[float]:
        """Return the log-shares of tokens, of which one was taken, among those that were allowed."""
        legal = cursor.allowed()
        assert legal is not None
        taken = [token for token in tokens if token in legal]
        if query.mode == "greedy":
            assert row[taken].max() > row[legal].max() - 2 * NEAR
        return [float(row[token] - np.logaddexp.reduce(row[legal])) for token in taken]

    def _check_text(self, prompt: Member, query: Query, answer: Answer) -> None:
        """Check a text: that it is written again, and where nothing constrains it, that each token is the best one."""
        draws = query.sampling.effective_temperature(draws=False) > 0
        if not (draws and query.sampling.seed is None):
            has_ended = answer.figures.stop == lib.TOKEN_TRIE_STOP_END
            n = query.max_tokens if has_ended else len(answer.tokens)
            assert self.ask(prompt, replace(query, until=None, max_tokens=n)).tokens == answer.tokens
        if not draws and query.gbnf is None and query.trie is None:
            self.check_best(prompt, answer.tokens)

    def check_best(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Check that each token is the best one after those before it."""
        for row, token in zip(self.after(tuple(prompt), tuple(tokens)), tokens, strict=False):
            assert row[token] > row.max() - 2 * NEAR

    def check_walk(self, prompt: Sequence[int], trie: TokenTrie, names: list[str]) -> None:
        """Check that one member was written, by the best token among those that were allowed at each step."""
        (name,) = names
        members = {tuple(trie[i].tokens) for i in range(len(trie))}
        (member,) = (tuple(trie[i].tokens) for i in range(len(trie)) if trie[i].name == name)
        for i, row in enumerate(self.after(tuple(prompt), member)):
            legal = list(allowed(members, member[:i], self._ends))
            taken = [member[i]] if i < len(member) else list(self._ends)
            assert row[taken].max() > row[legal].max() - 2 * NEAR

    def ask(self, prompt: Member, query: Query) -> Answer:
        """Ask a query on an empty sequence."""

        def plan(model: Model, tokens: list[int]) -> Plan[Answer]:
            (answer,) = yield [Ask(tokens, query)]
            return answer

        return run(self.llm, list(prompt), plan, reproducible=True)


def opened(path: Path, n_ctx: int, **more: Any) -> Any:
    """Load a model with its cache in F32, so that results hardly depend on the batch."""
    return llama_cpp.Llama(
        str(path), n_ctx=n_ctx, n_threads=1, n_threads_batch=1, type_k=0, type_v=0, verbose=False, **more
    )


def members_of(query: Query) -> list[Member]:
    assert query.trie is not None
    return [tuple(query.trie[i].tokens) for i in range(len(query.trie))]
