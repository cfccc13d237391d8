"""One sequence of a model on a context of its own, and token-by-token generation for one reader at a time."""

from __future__ import annotations

import asyncio
import os
import struct
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from threading import get_ident
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, BusyError, TokenTrieError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.contexts import Evaluated, StreamOptions, common_prefix, native_options, open_file, open_on
from token_trie.llama.native_stream import NativeStream, close_with, wait_for_dropped
from token_trie.llama.query import Answer, Query, Sampling, native_sampling, read_answer
from token_trie.llama.span import SetTrie, Span, SpanOptions, StepMode, native_params, read_span
from token_trie.native.checks import check_integers, encode
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.ffi import c_strings, check, ffi, lib, new_struct
from token_trie.native.lifetime import attachment, interruptible, lease
from token_trie.sets.payload import json_of
from token_trie.sets.prompt import Prompt, tokenize_alone, tokenize_prompt
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


class Reader:
    """Who reads a generation: what is left of it, and which thread asked for the last step."""

    __slots__ = ("__weakref__", "is_replaced", "left", "n_cancels", "sampling", "thread")

    def __init__(self, max_tokens: int, sampling: Sampling, n_cancels: int) -> None:
        self.left = max_tokens
        self.sampling = sampling
        self.n_cancels = n_cancels  # of the stream, until then
        self.thread = 0
        self.is_replaced = False  # other text took the place of its own

    def require_kept(self) -> None:
        """Raise BusyError if other text took the place of its own."""
        if self.is_replaced:
            raise BusyError("this generation is over: other text took the place of its own")


class Steps:
    """Makes steps, and changes that a reader would notice.

    The native stream is closed when this is dropped.

    Parameters
    ----------
    native : NativeStream
    kept : object
        To be kept from being dropped for as long.
    defaults
        As of `native_sampling`.
    """

    def __init__(self, native: NativeStream, kept: object, defaults: dict[str, Any]) -> None:
        self.native = native
        self.kept = kept
        self.defaults = defaults
        self.sampling = Sampling()  # by which the native stream draws, but for its seed
        close_with(self, native)
        self.n_cancels = 0
        self.n_changes = 0  # of what a reader would get
        self.is_cancelled = False  # between two steps, when the native side has nothing to cancel
        self.is_behind = False  # much may have to be evaluated before the next step
        self._reader: Callable[[], Reader | None] = _none  # a weak reference to the one there is
        self._token = ffi.new("struct token_trie_token *")
        self._token.size = ffi.sizeof("struct token_trie_token")
        self._token_bytes = ffi.buffer(self._token)
        self._stop = ffi.new("int32_t *")

    def cancel(self) -> None:
        """End what is under way in another thread, and any generation begun, within one forward pass."""
        self.n_cancels += 1
        self.native.cancel()

    def cancel_of(self, thread: int) -> None:
        """Do as `cancel` does if it is this thread that is inside a call."""
        if self.native.entered == thread:
            self.cancel()

    def run(self, function: Callable[..., int], *arguments: Any) -> None:
        """Make a long call of the ABI that changes nothing; an interrupt from the keyboard ends it."""
        interruptible(lambda: self.native.call(function, *arguments), self.native.cancel)

    def change(
        self,
        function: Callable[..., int],
        *arguments: Any,
        after: Callable[[], None] | None = None,
        thread: int = 0,
    ) -> None:
        """Make a call of the ABI that changes what a reader would get; BusyError where one of another thread reads."""
        thread = thread or get_ident()

        def changed() -> None:
            self.n_changes += 1
            if after is not None:
                after()

        self.native.call(function, *arguments, before=lambda: self.check_reader(thread), after=changed)

    def check_reader(self, thread: int) -> None:
        """Raise BusyError where another thread than this reads."""
        reader = self._reader()
        if reader is not None and reader.thread != thread:
            raise BusyError("a generation that another thread reads is under way; use one StreamHandle a thread")

    def replace(self) -> None:
        """End the reader, whose text is another now."""
        reader = self._reader()
        if reader is not None:
            reader.is_replaced = True
            self.dismiss(reader)

    def dismiss(self, reader: Reader) -> None:
        """End a reader, so that there may be another."""
        reader.left = 0
        if self._reader() is reader:
            self._reader = _none

    def set_seed(self, seed: int | None) -> None:
        """Begin draws anew from a seed; None for others each time."""
        sampling = replace(self.sampling, seed=seed)
        self.change(lib.token_trie_stream_set_sampling, native_sampling(sampling, draws=False, **self.defaults))

    def _draw_by(self, stream: Any, sampling: Sampling) -> int:
        """Set how tokens are drawn, without a seed, inside a call; the draws go on. Return the status."""
        if sampling == self.sampling:
            return 0
        native = native_sampling(sampling, draws=False, continues=True, **self.defaults)
        status = int(lib.token_trie_stream_set_sampling(stream, native))
        if status == 0:
            self.sampling = sampling
        return status

    def reader(self, max_tokens: int, sampling: Sampling) -> Reader:
        """Return a reader, for `step`."""
        return Reader(max_tokens, sampling, self.n_cancels)

    def step(self, reader: Reader, asking: int, entering: int = 0) -> Step | None:
        """Make a step, which a thread asks for, maybe of another; None: it is over.

        As `NativeStream.call`, but with less on the way: a call costs as much as a third of a step.
        """
        native = self.native
        lock = native.lock
        if lock.locked() or native.owner:
            native.enter()
        try:
            with lock:
                if native.is_closing:
                    native.enter()
                native.entered = entering or get_ident()
                try:
                    if self._reader() is not reader:
                        if reader.left <= 0:  # another thread took the last step since this one looked
                            reader.require_kept()
                            return None
                        self._admit(reader)
                        check(self._draw_by(native.pointer, reader.sampling))
                    if reader.n_cancels != self.n_cancels:
                        raise _CancelledBetweenSteps
                    reader.thread = asking
                    token, stop = self._token, self._stop
                    if native.listen is nullcontext:
                        status = _next(native.pointer, token, stop)
                    else:
                        with native.listen():
                            status = _next(native.pointer, token, stop)
                    if status < 0:
                        check(status)
                    if stop[0] == _GOES_ON and reader.left > 1:
                        reader.left -= 1
                    else:
                        reader.left = 0
                        self._reader = _none
                    _, token_id, forced, logprob, n_bytes = _fields_of(self._token_bytes)
                    if token_id < 0:
                        return None
                    text = _unpack(token.text, n_bytes).decode()
                    return _new(Step, (token_id, text, logprob, forced == 1))
                finally:
                    native.entered = 0
        except _CancelledBetweenSteps:
            self.is_cancelled = True
        except BusyError:
            raise
        except Exception:
            self.dismiss(reader)
            raise
        self.dismiss(reader)
        return None

    def _admit(self, reader: Reader) -> None:
        if self._reader() is not None:
            raise BusyError(
                "another generation of this handle is under way; read it to its end, or close() it, and use one "
                "StreamHandle a thread"
            )
        self.is_cancelled = False
        self.n_changes += 1
        self._reader = weakref.ref(reader)

    def run_span(
        self,
        sampling: Sampling,
        max_tokens: int = 2**31 - 1,
        is_over: Callable[[Any], bool] | None = None,
    ) -> list[int]:
        """Generate to the end of the span, or until it is over by `raw_state`, in one entry; return its tokens."""
        tokens: list[int] = []
        token, stop = self._token, self._stop
        n_cancels = self.n_cancels
        state = None if is_over is None else new_struct("token_trie_stream_state")

        def run(stream: Any) -> int:
            self.is_cancelled = False
            self.n_changes += 1
            stop[0] = _GOES_ON
            status = self._draw_by(stream, sampling)
            if status < 0:
                return status
            while stop[0] == _GOES_ON and len(tokens) < max_tokens:
                if n_cancels != self.n_cancels:
                    self.is_cancelled = True
                    return 0
                status = int(_next(stream, token, stop))
                if status < 0:
                    return status
                if token.id >= 0:
                    tokens.append(token.id)
                if is_over is not None:
                    lib.token_trie_stream_get_state(stream, state)
                    if is_over(state):
                        return 0
            return 0

        self.change(run, after=self.replace)
        return tokens

    def decode(self, function: Callable[..., int], *arguments: Any, is_short: bool) -> None:
        """Make a call of the ABI that writes into the sequence; an interrupt from the keyboard ends one not short."""
        thread = get_ident()

        def call() -> None:
            self.change(function, *arguments, after=self.replace, thread=thread)

        if is_short and not self.is_behind:
            call()
            return
        interruptible(call, self.native.cancel)
        self.is_behind = False

    def generate_until(self, stops: Sequence[str], max_tokens: int, sampling: Sampling) -> int | None:
        """Generate in one entry until a text stands there, which is taken out again; return which of them, if any.

        Of a span that a text comes before, only that is generated; the stream's state then says "complete".
        """
        n_cancels = self.n_cancels
        strings, which = c_strings([text.encode() for text in stops]), ffi.new("int32_t *", -1)
        raised: list[BaseException] = []
        go_on = ffi.callback("token_trie_on_token", _go_on, onerror=lambda _type, error, _trace: raised.append(error))

        def run(stream: Any) -> int:
            self.replace()  # also where it fails midway
            self.is_cancelled = n_cancels != self.n_cancels
            if self.is_cancelled:
                return 0
            text = len(stops), go_on, ffi.NULL, which
            status = self._draw_by(stream, sampling)
            return status or int(lib.token_trie_stream_generate_until(stream, max_tokens, strings, *text))

        self.decode(run, is_short=True)  # between two tokens, its callback lets an interrupt in
        if raised:
            raise raised[0]
        return None if which[0] < 0 else int(which[0])


def _go_on(_token: Any, _user: Any) -> bool:
    """Let an interrupt from the keyboard be raised between two tokens."""
    return True


def _none() -> None:
    """Stand in for a weak reference, where there is nothing to refer to."""


_fields_of = struct.Struct("NiifN").unpack_from  # all of a struct token_trie_token before its text, in one look
_next = lib.token_trie_stream_next
_unpack = ffi.unpack
_new = tuple.__new__
_GOES_ON = lib.TOKEN_TRIE_STOP_MAX_TOKENS


class _CancelledBetweenSteps(Exception):  # noqa: N818
    """Where the native side has nothing to cancel."""


T = TypeVar("T")

_DEFAULTS = StreamOptions()
_USUAL = SpanOptions()
_MANY = 32
"""Tokens, of which more take long to evaluate."""
_SHORT = 16
"""Tokens, of which no more are written without looking for an interrupt; a thread for that costs milliseconds."""


class Stream:
    """One sequence of a model. One call at a time: another meanwhile raises BusyError.

    What changes the text that a reader of another thread is reading raises BusyError too. `cancel` and `close` may come
    from any thread, at any time: they end the call under way. It is closed when it is dropped, and before its model.

    Parameters
    ----------
    llm : llama_cpp.Llama or path
        As of `StreamHandle`.
    keeps_llm : bool
        Whether it keeps the Llama from being dropped, as what is attached to that must not.
    options : StreamOptions
    """

    def __init__(
        self, llm: Llama | str | os.PathLike[str], *, keeps_llm: bool = True, options: StreamOptions = _DEFAULTS
    ) -> None:
        self._set: SetTrie | None = None  # the trie that is set
        self._usual: dict[StepMode | None, tuple[Span, Any]] = {}  # rules of a decision, read once
        self._sets: dict[str | None, TokenTrie] = {}  # of the payload given, by path
        self._grammar: tuple[str | None, str] = None, "root"  # that is set: text and root
        self._known: dict[object, Any] = {}  # of a file's model
        self._like: Callable[[], Llama | None] = _none  # a weak reference to the Llama
        self._evaluated: Evaluated | None = None
        self._prompt = np.empty(0, np.int32)  # what the sequence begins with
        params = native_options(options)
        wait_for_dropped()
        if isinstance(llm, (str, os.PathLike)):
            native = open_file(encode(os.fspath(llm), "llm"), params)
        else:
            attached = attachment(llm)
            native = open_on(llm, attached, options.n_ctx, params)
            self._like = weakref.ref(llm)
            self._evaluated = attached.made(Evaluated)
        self.native = native
        self.steps = Steps(native, llm if keeps_llm else None, options.sampling_defaults)

    def fork(self) -> Stream:
        """Make a second one that goes on from here, as of `StreamHandle.fork`."""
        wait_for_dropped()
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._usual = {}
        other.native = self.native.fork()
        other.steps = Steps(other.native, self.steps.kept, self.steps.defaults)
        other.steps.sampling = self.steps.sampling
        return other

    def close(self) -> None:
        """Free it; a call that another thread is in ends first."""
        self.native.close()

    # Who has it.

    def own(self) -> AbstractContextManager[None]:
        """Let no other thread in between the calls made meanwhile; BusyError where one is in."""
        return self.native.own()

    @property
    def n_cancels(self) -> int:
        """How often it was cancelled."""
        return self.steps.n_cancels

    def cancel(self) -> None:
        """End what is under way in another thread, and any generation begun, within one forward pass."""
        self.steps.cancel()

    def cancel_of(self, thread: int) -> None:
        """Do as `cancel` does if it is this thread that is inside a call."""
        self.steps.cancel_of(thread)

    @contextmanager
    def transaction(self) -> Iterator[list[int]]:
        """Own it, and give the sequence; if what is done fails, it and the trie are put back."""
        with self.native.own():
            before = self.tokens
            put_back, n_changes = self._set, self.steps.n_changes
            try:
                yield before
            except BaseException:
                if self.steps.n_changes == n_changes:
                    raise  # nor does a span, or a grammar, begin anew
                with suppress(TokenTrieError):
                    n_same = common_prefix(np.array(self.tokens, np.int32), np.array(before, np.int32))
                    self.splice(n_same, before[n_same:])
                    if put_back is None:
                        self.clear_span()
                    else:
                        self.set_span(put_back)
                raise

    # The model.

    @property
    def llm(self) -> Llama | None:
        """The Llama, if it has one."""
        return self._like()

    @property
    def n_ctx_max(self) -> int:
        """Tokens that it holds at most."""
        return self.native.n_ctx_max

    def with_vocab(self, use: Callable[[_core.Vocab], T]) -> T:
        """Let work be done on the vocabulary, which stays for as long."""
        return self.native.with_vocab(use)

    def with_model(self, use: Callable[[_core.Vocab, dict[object, Any]], T]) -> T:
        """Let work be done on the vocabulary, and with what is remembered of the model."""
        llm = self._like()
        if llm is None:
            return self.native.with_vocab(lambda vocab: use(vocab, self._known))
        with lease(llm):
            return use(vocab_of(llm), attachment(llm).known)

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Tokens of a prompt; ArgumentError, VocabularyError and ContextError as of `StreamHandle.prefill`."""
        llm = self._like()
        if llm is None:
            return self.native.with_vocab(lambda vocab: tokenize_alone(vocab, prompt))
        with lease(llm):
            return tokenize_prompt(llm, prompt, self.n_ctx_max)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of tokens."""
        return self.native.with_vocab(lambda vocab: vocab.detokenize(tokens)).decode(errors="replace")

    # The sequence.

    @property
    def tokens(self) -> list[int]:
        """The sequence."""

        def read(stream: Any) -> int:
            n = ffi.new("size_t *")
            status = lib.token_trie_stream_get_tokens(stream, ffi.NULL, 0, n)
            found = np.empty(n[0], np.int32)
            if status == 0 and len(found):
                status = lib.token_trie_stream_get_tokens(
                    stream, ffi.from_buffer("llama_token[]", found), len(found), n
                )
            tokens.extend(found.tolist())
            return int(status)

        tokens: list[int] = []
        self.native.call(read)
        return tokens

    def prefill(self, tokens: Sequence[int]) -> None:
        """Make the sequence these tokens, evaluated, as of `StreamHandle.prefill`."""
        prompt = np.array(tokens, np.int32)
        buffer = ffi.from_buffer("llama_token[]", prompt)
        thread = get_ident()

        def before() -> None:
            self.steps.check_reader(thread)
            llm = self._like()
            if llm is not None and self._evaluated is not None:
                n_there = common_prefix(self._prompt, prompt)
                self._evaluated.copy_to(self.native.pointer, llm, prompt, n_there)

        def after() -> None:
            self.steps.n_changes += 1
            self.steps.replace()
            self._prompt = prompt

        def call() -> None:
            self.native.call(lib.token_trie_stream_prefill, buffer, len(prompt), before=before, after=after)

        try:
            if len(prompt) > _MANY:
                interruptible(call, self.native.cancel)
            else:
                call()
        except BaseException:
            self.steps.is_behind = True  # what it took from the cache is to be evaluated again
            raise
        self.steps.is_behind = False

    def splice(self, n_kept: int, tokens: Sequence[int]) -> None:
        """Put tokens in the place of all behind the first ones; trie and grammar begin anew."""
        array = np.array(tokens, np.int32)

        def replaced() -> None:
            self.steps.replace()
            self._prompt = self._prompt[:n_kept]
            self.steps.is_behind |= len(array) > _MANY

        self.steps.change(
            lib.token_trie_stream_splice,
            n_kept,
            ffi.from_buffer("llama_token[]", array) if len(array) else ffi.NULL,
            len(array),
            after=replaced,
        )

    # What it may write.

    def set_payload(self, payload: str | bytes | Mapping[str, Any] | None) -> None:
        """Give sets by path, as of `StreamHandle.set_payload`."""
        sets: dict[str | None, TokenTrie] = {}
        if payload is not None:
            read = json_of(payload)
            tries = self.native.with_vocab(lambda vocab: _core.tries_by_path(read, vocab))
            sets |= {path: TokenTrie.of_core(trie) for path, trie in tries.items()}
        self._sets = sets

    def given(self, choices: T | None, path: str | None) -> T | TokenTrie | None:
        """Return choices, or the set of a path in their place; ArgumentError for both."""
        if path is not None and choices is not None:
            raise ArgumentError("choices and path: one of the two")
        return choices if path is None else self._set_of(path)

    def read_set(self, trie: TokenTrie | str | bytes | Mapping[str, Any] | None, path: str | None) -> TokenTrie:
        """Return the trie, that of a payload, or without one that of a path."""
        if trie is None:
            return self._set_of(path)
        if isinstance(trie, TokenTrie):
            return trie
        return self.native.with_vocab(lambda vocab: TokenTrie.read_payload(trie, path, vocab))

    def _set_of(self, path: str | None) -> TokenTrie:
        if path not in self._sets:
            there = ", ".join(map(repr, list(self._sets)[:5])) or "none: call set_payload first"
            raise ArgumentError(f"path: {path!r} is no path of the payload; there is {there}")
        return self._sets[path]

    def set_trie(self, trie: TokenTrie, mode: StepMode | None = None, rules: SpanOptions = _USUAL) -> None:
        """Put what comes under a trie, from its root."""
        read = self._usual.get(mode) if rules is _USUAL else None
        if read is None:
            span = self.native.with_vocab(lambda vocab: read_span(vocab, mode, rules))
            read = span, native_params(span)
            if rules is _USUAL:
                self._usual[mode] = read
        self.set_span(SetTrie(trie, *read))

    def set_span(self, span: SetTrie) -> None:
        """Put what comes under a trie, from its root, by rules that are in order."""
        set_trie = lib.token_trie_stream_set_token_trie_ext
        self.steps.change(set_trie, span.trie.c_set, span.native, after=lambda: self._keep(span))

    def clear_span(self) -> None:
        """Take the trie away; a grammar set before is back."""
        self.steps.change(lib.token_trie_stream_clear_token_trie, after=lambda: self._keep(None))

    def _keep(self, span: SetTrie | None) -> None:
        self._set = span

    def set_grammar(self, gbnf: str | None, root: str = "root") -> None:
        """Put what comes under a grammar, where no trie is set; None for none. GrammarError: the one before is kept."""
        text = ffi.NULL if gbnf is None else encode(gbnf, "gbnf")
        self.steps.change(lib.token_trie_stream_set_grammar, text, encode(root, "root"))
        self._grammar = gbnf, root

    @contextmanager
    def other_grammars(self) -> Iterator[None]:
        """Let others be set; the one before is put back, to begin anew."""
        grammar, n_changes = self._grammar, self.steps.n_changes
        try:
            yield
        finally:
            if self.steps.n_changes != n_changes:
                with suppress(TokenTrieError):
                    self.set_grammar(*grammar)

    def set_seed(self, seed: int | None) -> None:
        """Begin draws anew from a seed; None for others each time."""
        self.steps.set_seed(seed)

    # Where it stands.

    @property
    def state(self) -> StreamState:
        """Where it stands."""
        held = self._set
        state = self.raw_state
        return state_of(state, self.steps.is_cancelled, None if held is None or held is not self._set else held.trie)

    @property
    def raw_state(self) -> Any:
        """A struct token_trie_stream_state; `state` costs as much as a branch point."""
        state = new_struct("token_trie_stream_state")
        self.native.look(lib.token_trie_stream_get_state, state)
        return state

    def answer(self, query: Query, prefix: Sequence[int] | None = None) -> Answer:
        """Answer a query after the sequence, or whole answers after a prefix in its place.

        The tokens of a decoding become part of the sequence. Without a seed, its draws are the next of the stream.

        Raises
        ------
        ArgumentError
            There is no token to go on from, or the query cannot be answered here.
        ContextError
            The answer does not fit the context, or the model's graph has no hidden state that can be read.
        CancelledError
            It was cancelled meanwhile.
        """
        native = query.native(continues=True, **self.steps.defaults)
        after = ffi.NULL if prefix is None else ffi.from_buffer("llama_token[]", np.array(prefix, np.int32))
        out = ffi.new("struct token_trie_answer **")
        arguments = after, 0 if prefix is None else len(prefix), native, out
        if query.is_decoded:
            is_short = query.mode != "text" and query.trie is not None and query.trie.core.max_length <= _SHORT
            self.steps.decode(lib.token_trie_stream_answer, *arguments, is_short=is_short)
        else:
            self.steps.run(lib.token_trie_stream_answer, *arguments)
        return read_answer(out[0])

    def hidden_state(self) -> npt.NDArray[np.float32]:
        """Return that of the sequence's last token, shape (n_embd,); errors as of `answer`."""
        return self.answer(Query("state")).state

    @property
    def is_cancelled(self) -> bool:
        """Whether what ended last was cancelled."""
        return self.steps.is_cancelled or self.raw_state.stop == lib.TOKEN_TRIE_STOP_CANCELLED

    def items(self) -> list[Item]:
        """Members that the span has produced."""

        def read(stream: Any) -> int:
            status = 0
            item = new_struct("token_trie_item")
            for i in range(n):
                status = status or int(lib.token_trie_stream_get_item(stream, i, item))
                found.append(Item(int(item.leaf), int(item.begin), int(item.end), float(item.logprob)))
            return status

        n = self.raw_state.n_items
        found: list[Item] = []
        self.native.call(read)
        return found


class Generation(Iterator[Step], AsyncIterator[Step]):
    """An iterator over the steps of one `StreamHandle.generate`; each step is computed when it is requested.

    From its first step on, it occupies the handle, until it ends, is closed, or is garbage-collected. In the meantime,
    another generation raises BusyError. So does a change of the handle by another thread than the one that requested
    the last step. With ``async for``, a worker thread computes the steps; if the task is cancelled, the stream is
    cancelled.
    """

    def __init__(self, stream: Stream, max_tokens: int, sampling: Sampling) -> None:
        if type(max_tokens) is not int:
            check_integers(max_tokens=max_tokens)
        self._steps = stream.steps
        self._reader = self._steps.reader(max_tokens, sampling)

    def __iter__(self) -> Generation:
        return self

    def __aiter__(self) -> Generation:
        return self

    def __next__(self) -> Step:
        reader = self._reader
        if reader.left <= 0:
            reader.require_kept()
            raise StopIteration
        thread = get_ident()
        steps = self._steps
        if steps.is_behind:
            step = interruptible(lambda: steps.step(reader, thread), steps.native.cancel)
            steps.is_behind = False
        else:
            step = steps.step(reader, thread, thread)
        if step is None:
            raise StopIteration
        return step

    async def __anext__(self) -> Step:
        reader, steps = self._reader, self._steps
        if reader.left <= 0:
            reader.require_kept()
            raise StopAsyncIteration
        asking = get_ident()
        try:
            step = await in_worker(lambda: steps.step(reader, asking), steps.cancel_of)
        except asyncio.CancelledError:
            self.close()  # whether or not there was a step, which nobody gets
            raise
        if step is None:
            raise StopAsyncIteration
        return step

    def close(self) -> None:
        """End it, so that the handle is free for other calls; what was generated stays in the sequence."""
        self._steps.dismiss(self._reader)

    async def aclose(self) -> None:
        """Do as `close` does."""
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a generation cannot be copied or pickled: its steps are of one stream")
