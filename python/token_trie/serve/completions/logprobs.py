"""Probabilities of tokens, and of what could have stood in their place."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, NamedTuple

import numpy as np

from token_trie.decisions.options import ScoreOptions
from token_trie.decisions.score import ScoreRequest
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lease import lease
from token_trie.serve.decisions import together
from token_trie.serve.engine import Engine
from token_trie.sets.trie import TokenTrie

_LEAST = -9999.0
"""Where OpenAI has no less, as JSON has no infinity."""
_AT_ONCE = 8
"""Places asked about at the same time: each answer is a float64 a token of the vocabulary."""


class OfToken(NamedTuple):
    """One token."""

    piece: bytes
    logprob: float
    others: list[tuple[bytes, float]]
    """The most probable ones of the whole vocabulary, best first."""
    written: bytes
    """The piece as it is in the text, which control tokens are not."""


async def logprobs_of(engine: Engine, prompt: list[int], tokens: list[int], n_others: int) -> list[OfToken]:
    """Return the model's own probabilities, without any constraint, of the tokens behind a prompt."""
    every = await engine.remembered(("every token",), lambda: engine.on_worker(lambda: _every_token(engine.llm)))
    room = asyncio.Semaphore(_AT_ONCE)

    async def at(i: int) -> OfToken:
        async with room:
            request = ScoreRequest(every, ScoreOptions())
            scores = np.maximum(await engine.read(lambda: ([*prompt, *tokens[:i]], request)), _LEAST)
        best = np.argpartition(-scores, min(n_others, len(scores) - 1))[:n_others] if n_others else np.empty(0, int)
        best = best[np.argsort(-scores[best], kind="stable")]
        with lease(engine.llm):
            vocab = vocab_of(engine.llm)
            others = [(vocab.detokenize([token], True), float(scores[token])) for token in best.tolist()]
            piece, written = (vocab.detokenize([tokens[i]], special) for special in (True, False))
            return OfToken(piece, float(scores[tokens[i]]), others, written)

    return await together(at(i) for i in range(len(tokens)))


def _every_token(llm: Llama) -> TokenTrie:
    with lease(llm):
        n = len(vocab_of(llm))
    return TokenTrie.from_arrays(np.arange(n, dtype=np.int32), np.arange(n + 1))


def as_chat(found: list[OfToken]) -> dict[str, Any]:
    """Return them in a chat's shape."""

    def one(piece: bytes, logprob: float) -> dict[str, Any]:
        return {"token": _text(piece), "logprob": logprob, "bytes": list(piece)}

    told = [{**one(each.piece, each.logprob), "top_logprobs": [one(*other) for other in each.others]} for each in found]
    return {"content": told, "refusal": None}


def as_completion(found: list[OfToken]) -> dict[str, Any]:
    """Return them in a completion's shape, where pieces that are no text are named by their bytes, as OpenAI's are."""
    begins = itertools.accumulate((len(each.written) for each in found), initial=0)
    chars = _chars_of(b"".join(each.written for each in found))
    return {
        "tokens": [_name(each.piece) for each in found],
        "token_logprobs": [each.logprob for each in found],
        "top_logprobs": [_by_name(each) for each in found],
        "text_offset": [chars[begin] for _, begin in zip(found, begins, strict=False)],
    }


def _chars_of(text: bytes) -> list[int]:
    """Return the index of the character that each byte of a text is part of, and of the one after it.

    Bytes that are no text are characters as Python replaces them.
    """
    indices: list[int] = []
    n = 0
    while len(indices) < len(text):
        rest = text[len(indices) :]
        try:
            good, n_bad = rest.decode(), 0
        except UnicodeDecodeError as error:
            good, n_bad = rest[: error.start].decode(), error.end - error.start
        for n_bytes in (*(len(char.encode()) for char in good), *([n_bad] if n_bad else [])):
            indices += [n] * n_bytes
            n += 1
    return [*indices, n]


def _by_name(found: OfToken) -> dict[str, float]:
    """Return the most probable tokens by their names; of those with the same text, the one that was taken has it."""
    named: dict[str, float] = {}
    for piece, logprob in sorted(found.others, key=lambda other: other != (found.piece, found.logprob)):
        name = _name(piece)
        named.setdefault(_bytes_name(piece) if name in named else name, logprob)
    return dict(sorted(named.items(), key=lambda item: -item[1]))


def _name(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return _bytes_name(piece)


def _bytes_name(piece: bytes) -> str:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")
