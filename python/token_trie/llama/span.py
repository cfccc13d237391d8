"""The rules of a span under a trie: what `constrain` and `StreamHandle.set_token_trie` take, checked once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.native.arguments import check_counts, check_flags, encode_names, lookup
from token_trie.native.core import _core
from token_trie.native.ffi import ffi, new_struct
from token_trie.sets.inner_text import inner_tokens
from token_trie.sets.tokens import to_tokens
from token_trie.sets.trie import TokenTrie

Mode: TypeAlias = Literal["greedy", "sampled"]
OnComplete: TypeAlias = Literal["release", "end", "restart"]

MODES: dict[str, int] = {"greedy": 0, "sampled": 1}
_ON_COMPLETE: dict[str, int] = {"release": 0, "end": 1, "restart": 2}


class Span(NamedTuple):
    """Rules that are in order."""

    mode: int
    on_complete: int
    end_tokens: npt.NDArray[np.int32] | None
    separator: npt.NDArray[np.int32]
    max_items: int
    min_items: int
    unique: bool
    exclude: list[bytes]
    start_after: npt.NDArray[np.int32]
    max_before: int  # -1 for no limit
    max_span: int  # likewise

    @property
    def releases(self) -> bool:
        """Whether the text is free behind a member."""
        return self.on_complete == _ON_COMPLETE["release"]

    @property
    def is_usual(self) -> bool:
        """Whether a decision is made under these."""
        ends = self.end_tokens is not None and len(self.end_tokens)
        return self.on_complete == _ON_COMPLETE["end"] and not (ends or self.exclude or len(self.start_after))

    def ends(self, vocab: _core.Vocab) -> list[int]:
        """Tokens that end the answer: those given, else the vocabulary's."""
        if self.end_tokens is not None:
            return list(map(int, self.end_tokens))
        return [] if self.releases else vocab.end_of_generation()


def read_span(
    vocab: _core.Vocab,
    mode: str,
    on_complete: str,
    end_tokens: Sequence[int] | None,
    separator: str | Sequence[int],
    max_items: int,
    min_items: int,
    unique: bool,
    exclude: Iterable[str],
    start_after: str | Sequence[int],
    max_before: int | None,
    max_span: int | None,
) -> Span:
    """Check and convert the options of `constrain`; ArgumentError and VocabularyError as of there."""
    check_counts(0, max_items=max_items, min_items=min_items)
    check_flags(unique=unique)
    if max_before is not None:
        check_counts(0, max_before=max_before)
    if max_span is not None:
        check_counts(max_span=max_span)
    return Span(
        lookup(mode, MODES, "mode"),
        lookup(on_complete, _ON_COMPLETE, "on_complete"),
        None if end_tokens is None else to_tokens(end_tokens, "end_tokens"),
        inner_tokens(separator, "separator", vocab),
        max_items,
        min_items,
        unique,
        encode_names(exclude, "exclude"),
        inner_tokens(start_after, "start_after", vocab, special=True),
        -1 if max_before is None else max_before,
        -1 if max_span is None else max_span,
    )


def follow_set(trie: _core.Trie, vocab: _core.Vocab, span: Span) -> _core.FollowSet:
    """Return the span's rules as cursors take them."""
    return _core.FollowSet(
        trie,
        vocab,
        span.on_complete,
        span.ends(vocab),
        span.separator.tolist(),
        span.max_items,
        span.min_items,
        span.unique,
        [name.decode() for name in span.exclude],
        span.start_after.tolist(),
        span.max_before,
        max(span.max_span, 0),
    )


class NativeParams(NamedTuple):
    """A struct token_trie_params."""

    params: Any
    pointed_to: tuple[Any, ...]
    """What its members point to; to be kept as long."""


def native_params(span: Span) -> NativeParams:
    """Return the span's rules as the C ABI takes them."""
    params = new_struct("token_trie_params")
    for name in ("mode", "on_complete", "max_items", "min_items", "unique", "max_before", "max_span"):
        setattr(params, name, getattr(span, name))
    for name in ("end_tokens", "separator", "start_after"):
        tokens = getattr(span, name)
        if tokens is not None and len(tokens):
            setattr(params, name, ffi.from_buffer("llama_token[]", tokens))
            setattr(params, f"n_{name}", len(tokens))
    names = [ffi.new("char[]", name) for name in span.exclude]
    out = ffi.new("char *[]", names)
    params.exclude, params.n_exclude = out, len(names)
    return NativeParams(params, (span, names, out))


class SetTrie(NamedTuple):
    """A trie that is set, and the rules of its span."""

    trie: TokenTrie
    span: Span
    native: NativeParams
