"""How probable texts are behind others, and whether a model would have written them: many at once."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import tee
from typing import NamedTuple

import numpy as np

from token_trie.decisions.many import choose_many
from token_trie.native.core import Llama
from token_trie.sets.trie import TokenTrie

Tokens = tuple[int, ...]


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

    def alive(self) -> list[Tokens]:
        n = len(self.walked)
        return [tokens for tokens in self.asked if len(tokens) > n and tokens[:n] == self.walked]


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
    waiting: deque[tuple[_Question, bool]] = deque()
    for at in sorted(questions):  # so that those which begin alike are neighbours
        waiting.append((questions[at], True))
        if greedy:
            waiting.append((questions[at], False))
    while waiting:
        under_way: dict[int, tuple[_Question, bool]] = {}
        prompts, sets = tee(_take(waiting, under_way))
        for place, decision in choose_many(
            llm,
            ((*question.context, *(() if of_set else question.walked)) for question, of_set in prompts),
            sets=(_trie(question) if of_set else vocabulary for question, of_set in sets),
            end="any",
            n_best=max(len(question.asked) for question in questions.values()),
            as_ready=True,
            n_ctx=n_ctx,
        ):
            question, of_set = under_way.pop(place)
            if of_set:
                asked = list(question.asked.values())
                for found in decision.candidates:
                    logprobs[asked[found.index]] = found.logprob
                advance(sum(map(len, asked)))
                continue
            question.walked += decision.tokens
            is_greedy[question.asked.get(question.walked, [])] = True
            if question.alive():
                waiting.appendleft((question, False))
    return [Continuation(float(p), bool(yes)) for p, yes in zip(logprobs, is_greedy, strict=True)]


def _take(
    waiting: deque[tuple[_Question, bool]], under_way: dict[int, tuple[_Question, bool]]
) -> Iterator[tuple[_Question, bool]]:
    place = 0
    while waiting:
        under_way[place] = waiting.popleft()
        yield under_way[place]
        place += 1


def _trie(question: _Question) -> TokenTrie:
    return TokenTrie.from_sequences({str(i): tokens for i, tokens in enumerate(question.asked)})


def _vocabulary(llm: Llama) -> TokenTrie:
    n = llm.n_vocab()
    return TokenTrie.from_arrays(np.arange(n, dtype=np.int32), np.arange(n + 1))
