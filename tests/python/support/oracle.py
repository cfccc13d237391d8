"""The same things done plainly: sets of tuples and one pass of the model a token. Knows nothing of token_trie."""

from __future__ import annotations

import functools
from typing import Any

import llama_cpp
import numpy as np

Member = tuple[int, ...]


def allowed(members: set[Member], prefix: Member, end_tokens: set[int]) -> set[int]:
    """Tokens that may follow a prefix of a member; end tokens after a whole one."""
    following = {m[len(prefix)] for m in members if len(m) > len(prefix) and m[: len(prefix)] == prefix}
    return following | (end_tokens if prefix in members else set())


@functools.cache
def end_of_generation(llm: Any) -> set[int]:
    return {t for t in range(llm.n_vocab()) if llama_cpp.llama_vocab_is_eog(llm._model.vocab, t)}


def logits(llm: Any) -> np.ndarray:
    row = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
    return np.ctypeslib.as_array(row, shape=(llm.n_vocab(),)).copy()


def greedy_walk(llm: Any, prompt: list[int], members: set[Member]) -> tuple[Member, float]:
    """Take the best allowed token at each step, the lowest of equals, and sum log-shares over the branch points."""
    ends = end_of_generation(llm)
    llm.reset()
    llm.eval(prompt)
    walked: Member = ()
    logprob = 0.0
    while tokens := sorted(allowed(members, walked, ends)):
        row = logits(llm)[tokens].astype(np.float64)
        best = int(row.argmax())
        if len(tokens) > 1:
            logprob += float(row[best] - np.logaddexp.reduce(row))
        if tokens[best] in ends and walked in members:
            break
        walked += (tokens[best],)
        llm.eval([tokens[best]])
        if walked in members and allowed(members, walked, set()) == set():
            break
    return walked, logprob


def logprobs(llm: Any, prompt: list[int], member: Member) -> list[float]:
    """Natural log-probability of each token of a member behind the prompt, one pass a token, over all tokens."""
    llm.reset()
    llm.eval(prompt)
    out = []
    for token in member:
        row = logits(llm).astype(np.float64)
        out.append(float(row[token] - np.logaddexp.reduce(row)))
        llm.eval([token])
    return out


def next_probabilities(llm: Any, tokens: list[int]) -> np.ndarray:
    """Probability of every next token."""
    llm.reset()
    llm.eval(tokens)
    row = logits(llm).astype(np.float64)
    return np.exp(row - np.logaddexp.reduce(row))
