"""Rules of a span under a trie: the options of `constrain` and `StreamHandle.set_token_trie`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError
from token_trie.native.core import _core
from token_trie.native.ffi import c_strings, ffi, new_struct
from token_trie.native.options import Options, check_counts, check_flags, check_limits, check_name, encode_names
from token_trie.sets.tokenization import Speller, inner_tokens, to_tokens

StepMode: TypeAlias = Literal["greedy", "sampled"]
OnComplete: TypeAlias = Literal["release", "end", "restart"]

STEP_MODES: dict[str, int] = {"greedy": 0, "sampled": 1}
RELEASE = 0
"""In the member `on_complete` of the rules: the text is free after a member."""
_ON_COMPLETE: dict[str, int] = {"release": RELEASE, "end": 1, "restart": 2}


@dataclass(frozen=True, kw_only=True)
class SpanOptions(Options):
    """Rules of a span under a trie.

    Parameters
    ----------
    on_complete : {"end", "release", "restart"}
        What follows a finished member: the end of the answer, free text, or another member, which makes a list.
    end_tokens : str or sequence of int, optional
        For end and restart: text of one token, or tokens each of which ends the answer; by default the vocabulary's
        end-of-generation tokens.
    separator : str or sequence of int, optional
        For restart: text or tokens between two members; by default nothing.
    max_items : int, optional
        For restart: largest number of members.
    min_items : int
        For restart: smallest number of members; the answer does not end before.
    unique : bool
        For restart: whether no member occurs twice (the default). The list then ends when no member is left.
    exclude : iterable of str
        Names of members that are not allowed.
    start_after : str or sequence of int
        A marker: tokens, or a text in which names of control tokens become control tokens. The constraint begins after
        the marker. Before it, the model generates freely, by the call's options, but cannot end the generation.
    max_before : int, optional
        With `start_after`: largest number of tokens before the marker; then the missing part of the marker is forced.
    max_span : int, optional
        For restart: after so many tokens, the current member is the last one (if `min_items` allows it), and a warning
        is given. This ends a list that the model does not end. None: no limit.
    """

    on_complete: OnComplete = "end"
    end_tokens: str | Sequence[int] | None = None
    separator: str | Sequence[int] | None = None
    max_items: int | None = None
    min_items: int = 1
    unique: bool = True
    exclude: Iterable[str] = ()
    start_after: str | Sequence[int] = ()
    max_before: int | None = None
    max_span: int | None = 500

    def __post_init__(self) -> None:
        check_name(self.on_complete, _ON_COMPLETE, "on_complete")
        check_counts(min_items=self.min_items)
        check_limits(max_items=self.max_items, max_span=self.max_span)
        check_limits(0, max_before=self.max_before)
        check_flags(unique=self.unique)


def read_span(vocab: _core.Vocab, mode: StepMode | None, options: SpanOptions) -> Any:
    """Return a struct token_trie_params of checked rules, greedy by default; errors are those of `constrain`."""
    if mode is not None:
        check_name(mode, STEP_MODES, "mode")
    is_list = options.on_complete == "restart"
    separator = () if options.separator is None else options.separator
    tokens = {
        "separator": inner_tokens(separator, "separator", vocab),
        "start_after": inner_tokens(options.start_after, "start_after", vocab, special=True),
    }
    if options.end_tokens is not None:
        tokens["end_tokens"] = read_end_tokens(vocab, options.end_tokens)
    members: dict[str, Any] = {}
    for name, array in tokens.items():
        members |= {name: ffi.from_buffer("llama_token[]", array), f"n_{name}": len(array)}
    exclude = encode_names(options.exclude, "exclude")
    return new_struct(
        "token_trie_params",
        mode=STEP_MODES[mode or "greedy"],
        on_complete=_ON_COMPLETE[options.on_complete],
        max_items=options.max_items or 0,
        min_items=options.min_items if is_list or options.min_items > 1 else 0,
        unique=options.unique and is_list,
        exclude=c_strings(exclude),
        n_exclude=len(exclude),
        max_before=-1 if options.max_before is None else options.max_before,
        max_span=-1 if options.max_span is None else options.max_span,
        **members,
    )


def read_end_tokens(vocab: Speller, given: str | Sequence[int]) -> npt.NDArray[np.int32]:
    """Return the tokens that each end an answer; ArgumentError for a text of several tokens."""
    if not isinstance(given, str):
        return to_tokens(given, "end_tokens")
    tokens = inner_tokens(given, "end_tokens", vocab, special=True)
    if len(tokens) != 1:
        raise ArgumentError(f"end_tokens: {given!r} is {len(tokens)} tokens here; an answer ends in one")
    return tokens


def follow_set(trie: _core.Trie, vocab: _core.Vocab, span: Any) -> _core.FollowSet:
    """Return the rules of `read_span` for cursors."""
    return _core.FollowSet(trie, vocab, int(ffi.cast("uintptr_t", span)))


if TYPE_CHECKING:  # by scripts/keywords

    class SpanKeywords(TypedDict, total=False):
        """Keywords of `SpanOptions`."""

        on_complete: OnComplete
        end_tokens: str | Sequence[int] | None
        separator: str | Sequence[int] | None
        max_items: int | None
        min_items: int
        unique: bool
        exclude: Iterable[str]
        start_after: str | Sequence[int]
        max_before: int | None
        max_span: int | None
