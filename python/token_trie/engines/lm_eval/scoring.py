"""Log-probabilities of continuations and generation of texts, in batches; works without the harness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from token_trie.decisions.choose import choose
from token_trie.llama.batch import Batch, can_share
from token_trie.llama.contexts import StreamOptions
from token_trie.llama.query import Query, Sampling
from token_trie.llama.stream import Stream
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lifetime import lease
from token_trie.sets.trie import TokenTrie

Tokens = tuple[int, ...]

# Tokens of the contexts in flight, for two batches: a second query for a context finds it evaluated.
_IN_FLIGHT = 512


class Continuation(NamedTuple):
    """The score of a continuation after its context."""

    logprob: float
    """Natural logarithm of the probability of its tokens."""
    is_greedy: bool
    """Whether each token is the most probable one of the vocabulary."""


@dataclass
class _Query:
    """A context with its continuations, and its greedy generation as far as a continuation begins with it."""

    context: Tokens
    indices: dict[Tokens, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Indices of the pairs, by continuation."""
    greedy: Tokens = ()

    def trie(self) -> TokenTrie:
        return TokenTrie.from_sequences({str(i): tokens for i, tokens in enumerate(self.indices)})

    def may_continue(self) -> bool:
        """Whether a longer continuation begins with the greedy generation."""
        n = len(self.greedy)
        return any(len(tokens) > n and tokens[:n] == self.greedy for tokens in self.indices)


def score_continuations(
    llm: Llama,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    greedy: bool = True,
    n_ctx: int | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> list[Continuation]:
    """Score continuations, each after its context.

    The continuations of one context are a tree. All contexts are in one batch, and common prefixes are evaluated once.
    To find greedy continuations, the vocabulary is queried as a set: for its best member after the context, and after
    each greedy token as long as a longer continuation begins with these tokens.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    pairs : sequence of (context, continuation)
        Both are token ids, at least one.
    greedy : bool
        Whether to find is_greedy; it is False otherwise.
    n_ctx : int, optional
        As for `choose_many`.
    advance : callable
        Called with the number of newly scored pairs.

    Returns
    -------
    list of Continuation
        In the order of the pairs.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        As for `choose_many`.
    """
    queries: dict[Tokens, _Query] = {}
    for i, (context, continuation) in enumerate(pairs):
        at = tuple(context)
        queries.setdefault(at, _Query(at)).indices[tuple(continuation)].append(i)
    vocabulary = _vocabulary(llm)
    logprobs = np.full(len(pairs), -np.inf)
    is_greedy = np.zeros(len(pairs), bool)
    waiting = deque(queries[at] for at in sorted(queries))  # similar contexts are neighbours
    if not waiting:
        return []
    scorer = _scorer(llm, n_ctx)
    try:
        while waiting or scorer.in_flight:
            while waiting and scorer.n_tokens < _IN_FLIGHT:
                scorer.submit(waiting[0], waiting[0].trie(), of_set=True)
                if greedy:
                    scorer.submit(waiting[0], vocabulary, of_set=False)
                waiting.popleft()
            query, of_set, found = scorer.next()
            if of_set:
                indices = list(query.indices.values())
                for leaf, logprob in found:
                    logprobs[indices[leaf]] = logprob
                advance(sum(map(len, indices)))
                continue
            query.greedy += (found[0][0],)
            is_greedy[query.indices.get(query.greedy, [])] = True
            if query.may_continue():
                scorer.submit(query, vocabulary, of_set=False)
    finally:
        scorer.close()
    return [Continuation(float(p), bool(yes)) for p, yes in zip(logprobs, is_greedy, strict=True)]


LeafScores = list[tuple[int, float]]
"""Leaves and their scores, best first."""


class _Scorer(ABC):
    """Finds the most probable members of a set after contexts and their greedy generation."""

    def __init__(self) -> None:
        self.in_flight: dict[int, tuple[_Query, bool]] = {}  # by ticket

    @property
    def n_tokens(self) -> int:
        """Number of tokens of the contexts in flight."""
        return sum(len(query.context) for query, of_set in self.in_flight.values() if of_set)

    def submit(self, query: _Query, trie: TokenTrie, of_set: bool) -> None:
        """Submit a query for all continuations of a context (of_set), or for the best token of the vocabulary."""
        tokens = [*query.context, *(() if of_set else query.greedy)]
        self.in_flight[self._submit(tokens, trie, len(trie) if of_set else 1)] = query, of_set

    def next(self) -> tuple[_Query, bool, LeafScores]:
        """Wait for the next answer, and return its query, its of_set, and the leaves."""
        ticket, found = self._next()
        return *self.in_flight.pop(ticket), found

    @abstractmethod
    def _submit(self, tokens: list[int], trie: TokenTrie, n_best: int) -> int: ...

    @abstractmethod
    def _next(self) -> tuple[int, LeafScores]: ...

    def close(self) -> None:
        """Cancel the queries in flight."""
        self.in_flight.clear()


class _Batched(_Scorer):
    def __init__(self, llm: Llama, n_ctx: int | None) -> None:
        super().__init__()
        self._batch = Batch(llm, n_ctx=n_ctx)

    def _submit(self, tokens: list[int], trie: TokenTrie, n_best: int) -> int:
        return self._batch.submit(tokens, Query("best", trie, leaf_end="any", n_best=n_best))

    def _next(self) -> tuple[int, LeafScores]:
        answer = self._batch.wait()
        return answer.ticket, list(zip(answer.leaves.tolist(), answer.logprobs.tolist(), strict=True))

    def close(self) -> None:
        self._batch.close()


class _Alone(_Scorer):
    """For models whose sequences cannot share cells of the KV cache."""

    def __init__(self, llm: Llama) -> None:
        super().__init__()
        self._llm = llm
        self._done: deque[tuple[int, LeafScores]] = deque()
        self._n = 0

    def _submit(self, tokens: list[int], trie: TokenTrie, n_best: int) -> int:
        decision = choose(self._llm, tokens, trie, leaf_end="any", n_best=n_best)
        self._n += 1
        self._done.append((self._n, [(one.index, one.logprob) for one in decision.candidates]))
        return self._n

    def _next(self) -> tuple[int, LeafScores]:
        return self._done.popleft()


def _scorer(llm: Llama, n_ctx: int | None) -> _Scorer:
    return _Batched(llm, n_ctx) if can_share(llm) else _Alone(llm)


def _vocabulary(llm: Llama) -> TokenTrie:
    n = llm.n_vocab()
    return TokenTrie.from_arrays(np.arange(n, dtype=np.int32), np.arange(n + 1))


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt, and the options of the text after it."""

    tokens: list[int]
    max_tokens: int
    stop: list[str]
    """Texts before which the generation ends."""
    sampling: Sampling = field(default_factory=Sampling)


def generate_texts(
    llm: Llama, prompts: Sequence[GenerationRequest], *, n_ctx: int, seed: int, done: Callable[[int, str], None]
) -> None:
    """Generate a text after each prompt, and call done with each finished text.

    Parameters
    ----------
    n_ctx : int
        Tokens of the context, which the prompts in flight share with their texts of full length.
    seed : int
        The seed of each text.
    done : callable
        Called with the index of a prompt and its text.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        A prompt cannot be generated from.
    CancelledError
        The Llama was closed meanwhile.
    """
    # Similar prompts are neighbours.
    indexed = sorted(enumerate(prompts), key=lambda pair: pair[1].tokens)
    generate = _generate_together if can_share(llm) else _generate_in_turn
    with closing(generate(llm, indexed, n_ctx, seed)) as generated:
        for index, tokens in generated:
            done(index, _text_of(llm, tokens))


_Indexed: TypeAlias = list[tuple[int, GenerationRequest]]
_Generated: TypeAlias = Generator[tuple[int, Sequence[int]], None, None]
"""Indices of prompts, and the tokens of their texts, as they finish."""


def _generate_together(llm: Llama, indexed: _Indexed, n_ctx: int, seed: int) -> _Generated:
    batch = Batch(llm, n_ctx=n_ctx)
    try:
        in_flight = {}
        for index, prompt in indexed:
            sampling = replace(prompt.sampling, seed=seed)
            query = Query("text", sampling=sampling, max_tokens=prompt.max_tokens, stop_strings=prompt.stop)
            ticket = batch.submit(prompt.tokens, query)
            in_flight[ticket] = index
        while in_flight:
            answer = batch.wait()
            yield in_flight.pop(answer.ticket), answer.tokens
    finally:
        batch.close()


def _generate_in_turn(llm: Llama, indexed: _Indexed, n_ctx: int, seed: int) -> _Generated:
    with closing(Stream(llm, options=StreamOptions(n_ctx=n_ctx))) as stream:
        for index, prompt in indexed:
            stream.prefill(prompt.tokens)
            sampling = replace(prompt.sampling, seed=seed)
            stream.answer(Query("text", sampling=sampling, max_tokens=prompt.max_tokens, stop_strings=prompt.stop))
            yield index, stream.tokens[len(prompt.tokens) :]


def _text_of(llm: Llama, tokens: Sequence[int]) -> str:
    """Return the text of tokens; an incomplete last character becomes U+FFFD."""
    with lease(llm):
        return vocab_of(llm).detokenize(list(tokens)).decode(errors="replace")
