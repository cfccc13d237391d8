"""Probabilities of tokens, and of what could have stood in their place."""

from __future__ import annotations

import asyncio
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
            return OfToken(vocab.detokenize([tokens[i]], True), float(scores[tokens[i]]), others)

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
    """Return them in a completion's shape."""
    ends = np.cumsum([len(_text(each.piece)) for each in found])
    return {
        "tokens": [_text(each.piece) for each in found],
        "token_logprobs": [each.logprob for each in found],
        "top_logprobs": [{_text(piece): logprob for piece, logprob in each.others} for each in found],
        "text_offset": [0, *ends[:-1].tolist()] if found else [],
    }


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")
