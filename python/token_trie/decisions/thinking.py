"""Thoughts of requests that a batch runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from token_trie.decisions.bound import reader_of
from token_trie.decisions.request import Batched, Prefix, Request, Thought
from token_trie.decisions.think import Think, any_set
from token_trie.errors import ContextError
from token_trie.llama.batch import Batch
from token_trie.llama.query import Answer, Query
from token_trie.llama.text import behind
from token_trie.native.core import Llama, vocab_of
from token_trie.native.ffi import lib
from token_trie.native.lease import lease

R = TypeVar("R")

_RESPELLED = 16
"""Tokens that the beginning of one may take, where a marker stands inside it."""


@dataclass(frozen=True)
class Thinking(Batched[R]):
    """Up to the marker; the request itself comes behind it."""

    llm: Llama
    request: Request[R]
    tokens: list[int]
    think: Think
    marker: list[int]
    """Its tokens."""
    n_ctx: int | None
    """As of `reader_of`."""

    def submit(self, batch: Batch) -> int:
        """Put it into a batch; return its ticket."""
        think = self.think
        most = think.max_tokens + len(self.marker) + _RESPELLED
        return batch.submit(
            self.tokens,
            Query(
                "text",
                any_set(self.marker),
                sampling=replace(think, seed=self.request.seed),
                max_tokens=most,  # or what the context has room for: a thought that ends in time has as much as alone
                start_after=self.marker,
                max_before=think.max_tokens,
                stop_strings=[think.marker] if isinstance(think.marker, str) else [],
            ),
        )

    def read(self, answer: Answer) -> Batched[R]:
        """Return what is to be submitted behind the thought."""
        if answer.figures.stop == lib.TOKEN_TRIE_STOP_MAX_TOKENS:
            raise ContextError("the context is full before the thought has ended")
        thought, tokens = list(answer.tokens), [*self.tokens, *answer.tokens]
        with lease(self.llm):
            vocab = vocab_of(self.llm)
            if answer.figures.stop == lib.TOKEN_TRIE_STOP_STRING:
                n_kept, more = behind(vocab, tokens, str(self.think.marker).encode())
                tokens = tokens[:n_kept] + more
            else:
                thought = thought[: -len(self.marker)]
            text = vocab.detokenize(thought).decode(errors="replace")
            prefix = Prefix(tokens, thought=Thought(text, answer.figures.decide_ns / 1e6))
            batched = self.request.bind(reader_of(self.llm, self.n_ctx), prefix).batched()
        assert batched is not None
        return batched
