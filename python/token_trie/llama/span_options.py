"""The options of a span under a trie, as the C ABI takes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from token_trie.llama.constrain import MODES, ON_COMPLETE
from token_trie.native.arguments import check_counts, check_flags, encode_names, lookup
from token_trie.native.core import _core
from token_trie.native.ffi import ffi, new_struct
from token_trie.sets.inner_text import inner_tokens
from token_trie.sets.tokens import to_tokens


class SpanOptions(NamedTuple):
    """A struct token_trie_params."""

    params: Any
    pointed_to: tuple[Any, ...]
    """What its members point to; to be kept as long."""
    are_usual: bool
    """Whether they are those that a decision is made under."""


def span_options(
    vocab: _core.Vocab,
    mode: str,
    on_complete: str,
    end_tokens: Sequence[int],
    separator: str | Sequence[int],
    max_items: int,
    min_items: int,
    unique: bool,
    exclude: Iterable[str],
    start_after: str | Sequence[int],
    max_before: int | None,
) -> SpanOptions:
    """Check and convert options, which are those of `constrain`."""
    params = new_struct("token_trie_params", mode=lookup(mode, MODES, "mode"))
    params.on_complete = lookup(on_complete, ON_COMPLETE, "on_complete")
    ends = to_tokens(end_tokens, "end_tokens")
    between = inner_tokens(separator, "separator", vocab)
    marker = inner_tokens(start_after, "start_after", vocab, special=True)
    if len(ends):
        params.end_tokens, params.n_end_tokens = ffi.from_buffer("llama_token[]", ends), len(ends)
    params.separator, params.n_separator = ffi.from_buffer("llama_token[]", between), len(between)
    params.start_after, params.n_start_after = ffi.from_buffer("llama_token[]", marker), len(marker)
    check_counts(0, max_items=max_items, min_items=min_items)
    check_flags(unique=unique)
    params.max_items, params.min_items, params.unique = max_items, min_items, unique
    params.max_before = -1
    if max_before is not None:
        check_counts(0, max_before=max_before)
        params.max_before = max_before
    names = [ffi.new("char[]", name) for name in encode_names(exclude, "exclude")]
    out = ffi.new("char *[]", names)
    params.exclude, params.n_exclude = out, len(names)
    are_usual = on_complete == "end" and not (len(ends) or names or len(marker))
    return SpanOptions(params, (ends, between, marker, names, out), are_usual)
