"""How probable texts are behind others, and whether a model would have written them: many at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from token_trie.decisions.choose import choose
from token_trie.decisions.native_scores import ENDS
from token_trie.llama.batch import Batch, can_share
from token_trie.native.core import Llama
from token_trie.native.ffi import lib
from token_trie.sets.trie import TokenTrie

Tokens = tuple[int, ...]

# Tokens of contexts under way at a time: what fills two passes, so that what is asked behind one soon finds it there.
_AHEAD = 512


class Continuation(NamedTuple):
    """What is known of one behind its context."""

    logprob: float
    """Natural logarithm of the probability of its tokens."""
    is_greedy: bool
    """Whether each of them is the most probable one of the vocabulary."""


@dataclass
class _Question:
    """A context with all that is asked about behind it, and how far the model's own way goes along with some of it."""

    context: Tokens
    asked: dict[Tokens, list[int]] = field(default_factory=lambda: defaultdict(list))
    walked: Tokens = ()

    def trie(self) -> TokenTrie:
        return TokenTrie.from_sequences({str(i): tokens for i, tokens in enumerate(self.asked)})

    def goes_on(self) -> bool:
        """Whether that way may be a longer continuation."""
        n = len(self.walked)
        return any(len(tokens) > n and tokens[:n] == self.walked for tokens in self.asked)


def score_continuations(
    llm: Llama,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    greedy: bool = True,
    n_ctx: int | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> list[Continuation]:
    """Score continuations, each behind its context.

    Those of one context are a tree; contexts are in one batch, and what they begin with alike is evaluated once. To
    tell whether one is greedy, the vocabulary itself is a set: its best member behind the context, and behind each
    token by which the model's own way goes along with a continuation.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    pairs : sequence of (context, continuation)
        Both are token ids, one at least.
    greedy : bool
        Whether that is wanted; else is_greedy is False.
    n_ctx : int, optional
        As of `choose_many`.
    advance : callable
        Is told how many more are scored.

    Returns
    -------
    list of Continuation
        In the order of the pairs.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        As of `choose_many`.
    """
    questions: dict[Tokens, _Question] = {}
    for i, (context, continuation) in enumerate(pairs):
        at = tuple(context)
        questions.setdefault(at, _Question(at)).asked[tuple(continuation)].append(i)
    vocabulary = _vocabulary(llm)
    logprobs = np.full(len(pairs), -np.inf)
    is_greedy = np.zeros(len(pairs), bool)
    waiting = deque(questions[at] for at in sorted(questions))  # so that those which begin alike are neighbours
    if not waiting:
        return []
    asker = _asker(llm, n_ctx)
    try:
        while waiting or asker.under_way:
            while waiting and asker.n_tokens < _AHEAD:
                asker.ask(waiting[0], waiting[0].trie(), of_set=True)
                if greedy:
                    asker.ask(waiting[0], vocabulary, of_set=False)
                waiting.popleft()
            question, of_set, found = asker.next()
            if of_set:
                asked = list(question.asked.values())
                for leaf, logprob in found:
                    logprobs[asked[leaf]] = logprob
                advance(sum(map(len, asked)))
                continue
            question.walked += (found[0][0],)
            is_greedy[question.asked.get(question.walked, [])] = True
            if question.goes_on():
                asker.ask(question, vocabulary, of_set=False)
    finally:
        asker.close()
    return [Continuation(float(p), bool(yes)) for p, yes in zip(logprobs, is_greedy, strict=True)]


Found = list[tuple[int, float]]
"""Leaves and their scores, best first."""


class _Asker(ABC):
    """Which members of a set are the most probable, asked behind questions' contexts and their own ways from there."""

    def __init__(self) -> None:
        self.under_way: dict[int, tuple[_Question, bool]] = {}  # by ticket

    @property
    def n_tokens(self) -> int:
        """Those of contexts under way."""
        return sum(len(question.context) for question, of_set in self.under_way.values() if of_set)

    def ask(self, question: _Question, trie: TokenTrie, of_set: bool) -> None:
        """Ask for all of a question's own set, or for the best of the vocabulary."""
        tokens = [*question.context, *(() if of_set else question.walked)]
        self.under_way[self._submit(tokens, trie, len(trie) if of_set else 1)] = question, of_set

    def next(self) -> tuple[_Question, bool, Found]:
        """Wait for an answer."""
        ticket, found = self._next()
        return *self.under_way.pop(ticket), found

    @abstractmethod
    def _submit(self, tokens: list[int], trie: TokenTrie, n_best: int) -> int: ...

    @abstractmethod
    def _next(self) -> tuple[int, Found]: ...

    def close(self) -> None:
        """End what is under way."""
        self.under_way.clear()


class _Batched(_Asker):
    def __init__(self, llm: Llama, n_ctx: int | None) -> None:
        super().__init__()
        self._batch = Batch(llm, n_ctx=n_ctx)
        self._most = 1  # of an answer's members

    def _submit(self, tokens: list[int], trie: TokenTrie, n_best: int) -> int:
        self._most = max(self._most, n_best)
        best = lib.TOKEN_TRIE_BATCH_BEST
        return self._batch.submit(trie, tokens, mode=best, leaf_end=ENDS["any"], n_best=n_best)

    def _next(self) -> tuple[int, Found]:
        answer = self._batch.wait(self._most, 0)
        return answer.ticket, list(zip(answer.leaves.tolist(), answer.logprobs.tolist(), strict=True))

    def close(self) -> None:
        self._batch.close()


class _Alone(_Asker):
    """For models whose sequences cannot share cells."""

    def __init__(self, llm: Llama) -> None:
        super().__init__()
        self._llm = llm
        self._done: deque[tuple[int, Found]] = deque()
        self._n = 0

    def _submit(self, tokens: list[int], trie: TokenTrie, n_best: int) -> int:
        decision = choose(self._llm, tokens, trie, end="any", n_best=n_best)
        self._n += 1
        self._done.append((self._n, [(one.index, one.logprob) for one in decision.candidates]))
        return self._n

    def _next(self) -> tuple[int, Found]:
        return self._done.popleft()


def _asker(llm: Llama, n_ctx: int | None) -> _Asker:
    return _Batched(llm, n_ctx) if can_share(llm) else _Alone(llm)


def _vocabulary(llm: Llama) -> TokenTrie:
    n = llm.n_vocab()
    return TokenTrie.from_arrays(np.arange(n, dtype=np.int32), np.arange(n + 1))
