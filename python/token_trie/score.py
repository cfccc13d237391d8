"""`score`: the probability of every answer, in a few batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie._chooser import check_room, chooser, fit_set, room_of
from token_trie._lease import lease
from token_trie._native import Llama
from token_trie.constrain import lookup
from token_trie.errors import ArgumentError
from token_trie.ffi import ffi, lib, new_struct
from token_trie.prompt import Prompt, tokenize_prompt
from token_trie.stream import StreamHandle
from token_trie.trie import TokenTrie

End: TypeAlias = Literal["any", "longest", "follow"]
"""What a score has beside the probability of an answer's tokens: see `score`."""

Normalize: TypeAlias = Literal["tokens", "prior"]

ENDS = {"any": 0, "longest": 1, "follow": 2}


def score(
    target: Llama | StreamHandle,
    prompt: Prompt | None,
    choices: TokenTrie | Sequence[str],
    *,
    end: End = "any",
    branches: bool = False,
    normalize: Normalize | None = None,
    leading_space: bool | None = None,
) -> npt.NDArray[np.float64]:
    """Score every answer behind a prompt.

    All answers are evaluated as one tree behind the prompt, what they share once, in as few batches as the context has
    room for.

    Parameters
    ----------
    target : llama_cpp.Llama or StreamHandle
        The model. A handle is left as it is: its sequence, its cache, its trie.
    prompt : str, sequence of int, sequence of chat messages, or None
        What the answers follow; None for a handle's own sequence. A handle evaluates a prompt beside its sequence and
        drops it again, whereas of a Llama's prompts what the last two share is not evaluated again.
    choices : TokenTrie or sequence of str
        The answers. Texts are tokenized as they follow this very prompt, by a Llama.
    end : {"any", "longest", "follow"}
        What a score has beside the probability of the tokens: nothing; that no token comes next by which a longer
        answer of the set goes on, so that answers exclude each other; that an end-of-generation token follows.
    branches : bool
        Whether to take, instead of the model's own probabilities, those renormalized over what the set allows, at
        branch points alone. This is the probability that a walk in sampled mode takes, ends included, and cheaper. It
        favours answers with an improbable beginning that leaves no choice afterwards; the README has how far the two
        distributions are apart.
    normalize : {"tokens", "prior"}, optional
        "tokens": divided by the number of tokens. "prior": less the score behind the token that begins a text, so that
        what counts is how much the prompt speaks for an answer.
    leading_space : bool, optional
        As for `TokenTrie.from_choices`.

    Returns
    -------
    ndarray of float64, shape (n_leaves,)
        Natural logarithms, in the order of the trie's leaves; for texts, in the order of the texts. Texts of equal
        tokens have one score.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError, BusyError
        As of `choose`.
    """
    if normalize is not None and (not isinstance(normalize, str) or normalize not in ("tokens", "prior")):
        raise ArgumentError(f"normalize: {normalize!r} is not 'tokens', 'prior' or None")
    handle_given = isinstance(target, StreamHandle)
    if prompt is None and not handle_given:
        raise ArgumentError("prompt: None where text, token ids or chat messages belong")
    llm = target._llm if isinstance(target, StreamHandle) else target
    if isinstance(choices, TokenTrie):
        trie = choices
        tokens = None if prompt is None else _tokenize(target, prompt)
    elif llm is None:
        raise ArgumentError("choices: a handle on a file takes a TokenTrie")
    elif prompt is None:
        raise ArgumentError("choices: texts need the prompt that they follow; or give a TokenTrie")
    else:
        with lease(llm):
            trie, tokens = fit_set(llm, prompt, choices, leading_space, None if handle_given else room_of(llm))

    check_scorable(trie)

    def on(handle: StreamHandle, prefix: Sequence[int] | None) -> npt.NDArray[np.float64]:
        scores = score_leaves(handle, trie, end=end, branches=branches, prefix=prefix).leaves
        if normalize == "prior":
            beginning = [handle._beginning()]
            scores = scores - score_leaves(handle, trie, end=end, branches=branches, prefix=beginning).leaves
        return scores

    if isinstance(target, StreamHandle):
        scores = on(target, tokens)
    else:
        assert tokens is not None
        with lease(target):
            check_room(target, tokens, trie)
        with chooser(target) as handle:
            handle._hold(trie)
            handle.prefill(tokens)
            scores = on(handle, None)
    if normalize == "tokens":
        scores = scores / np.diff(trie._handle.arrays()[1])
    if trie is not choices and len(trie) < len(choices):
        # Equal ones are one leaf.
        leaf_of = {name: i for i, name in enumerate(trie.names)}
        leaf_of |= dict(trie._handle.aliases)
        scores = scores[[leaf_of[str(choice)] for choice in choices]]
    return scores


def check_scorable(trie: TokenTrie) -> None:
    """Raise ArgumentError for a set whose members have no one spelling to score."""
    if trie.tokenization != "canonical":
        raise ArgumentError(
            'choices: whole answers are scored in one spelling; make the set with tokenization="canonical"'
        )


class Scores(NamedTuple):
    """Natural logarithms of probabilities, and what they took."""

    leaves: npt.NDArray[np.float64]
    """Of each leaf."""
    nodes: npt.NDArray[np.float64]
    """Of each node's token behind its parent, level by level; 0 for the root."""
    n_evaluated: int
    """Nodes that the model was asked about."""
    n_passes: int
    """Batches of them."""
    decode_ns: int
    """Nanoseconds inside the model's forward passes."""


class Search(NamedTuple):
    """The best leaves, and what they took."""

    leaves: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]
    gap: float
    """Nats that another leaf may be above the last of these at most; 0: proved that none is."""
    n_evaluated: int
    n_passes: int
    decode_ns: int


def score_leaves(
    handle: StreamHandle,
    trie: TokenTrie,
    *,
    end: End = "longest",
    branches: bool = False,
    prefix: Sequence[int] | None = None,
) -> Scores:
    """Score all leaves behind the handle's sequence, or behind a prefix instead."""
    params, _kept = _params(handle, trie, end, branches, prefix)
    leaves, nodes = np.empty(len(trie)), np.empty(trie.n_nodes)
    stats = new_struct("token_trie_score_stats")
    of_leaves, of_nodes = _doubles(leaves), _doubles(nodes)
    handle._run(lib.token_trie_stream_score, params, of_leaves, len(leaves), of_nodes, len(nodes), stats)
    return Scores(leaves, nodes, stats.n_evaluated, stats.n_passes, stats.decode_ns)


def search_leaves(
    handle: StreamHandle,
    trie: TokenTrie,
    n_best: int = 1,
    *,
    end: End = "longest",
    beam_width: int = 0,
    max_nodes: int = 0,
) -> Search:
    """Find the best leaves behind the handle's sequence; ``beam_width=0`` for the exact search, best first."""
    params, _kept = _params(handle, trie, end, False, None)
    params.beam_width, params.max_nodes = beam_width, max_nodes
    n_best = min(n_best, len(trie))
    leaves, logprobs = np.empty(n_best, np.int64), np.empty(n_best)
    stats = new_struct("token_trie_score_stats")
    found, of_found = ffi.from_buffer("int64_t[]", leaves), _doubles(logprobs)
    handle._run(lib.token_trie_stream_search, params, found, of_found, n_best, stats)
    n = stats.n_found
    return Search(leaves[:n], logprobs[:n], stats.gap, stats.n_evaluated, stats.n_passes, stats.decode_ns)


def _params(
    handle: StreamHandle, trie: TokenTrie, end: End, branches: bool, prefix: Sequence[int] | None
) -> tuple[Any, list[Any]]:
    params = new_struct("token_trie_score_params", leaf_end=lookup(end, ENDS, "end"), branches=int(bool(branches)))
    kept = []
    if handle._held is not trie:
        payload = trie._payload_bytes()
        kept.append(ffi.from_buffer("char[]", payload))
        params.payload_json, params.payload_len = kept[-1], len(payload)
    if prefix is not None:
        kept.append(ffi.from_buffer("llama_token[]", np.array(prefix, np.int32)))
        params.prefix, params.n_prefix = kept[-1], len(prefix)
    return params, kept


def _doubles(array: npt.NDArray[np.float64]) -> Any:
    return ffi.from_buffer("double[]", array)


def _tokenize(target: Llama | StreamHandle, prompt: Prompt) -> list[int]:
    if isinstance(target, StreamHandle):
        return target._tokenize_prompt(prompt)
    with lease(target):
        return tokenize_prompt(target, prompt, room_of(target))
