"""What a stream is asked about the leaves of a trie: the scores of all, the best of them, or one step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from token_trie.decisions.options import LEAF_ENDS, LeafEnd
from token_trie.errors import ArgumentError, CancelledError, ContextError, InternalError
from token_trie.llama.stream import Stream
from token_trie.native.ffi import ffi, lib, new_struct
from token_trie.sets.spelling import Tokenization
from token_trie.sets.trie import TokenTrie


def check_scorable(tokenization: Tokenization) -> None:
    """Raise ArgumentError for sets whose members have no one spelling to score."""
    if tokenization != "canonical":
        raise ArgumentError(
            'choices: whole answers are scored in one spelling; make the set with tokenization="canonical"'
        )


def check_finite(scores: npt.NDArray[np.float64]) -> None:
    """Raise ContextError where no score is finite, so that nothing could be decided by them."""
    if not np.isfinite(scores).any():
        raise ContextError("the model gives no answer of the set a finite score")


class Steps(NamedTuple):
    """A leaf that was come to token by token."""

    leaf: int
    logprob: float
    """Of the product of its shares among what was allowed, at branch points."""
    tokens: tuple[int, ...]
    counts: tuple[int, int, int] = (0, 0, 0)
    """Branch points, forced tokens and forward passes that it took."""


class Cost(NamedTuple):
    """What the model was asked."""

    n_evaluated: int = 0
    """Nodes."""
    n_passes: int = 0
    """Batches of them."""
    decode_ns: int = 0
    """Nanoseconds inside its forward passes."""


class Scores(NamedTuple):
    """Natural logarithms of probabilities, and what they took."""

    leaves: npt.NDArray[np.float64]
    """Of each leaf."""
    nodes: npt.NDArray[np.float64]
    """Of each node's token behind its parent, level by level; 0 for the root."""
    cost: Cost


class Search(NamedTuple):
    """The best leaves, and what they took. With weights, all but `mass_max` is of the logprobs with these."""

    leaves: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]
    """The model's own, without weights."""
    gap: float
    """Nats that another leaf may be above the last of these at most; 0: proved that none is."""
    rival: float
    """The best other leaf scores this at most; -inf if there is none."""
    mass_max: float
    """The probability that what the model writes here is of the set, at most."""
    cost: Cost


def take_steps(stream: Stream, temperature: float, top_p: float) -> Steps:
    """Take the best or a drawn token at each branch point, to the end of the stream's span."""
    tokens, after, counts = run_counted(stream, temperature, top_p)
    if after.leaf < 0:
        if stream.is_cancelled:
            raise CancelledError("the decision was cancelled")
        raise InternalError(f"the decision ended as {stream.state} without an answer")
    return Steps(int(after.leaf), float(after.logprob), tuple(tokens), counts)


def run_counted(stream: Stream, *arguments: Any) -> tuple[list[int], Any, tuple[int, int, int]]:
    """Run a span by the stream's steps; return its tokens, the struct token_trie_stream_state and `Steps.counts`."""
    before = stream.raw_state  # as C has it: `state` costs as much as a branch point
    tokens = stream.steps.run_span(*arguments)
    after = stream.raw_state
    n_branches, n_forced = after.n_branches - before.n_branches, after.n_forced - before.n_forced
    return tokens, after, (n_branches, n_forced, after.n_passes - before.n_passes)


def score_leaves(
    stream: Stream,
    trie: TokenTrie,
    *,
    leaf_end: LeafEnd = "longest",
    branches: bool = False,
    prefix: Sequence[int] | None = None,
) -> Scores:
    """Score all leaves behind the stream's sequence, or behind a prefix instead."""
    params, _kept = _params(stream, trie, leaf_end, branches, prefix)
    leaves, nodes = np.empty(trie.core.n_leaves), np.empty(trie.n_nodes)
    stats = new_struct("token_trie_score_stats")
    of_leaves, of_nodes = _doubles(leaves), _doubles(nodes)
    stream.steps.run(lib.token_trie_stream_score, params, of_leaves, len(leaves), of_nodes, len(nodes), stats)
    return Scores(leaves, nodes, _cost_of(stats))


def search_leaves(
    stream: Stream,
    trie: TokenTrie,
    n_best: int = 1,
    *,
    leaf_end: LeafEnd = "longest",
    beam_width: int = 0,
    max_nodes: int = 0,
    timeout_ms: int = 0,
    weights: npt.NDArray[np.float64] | None = None,
) -> Search:
    """Find the best leaves behind the stream's sequence.

    Parameters
    ----------
    beam_width
        0: the exact search, best first.
    weights : ndarray of float64, shape (n_leaves,), optional
        Added to the leaves' logprobs, for what is best; finite nats.
    """
    params, kept = _params(stream, trie, leaf_end, False, None)
    params.beam_width, params.max_nodes, params.timeout_ms = beam_width, max_nodes, timeout_ms
    if weights is not None:
        kept.append(_doubles(np.ascontiguousarray(weights, np.float64)))
        params.leaf_weights, params.n_leaf_weights = kept[-1], len(kept[-1])
    n_best = min(n_best, len(trie))
    leaves, logprobs = np.empty(n_best, np.int64), np.empty(n_best)
    stats = new_struct("token_trie_score_stats")
    found, of_found = ffi.from_buffer("int64_t[]", leaves), _doubles(logprobs)
    stream.steps.run(lib.token_trie_stream_search, params, found, of_found, n_best, stats)
    n = stats.n_found
    return Search(leaves[:n], logprobs[:n], stats.gap, stats.rival_max, stats.mass_max, _cost_of(stats))


def _cost_of(stats: Any) -> Cost:
    return Cost(stats.n_evaluated, stats.n_passes, stats.decode_ns)


def _params(
    stream: Stream, trie: TokenTrie, leaf_end: LeafEnd, branches: bool, prefix: Sequence[int] | None
) -> tuple[Any, list[Any]]:
    params = new_struct("token_trie_score_params", leaf_end=LEAF_ENDS[leaf_end], branches=int(bool(branches)))
    kept = []
    if stream.held is not trie:
        params.set = trie.c_set
    if prefix is not None:
        kept.append(ffi.from_buffer("llama_token[]", np.array(prefix, np.int32)))
        params.prefix, params.n_prefix = kept[-1], len(prefix)
    return params, kept


def _doubles(array: npt.NDArray[np.float64]) -> Any:
    return ffi.from_buffer("double[]", array)
