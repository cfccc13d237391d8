"""Scores and searches of the C ABI, on a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError
from token_trie.llama.stream import StreamHandle
from token_trie.native.arguments import lookup
from token_trie.native.ffi import ffi, lib, new_struct
from token_trie.sets.trie import TokenTrie

End: TypeAlias = Literal["any", "longest", "follow"]
"""What a score has beside the probability of an answer's tokens: see `score`."""

ENDS = {"any": 0, "longest": 1, "follow": 2}


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
    rival: float
    """The best other leaf scores this at most; -inf if there is none."""
    mass_max: float
    """The probability that what the model writes here is of the set, at most."""
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
    timeout_ms: int = 0,
) -> Search:
    """Find the best leaves behind the handle's sequence; ``beam_width=0`` for the exact search, best first."""
    params, _kept = _params(handle, trie, end, False, None)
    params.beam_width, params.max_nodes, params.timeout_ms = beam_width, max_nodes, timeout_ms
    n_best = min(n_best, len(trie))
    leaves, logprobs = np.empty(n_best, np.int64), np.empty(n_best)
    stats = new_struct("token_trie_score_stats")
    found, of_found = ffi.from_buffer("int64_t[]", leaves), _doubles(logprobs)
    handle._run(lib.token_trie_stream_search, params, found, of_found, n_best, stats)
    n = stats.n_found
    cost = stats.n_evaluated, stats.n_passes, stats.decode_ns
    return Search(leaves[:n], logprobs[:n], stats.gap, stats.rival_max, stats.mass_max, *cost)


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
