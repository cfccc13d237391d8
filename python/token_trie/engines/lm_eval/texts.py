"""Texts that a model generates behind prompts: many at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from token_trie.llama.batch import Batch, can_share
from token_trie.llama.options import StreamOptions
from token_trie.llama.query import Query
from token_trie.llama.sampling import Sampling
from token_trie.llama.stream import Stream
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lease import lease


@dataclass(frozen=True)
class TextRequest:
    """A prompt, and the options of the text behind it."""

    tokens: list[int]
    max_tokens: int
    stop: list[str]
    """Texts before which the generation ends."""
    sampling: Sampling = field(default_factory=Sampling)


def generate_behind(
    llm: Llama, prompts: Sequence[TextRequest], *, n_ctx: int, seed: int, done: Callable[[int, str], None]
) -> None:
    """Generate a text behind each prompt, and call back with each text when it is finished.

    Parameters
    ----------
    n_ctx : int
        Tokens of the context. The prompts in flight share it, each with all tokens that its text may have.
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
    # So that prompts that begin alike are neighbours.
    indexed = sorted(enumerate(prompts), key=lambda pair: pair[1].tokens)
    generate = _generate_together if can_share(llm) else _generate_in_turn
    with closing(generate(llm, indexed, n_ctx, seed)) as generated:
        for index, tokens in generated:
            done(index, _text_of(llm, tokens))


_Indexed: TypeAlias = list[tuple[int, TextRequest]]
_Generated: TypeAlias = Generator[tuple[int, Sequence[int]], None, None]
"""Indices of prompts, and the tokens of their texts, in the order in which they are finished."""


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
    """Return the text of tokens; a last character that is cut short becomes U+FFFD."""
    with lease(llm):
        return vocab_of(llm).detokenize(list(tokens)).decode(errors="replace")
