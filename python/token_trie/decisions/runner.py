"""Runs requests: on a Llama's own stream, in the batch of those who ask one at the same time, behind what stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from token_trie.decisions.binding import fingerprint
from token_trie.decisions.bound import Reader, reader_of
from token_trie.decisions.request import Batched, Prefix, Request, Thought
from token_trie.decisions.think import marker_tokens, think_first
from token_trie.decisions.thinking import Thinking
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.chooser import chooser
from token_trie.llama.shared_batch import SharedBatch, shared_batch_of
from token_trie.llama.stream import Stream
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lease import lease
from token_trie.sets.prompt import Prompt

R = TypeVar("R")
T = TypeVar("T")


def run(llm: Llama, prompt: Prompt, request: Request[R]) -> R:
    """Answer a request behind a prompt; errors are those of `Request.bind` and of `chooser`."""
    if prompt is None:
        raise ArgumentError("prompt: None where text, token ids or chat messages belong")
    with lease(llm):
        reader = reader_of(llm)
        tokens = reader.tokenize(prompt)
        bound = request.bind(reader, Prefix(tokens))
        batched = None if _is_timed(request) else bound.batched()
        if batched is not None:
            batched = _first_of(llm, request, tokens, batched, None)
    shared = None if batched is None else shared_batch_of(llm)
    if batched is not None and shared is not None:
        return _run_in(shared, batched)
    with chooser(llm) as stream:
        if request.draws and request.seed is None:
            stream.set_seed(None)
        if request.think is None:
            return bound.run(stream)
        stream.prefill(tokens)
        thought = _think(stream, request)
        with lease(llm):
            bound = request.bind(reader, Prefix(stream.tokens, is_standing=True, thought=thought))
        return bound.run(stream)


def begin(llm: Llama, prompt: Prompt, request: Request[R], n_ctx: int) -> Batched[R]:
    """Read a prompt for a batch of so many tokens, and bind a request to it, as of `Request.bind`, under a lease."""
    reader = reader_of(llm, n_ctx)
    tokens = reader.tokenize(prompt)
    batched = request.bind(reader, Prefix(tokens)).batched()
    if batched is None:
        raise ArgumentError("Contextual and normalize='prior': score something else besides, which a batch does not")
    if _is_timed(request):
        raise ArgumentError("think: seconds goes with one decision at a time, and these are in a batch")
    return _first_of(llm, request, tokens, batched, n_ctx)


def _is_timed(request: Request[Any]) -> bool:
    return request.think is not None and request.think.seconds is not None


def _first_of(llm: Llama, request: Request[R], tokens: list[int], batched: Batched[R], n_ctx: int | None) -> Batched[R]:
    """Return what a batch is to do first about a request: think, where it is to."""
    if request.think is None:
        return batched
    return Thinking(llm, request, tokens, request.think, marker_tokens(request.think, vocab_of(llm)), n_ctx)


def run_behind(stream: Stream, request: Request[R]) -> R:
    """Answer a request behind what stands; the sequence goes on behind the answer, and a trie is taken away.

    Where that fails, the sequence and the trie are what they were.
    """
    with stream.transaction() as before:
        if not before:
            raise ArgumentError("nothing to answer behind: prefill first")
        thought = None
        if request.think is not None:
            thought = _think(stream, request)
            before = stream.tokens
        prefix = Prefix(before, is_standing=True, thought=thought)
        bound = read_on(stream, lambda reader: request.bind(reader, prefix))
        answer = bound.run(stream)
        # Also of nothing: the grammar begins anew behind the answer.
        stream.splice(stream.raw_state.n_tokens, bound.missing(answer))
        stream.clear_span()
        return answer


def read_on(stream: Stream, use: Callable[[Reader], T]) -> T:
    """Let something be read by a stream's own model."""
    n_ctx, tokenize = stream.n_ctx_max, stream.tokenize
    model = partial(fingerprint, stream.llm)
    return stream.with_model(lambda vocab, known: use(Reader(vocab, known, tokenize, n_ctx, model, "handle")))


def _think(stream: Stream, request: Request[Any]) -> Thought:
    assert request.think is not None
    started = time.perf_counter()
    text = think_first(stream, request.think, request.seed)
    return Thought(text, (time.perf_counter() - started) * 1e3)


def _run_in(shared: SharedBatch, batched: Batched[R]) -> R:
    """Answer together with other threads."""
    while True:
        answer = shared.answer(batched.submit)
        try:
            told = batched.read(answer)
        except TokenTrieError:
            shared.require_open()
            raise
        if not isinstance(told, Batched):
            return told
        batched = told
