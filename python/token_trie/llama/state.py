"""Where a stream stands, and the steps that it gives."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from token_trie.sets.trie import TokenTrie


class Step(NamedTuple):
    """One token."""

    token: int
    """Its id."""
    text: str
    """The characters it completes; ``""`` if it ends inside one."""
    logprob: float
    """Natural logarithm of its probability among the allowed tokens; 0 if forced, NaN in free text."""
    forced: bool
    """Whether it was the only token allowed."""


class Item(NamedTuple):
    """A member that a span has produced."""

    leaf: int
    begin: int
    """The position of its first token in the sequence,"""
    end: int
    """and of what is behind its last."""
    logprob: float


@dataclass(frozen=True)
class StreamState:
    """The state of a stream. Counts begin when it is opened."""

    stop: str
    """Why the last `generate` ended: "none", "max_tokens", "complete", "end", "callback", "cancelled" or "string"."""
    span: str
    """"thinking", "walking", "complete" or "escaped"; "none" without a trie."""
    n_items: int
    leaf: int | None
    """Index of the member that was finished last."""
    name: str | None
    """Name of the member that was finished last."""
    logprob: float
    """Sum of the logarithms over the branch points of this span, ends included."""
    n_tokens: int
    n_cached: int
    n_forced: int
    n_branches: int
    n_free: int
    n_passes: int
    """Forward passes of `generate`."""
    decode_ns: int
    generate_ns: int
    n_context: int
    """Number of tokens for which the context has space; it grows up to `n_context_max`."""
    n_context_max: int
    """Largest number of tokens to which the context can grow."""
    cache_bytes: int
    """Memory of the context's cache; 0 until something is evaluated."""
    n_imported: int
    """Tokens that were copied from the Llama's context instead of being evaluated."""
    n_closed: int
    """Lists that `max_span` ended."""
    n_on_device: int
    """Passes whose branch point was decided on the device."""
    ending: str
    """Why the span ends after the member that was finished last: "token", "max_items", "none_left" or "max_span";
    "none" as long as a member can continue or begin."""


STOPS = ("none", "max_tokens", "complete", "end", "callback", "cancelled", "string")
ENDINGS = ("none", "token", "max_items", "none_left", "max_span")
SPANS = ("walking", "complete", "escaped", "thinking", "none")


def state_of(state: Any, is_cancelled: bool, trie: TokenTrie | None) -> StreamState:
    """Read a struct token_trie_stream_state; cancelled where that happened between two steps."""
    leaf = None if state.leaf < 0 else int(state.leaf)
    counts = [field.name for field in fields(StreamState) if field.type == "int" and field.name != "n_items"]
    return StreamState(
        stop="cancelled" if is_cancelled else STOPS[state.stop],
        span=SPANS[state.span],
        ending=ENDINGS[state.ending],
        n_items=state.n_items,
        leaf=leaf,
        name=None if leaf is None or trie is None else trie.core.name(leaf),
        logprob=float(state.logprob),
        **{name: int(getattr(state, name)) for name in counts},
    )
