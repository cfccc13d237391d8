"""What a model writes behind prompts: many at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

from token_trie.llama.batch import Batch, can_share
from token_trie.llama.program import Program
from token_trie.native.arguments import check_draws
from token_trie.native.core import Llama, vocab_of
from token_trie.native.ffi import lib
from token_trie.native.lease import lease


@dataclass(frozen=True)
class Continued:
    """A prompt, and how the model is to go on."""

    tokens: list[int]
    max_tokens: int
    stop: list[str]
    """Texts before which it ends."""
    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        check_draws(self.temperature, self.top_p, None, may_be_zero=True)


def write_behind(
    llm: Llama, prompts: Sequence[Continued], *, n_ctx: int, seed: int, done: Callable[[int, str], None]
) -> None:
    """Let the model go on behind each prompt, and say so as each text is there.

    Parameters
    ----------
    n_ctx : int
        Tokens of the context that those under way share, each with all it may come to.
    seed : int
        Of what is drawn, behind each prompt anew.
    done : callable
        Is told the place of a prompt, and its text.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        Of a prompt.
    CancelledError
        The Llama was closed meanwhile.
    """
    # So that those which begin alike are neighbours.
    placed = sorted(enumerate(prompts), key=lambda pair: pair[1].tokens)
    write = _write_together if can_share(llm) else _write_in_turn
    with closing(write(llm, placed, n_ctx, seed)) as written:
        for place, tokens in written:
            done(place, _text_of(llm, tokens))


_Placed: TypeAlias = list[tuple[int, Continued]]
_Written: TypeAlias = Generator[tuple[int, Sequence[int]], None, None]
"""Places, and the tokens of their texts, as they are there."""


def _write_together(llm: Llama, placed: _Placed, n_ctx: int, seed: int) -> _Written:
    batch = Batch(llm, n_ctx=n_ctx)
    try:
        under_way = {}
        for place, asked in placed:
            ticket = batch.submit(
                None,
                asked.tokens,
                mode=lib.TOKEN_TRIE_BATCH_TEXT,
                seed=seed,
                temperature=asked.temperature,
                top_p=asked.top_p,
                max_tokens=asked.max_tokens,
                stop_strings=asked.stop,
            )
            under_way[ticket] = place
        most = max((asked.max_tokens for _, asked in placed), default=0)
        while under_way:
            answer = batch.wait(0, most)
            yield under_way.pop(answer.ticket), answer.tokens
    finally:
        batch.close()


def _write_in_turn(llm: Llama, placed: _Placed, n_ctx: int, seed: int) -> _Written:
    stream = Program(llm, n_ctx=n_ctx)
    with stream:
        for place, asked in placed:
            stream.set_seed(seed)
            stream.prefill(asked.tokens)
            stream.text(asked.max_tokens, asked.stop, asked.temperature, asked.top_p)
            yield place, stream.tokens[len(asked.tokens) :]


def _text_of(llm: Llama, tokens: Sequence[int]) -> str:
    """Return what they spell, with what there is of a last character."""
    with lease(llm):
        return vocab_of(llm).detokenize(list(tokens)).decode(errors="replace")
