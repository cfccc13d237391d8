"""Queries, with their rules of sampling and of spans, their answers, and the steps of plans."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, TokenTrieError, from_status
from token_trie.native.core import _core
from token_trie.native.ffi import c_strings, check, ffi, lib, new_struct
from token_trie.native.options import (
    Options,
    check_counts,
    check_flags,
    check_limits,
    check_name,
    check_numbers,
    encode_names,
    native_seed,
)
from token_trie.sets.tokenization import Speller, inner_tokens, to_tokens
from token_trie.sets.trie import TokenTrie

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
        self.check_used("on_complete", self.on_complete, _USED_IN)
        if self.max_before is not None and not len(self.start_after):
            raise ArgumentError("max_before: has no effect without start_after")


_USED_IN: dict[str, tuple[OnComplete, ...]] = {
    **dict.fromkeys(("separator", "max_items", "min_items", "unique", "max_span"), ("restart",)),
    "end_tokens": ("end", "restart"),
}
"""The values of `on_complete` with which an option has an effect."""


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


@dataclass(frozen=True, kw_only=True)
class Sampling(Options):
    """Sampling of tokens by llama.cpp's samplers.

    Parameters
    ----------
    temperature : float, optional
        Above 0, tokens are drawn; 0 takes the best token. By default 1 where a mode draws, 0 in free text.
    top_p : float
        In (0, 1]: draws are from the most probable tokens that together have this probability.
    top_k : int
        Draws are from this many of the most probable tokens; 0: from all.
    min_p : float
        In [0, 1]: draws are from tokens that have at least this part of the best token's probability.
    seed : int, optional
        The same seed draws the same tokens; by default other tokens each time. Of several prompts, each draws by the
        seed alone: equal prompts get equal answers.
    """

    temperature: float | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        self.check_sampling(draws=False)

    def check_sampling(self, draws: bool) -> None:
        """Raise ArgumentError for a value that llama.cpp cannot use; with `draws`, also for a temperature of 0."""
        temperature = (1.0 if draws else 0.0) if self.temperature is None else self.temperature
        check_numbers(temperature=temperature, top_p=self.top_p, min_p=self.min_p)
        check_counts(0, top_k=self.top_k)
        # In single precision, as in llama.cpp.
        native, top_p = ctypes.c_float(float(temperature)).value, ctypes.c_float(float(self.top_p)).value
        if temperature < 0 or not native < float("inf") or (native == 0 and draws):
            raise ArgumentError(f"temperature: {temperature} is not above 0; for the best answer use mode='greedy'")
        if self.top_p > 1 or not 0 < top_p <= 1:
            raise ArgumentError(f"top_p: {self.top_p} is not in (0, 1]")
        if not 0 <= self.min_p <= 1:
            raise ArgumentError(f"min_p: {self.min_p} is not in [0, 1]")
        native_seed(self.seed)

    def check_drawn(self, draws: bool, *, is_seeded: bool = False) -> None:
        """Raise ArgumentError for an option without effect, as no token is drawn.

        `draws`: whether the mode draws; `is_seeded`: whether the seed is also that of something else.
        """
        if self.effective_temperature(draws) == 0:
            for name in DRAWN_BY:
                if self.is_given(name) and not (is_seeded and name == "seed"):
                    raise ArgumentError(f"{name}: has no effect without a temperature, as nothing is drawn")

    def settled(self, draws: bool) -> Sampling:
        """Return it with the effective temperature, and without a seed."""
        return Sampling(
            temperature=self.effective_temperature(draws), top_p=self.top_p, top_k=self.top_k, min_p=self.min_p
        )

    def effective_temperature(self, draws: bool) -> float:
        """Return the temperature, by default that of a mode that draws or does not."""
        if self.temperature is None:
            return 1.0 if draws else 0.0
        return float(self.temperature)


DRAWN_BY = ("top_p", "top_k", "min_p", "seed")
"""The options of `Sampling` that have no effect at temperature 0."""


def native_sampling(sampling: Sampling, draws: bool, *, continues: bool = False, **penalties: Any) -> Any:
    """Return a struct token_trie_sampling; `penalties` are other members.

    `draws` is that of `Sampling.effective_temperature`; `continues`: whether, without a seed, the stream's random draws
    continue.
    """
    seed = lib.TOKEN_TRIE_SEED_RANDOM if sampling.seed is None else native_seed(sampling.seed)
    if sampling.seed is None and continues:
        seed = lib.TOKEN_TRIE_SEED_KEEP
    return new_struct(
        "token_trie_sampling",
        seed=seed,
        temperature=sampling.effective_temperature(draws),
        top_p=float(sampling.top_p),
        top_k=int(sampling.top_k),
        min_p=float(sampling.min_p),
        **penalties,
    )


N = TypeVar("N", bound=np.generic)
R = TypeVar("R")

QueryMode: TypeAlias = Literal["greedy", "sampled", "best", "scores", "text"]
LeafEnd: TypeAlias = Literal["any", "longest", "follow"]

LEAF_ENDS = {"any": 0, "longest": 1, "follow": 2}
"""Values of enum token_trie_leaf_end."""
_GREEDY = Sampling()


@dataclass(frozen=True, eq=False)
class Query:
    """A struct token_trie_query."""

    mode: QueryMode
    trie: TokenTrie | None = None
    sampling: Sampling = _GREEDY
    with_state: bool = False
    leaf_end: LeafEnd = "longest"
    branches: bool = False
    beam_width: int = 0
    n_best: int = 1
    max_nodes: int = 0
    timeout_ms: int = 0
    leaf_weights: npt.NDArray[np.float64] | None = None
    """Shape (n_leaves,)."""
    max_tokens: int = 0
    stop_strings: Sequence[str] = ()
    gbnf: str | None = None
    span: Any = None
    """Rules, from `read_span`; of a list, which has up to `max_tokens` tokens, or of text before a marker."""
    until: Callable[[int], bool] | None = None
    """In mode "text": receives each token, and returns whether the text ends after it. It is called on the thread that
    makes the pass, perhaps not for all tokens of the answer."""

    @property
    def is_decoded(self) -> bool:
        """Whether the answer is written token by token."""
        return self.mode in ("greedy", "sampled", "text")

    def native(
        self, *, is_alone: bool = False, goes_on: bool = False, continues: bool = False, **penalties: Any
    ) -> Any:
        """Return the struct: for a stream if `is_alone`; for a batch that keeps the prompt if the plan `goes_on`.

        Other arguments are those of `native_sampling`.
        """
        pointers: dict[str, Any] = {}
        if self.trie is not None:
            pointers["set"] = self.trie.c_set
        if self.span is not None:
            pointers["set_params"] = self.span
        if self.is_decoded:
            draws = self.mode == "sampled"
            pointers["sampling"] = native_sampling(self.sampling, draws, continues=continues, **penalties)
        if self.leaf_weights is not None:
            weights = ffi.from_buffer("double[]", np.ascontiguousarray(self.leaf_weights, np.float64))
            pointers |= {"leaf_weights": weights, "n_leaf_weights": len(weights)}
        if self.stop_strings:
            strings = c_strings([text.encode() for text in self.stop_strings])
            pointers |= {"stop_strings": strings, "n_stop_strings": len(self.stop_strings)}
        if self.gbnf is not None:
            pointers["gbnf"] = ffi.new("char[]", self.gbnf.encode())
        if self.until is not None:
            number = next(_numbers)
            _listening[number] = self
            pointers |= {"on_token": _HEAR_ALONE if is_alone else _HEAR, "user": ffi.cast("void *", number)}
        return new_struct(
            "token_trie_query",
            mode=getattr(lib, f"TOKEN_TRIE_QUERY_{self.mode.upper()}"),
            with_hidden_state=int(self.with_state),
            leaf_end=LEAF_ENDS[self.leaf_end],
            branches=int(self.branches),
            beam_width=self.beam_width,
            n_best=self.n_best,
            max_nodes=self.max_nodes,
            timeout_ms=self.timeout_ms,
            max_tokens=self.max_tokens,
            goes_on=int(goes_on),
            **pointers,
        )


_numbers = itertools.count(1)
_listening: WeakValueDictionary[int, Query] = WeakValueDictionary()  # so that C holds no object of Python
_raised: dict[int, BaseException] = {}  # by thread


def _hear(token: Any, user: Any) -> bool:
    query = _listening.get(int(ffi.cast("uintptr_t", user)))
    return query is not None and query.until is not None and not query.until(token.id)


def _keep_raised(_type: object, error: BaseException, _trace: object) -> None:
    _raised[get_ident()] = error


# An interrupt ends the text of a stream, but in a batch the text is perhaps another thread's.
_HEAR_ALONE = ffi.callback("token_trie_on_token", _hear, error=False, onerror=_keep_raised)
_HEAR = ffi.callback("token_trie_on_token", _hear, error=True, onerror=_keep_raised)


def take_raised() -> BaseException | None:
    """Return what was raised while tokens were heard on this thread, once."""
    return _raised.pop(get_ident(), None) if _raised else None


class Answer(NamedTuple):
    """A struct token_trie_answer, copied."""

    ticket: int = 0
    """In a batch: the ticket of the query."""
    error: TokenTrieError | None = None
    """In a batch: why the prompt failed."""
    leaf: int = -1
    """Index of the best or only leaf; -1 if there is none."""
    logprob: float = 0.0
    tokens: tuple[int, ...] = ()
    """Generated tokens."""
    leaves: npt.NDArray[np.int64] = np.empty(0, np.int64)
    """Leaves found by a search, best first."""
    logprobs: npt.NDArray[np.float64] = np.empty(0)
    """Log-probabilities of `leaves`; in mode "scores", of all leaves, and `leaves` is empty."""
    ranges: npt.NDArray[np.int64] = np.empty(0, np.int64)
    """For each of `leaves` of a list: the index of its first token in `tokens`, and the index after its last."""
    state: npt.NDArray[np.float32] = np.empty(0, np.float32)
    """with_state: the hidden state after the prompt, shape (n_embd,)."""
    figures: Any = new_struct("token_trie_answer_info")
    """The struct token_trie_answer_info, whose pointers are no longer valid."""


NO_ANSWER = Answer()


def read_answer(answer: Any) -> Answer:
    """Copy a native answer and free it."""
    answer = ffi.gc(answer, lib.token_trie_answer_free)
    info = new_struct("token_trie_answer_info")
    check(lib.token_trie_answer_get_info(answer, info))
    error = None if info.status == 0 else from_status(info.status, ffi.string(info.message).decode())

    def array(values: Any, n: int, dtype: type[N]) -> npt.NDArray[N]:
        n_bytes = n * np.dtype(dtype).itemsize
        return np.frombuffer(ffi.buffer(values, n_bytes), dtype).copy() if n else np.empty(0, dtype)

    return Answer(
        info.ticket,
        error,
        info.leaf,
        info.logprob,
        tuple(array(info.tokens, info.n_tokens, np.int32).tolist()),
        array(info.leaves, info.n_leaves, np.int64),
        array(info.logprobs, info.n_logprobs, np.float64),
        array(info.ranges, info.n_ranges, np.int64),
        array(info.hidden_state, info.n_hidden_state, np.float32),
        info,
    )


@dataclass(frozen=True, eq=False)
class Step:
    """Something that a plan wants done with a sequence of tokens."""

    tokens: list[int]


@dataclass(frozen=True, eq=False)
class Ask(Step):
    """Asks a query after tokens. On a stream they become its sequence, with the tokens of the answer after them."""

    query: Query
    key: Hashable = None
    """If not None, this is a prior: its answer depends on nothing but the key, and the driver remembers it."""


class AskBeside(Ask):
    """Asks a query about a whole set after tokens; the sequence of a stream stays, if there is space for both."""


class AskOn(Ask):
    """Asks a query after tokens with which the plan goes on, so that a batch keeps them."""


class Keep(Step):
    """Makes tokens the sequence of a handle, where it goes on; elsewhere it does nothing."""


Plan: TypeAlias = Generator[Sequence[Step], list[Answer], R]
"""Yields lists of steps that may run at once, is sent their answers in order, and returns the result."""


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

    class SamplingKeywords(TypedDict, total=False):
        """Keywords of `Sampling`."""

        temperature: float | None
        top_p: float
        top_k: int
        min_p: float
        seed: int | None
