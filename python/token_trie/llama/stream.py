"""One sequence of a model in a context of its own, and token-by-token generation for one reader at a time."""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from token_trie.errors import ArgumentError, BusyError, TokenTrieError
from token_trie.llama.contexts import (
    StreamOptions,
    common_prefix,
    import_prefix,
    native_options,
    open_file,
    open_on,
)
from token_trie.llama.native_stream import NativeStream, close_with, wait_for_dropped
from token_trie.llama.query import (
    Answer,
    Query,
    Sampling,
    SpanOptions,
    StepMode,
    native_sampling,
    read_answer,
    read_span,
    take_raised,
)
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.ffi import c_strings, check, ffi, lib, new_struct
from token_trie.native.lifetime import attachment
from token_trie.native.options import check_integers, encode
from token_trie.native.threads import interruptible
from token_trie.sets.payload import json_of
from token_trie.sets.prompt import Prompt, tokenize_alone, tokenize_prompt
from token_trie.sets.trie import TokenTrie


class GeneratedToken(NamedTuple):
    """One token."""

    token: int
    """The token id."""
    text: str
    """The characters that it completes; ``""`` if it ends inside a character."""
    logprob: float
    """Natural logarithm of its probability among the allowed tokens; 0 if forced, NaN in free text."""
    forced: bool
    """Whether it was the only token allowed."""


@dataclass(frozen=True)
class StreamState:
    """The state of a stream. Counts begin when it is opened."""

    stop: str
    """Why the last `generate` ended: "none", "max_tokens", "complete", "end", "callback", "cancelled" or "string"."""
    span: str
    """"thinking", "constrained", "complete" or "escaped"; "none" without a trie."""
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
    n_states_max: int
    """Number of states of a recurrent or hybrid model for which the context can have space; 0 for other models."""
    state_bytes: int
    """Memory of one state."""
    ending: str
    """Why the span ends after the member that was finished last: "token", "max_items", "none_left" or "max_span";
    "none" as long as a member can continue or begin."""


STOPS = ("none", "max_tokens", "complete", "end", "callback", "cancelled", "string")
ENDINGS = ("none", "token", "max_items", "none_left", "max_span")
SPANS = ("constrained", "complete", "escaped", "thinking", "none")


def state_of(state: Any, is_cancelled: bool, trie: TokenTrie | None) -> StreamState:
    """Read a struct token_trie_stream_state; `is_cancelled`: whether it was cancelled between two steps."""
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


def _go_on(_token: Any, _user: Any) -> bool:
    """Continue; Python raises an interrupt between two tokens."""
    return True


def _none() -> None:
    """Replace a weak reference if there is no object."""


_fields_of = struct.Struct("NiifN").unpack_from  # the members of struct token_trie_token before its text
_next = lib.token_trie_stream_next
_unpack = ffi.unpack
_new = tuple.__new__
_GOES_ON = lib.TOKEN_TRIE_STOP_MAX_TOKENS


T = TypeVar("T")

_DEFAULTS = StreamOptions()
_DEFAULT_SPAN = SpanOptions()
# Longer work runs on a worker thread, so that Ctrl-C ends it; the thread costs milliseconds.
_MAX_QUICK_PREFILL = 32
_MAX_QUICK_ANSWER = 16
_MAX_QUICK_NODES = 32


class Stream:
    """One sequence of a model. A call during another one raises BusyError.

    So does a call that would change the text while another thread reads it. Any thread may call `cancel` and `close` at
    any time; they end the running call. The stream is closed when it is dropped, and before its model. `keeps_llm`:
    whether it keeps the Llama alive; a stream attached to the Llama must not.
    """

    def __init__(
        self, llm: Llama | str | os.PathLike[str], *, keeps_llm: bool = True, options: StreamOptions = _DEFAULTS
    ) -> None:
        self._set: tuple[TokenTrie, Any] | None = None  # the current trie, and a struct token_trie_params
        self._continues = keeps_llm  # whether random draws without a seed go on from call to call
        self._default_spans: dict[StepMode | None, Any] = {}  # checked once
        self._sets: dict[str | None, TokenTrie] = {}  # the payload's sets, by path
        self._known: dict[object, Any] = {}  # results about the model of a file
        self._like: Callable[[], Llama | None] = _none  # a weak reference to the Llama
        self._prompt = np.empty(0, np.int32)  # the beginning of the sequence
        params = native_options(options)
        wait_for_dropped()
        if isinstance(llm, (str, os.PathLike)):
            native = open_file(encode(os.fspath(llm), "llm"), params)
        else:
            native = open_on(llm, attachment(llm), options.n_ctx, params)
            self._like = weakref.ref(llm)
        self._kept = llm if keeps_llm else None
        self._penalties = options.penalties  # as for `native_sampling`
        self._sampling = Sampling()  # as the native stream samples, without its seed
        self._begin(native)

    def _begin(self, native: NativeStream) -> None:
        self.native = native
        close_with(self, native)
        self.n_cancels = 0
        """Number of calls of `cancel`."""
        self.has_backlog = False
        """Whether the next step may evaluate many tokens."""
        self._n_changes = 0  # that affect a reader
        self._is_cancelled = False  # between two native calls
        self._reader: Callable[[], Generation | None] = _none  # a weak reference
        self._token = ffi.new("struct token_trie_token *")
        self._token.size = ffi.sizeof("struct token_trie_token")
        self._token_bytes = ffi.buffer(self._token)
        self._stop = ffi.new("int32_t *")

    def fork(self) -> Stream:
        """Make a second stream that continues from here, as of `StreamHandle.fork`."""
        wait_for_dropped()
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._default_spans = {}
        other._begin(self.native.fork())
        return other

    def close(self) -> None:
        """End the running call of another thread, and free the stream."""
        self.native.close()

    # Ownership and cancellation.

    def own(self) -> AbstractContextManager[None]:
        """Exclude other threads for several calls; BusyError if another thread is inside."""
        return self.native.own()

    def cancel(self) -> None:
        """End the running call of another thread, and any generation that has begun, within one forward pass."""
        self.n_cancels += 1
        self.native.cancel()

    @contextmanager
    def transaction(self) -> Iterator[list[int]]:
        """Own the stream and yield its sequence; after an error, restore the sequence and the trie."""
        with self.native.own():
            before = self.tokens
            span, n_changes = self._set, self._n_changes
            try:
                yield before
            except BaseException:
                if self._n_changes == n_changes:
                    raise  # and a span or grammar does not restart
                with suppress(TokenTrieError):
                    n_same = common_prefix(self.tokens, before)
                    self.splice(n_same, before[n_same:])
                    if span is None:
                        self.clear_span()
                    else:
                        self.set_span(span)
                raise

    # The model.

    @property
    def llm(self) -> Llama | None:
        """The Llama; None for a file."""
        return self._like()

    @property
    def n_ctx_max(self) -> int:
        """Largest number of tokens."""
        return self.native.n_ctx_max

    def with_vocab(self, use: Callable[[_core.Vocab], T]) -> T:
        """Call a function with the vocabulary, which stays valid meanwhile."""
        return self.native.with_vocab(use)

    def with_model(self, use: Callable[[_core.Vocab, dict[object, Any]], T]) -> T:
        """Call a function with the vocabulary, and with the results kept about the model."""
        llm = self._like()
        if llm is None:
            return self.native.with_vocab(lambda vocab: use(vocab, self._known))
        return use(vocab_of(llm), attachment(llm).known)

    def tokenize(self, prompt: Prompt, *, thinks: bool = False) -> list[int]:
        """Return the tokens of a prompt, as `tokenize_prompt`; errors as of `StreamHandle.prefill`."""
        llm = self._like()
        if llm is None:
            return self.native.with_vocab(lambda vocab: tokenize_alone(vocab, prompt))
        return tokenize_prompt(llm, prompt, self.n_ctx_max, thinks=thinks)

    # The sequence.

    @property
    def tokens(self) -> list[int]:
        """Tokens of the sequence."""

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
        """Replace the sequence by tokens and evaluate them, as of `StreamHandle.prefill`."""
        prompt = np.array(tokens, np.int32)
        buffer = ffi.from_buffer("llama_token[]", prompt)
        thread = get_ident()

        def before() -> None:
            self._check_reader(thread)
            llm = self._like()
            if llm is not None:
                import_prefix(self.native.pointer, llm, prompt, common_prefix(self._prompt, prompt))

        def after() -> None:
            self._n_changes += 1
            self._end_reader()
            self._prompt = prompt

        prefill = lib.token_trie_stream_prefill
        call = partial(self.native.call, prefill, buffer, len(prompt), before=before, after=after)
        try:
            if len(prompt) > _MAX_QUICK_PREFILL:
                interruptible(call, self.native.cancel)
            else:
                call()
        except BaseException:
            self.has_backlog = True  # tokens removed from the cache are evaluated again
            raise
        self.has_backlog = False

    def splice(self, n_kept: int, tokens: Sequence[int]) -> None:
        """Replace the tokens after the first n_kept; trie and grammar restart."""
        array = np.array(tokens, np.int32)

        def replaced() -> None:
            self._end_reader()
            self._prompt = self._prompt[:n_kept]
            self.has_backlog |= len(array) > _MAX_QUICK_PREFILL

        self._change(
            lib.token_trie_stream_splice,
            n_kept,
            ffi.from_buffer("llama_token[]", array) if len(array) else ffi.NULL,
            len(array),
            after=replaced,
        )

    # Tries and grammars.

    def set_payload(self, payload: str | bytes | Mapping[str, Any] | None) -> None:
        """Set the payload, as of `StreamHandle.set_payload`."""
        sets: dict[str | None, TokenTrie] = {}
        if payload is not None:
            read = json_of(payload)
            tries = self.native.with_vocab(lambda vocab: _core.tries_by_path(read, vocab))
            sets |= {path: TokenTrie.of_core(trie) for path, trie in tries.items()}
        self._sets = sets

    def given(self, choices: T | None, path: str | None) -> T | TokenTrie | None:
        """Return the choices, or the set of a path; ArgumentError if both are given."""
        if path is not None and choices is not None:
            raise ArgumentError("choices and path: one of the two")
        return choices if path is None else self._set_of(path)

    def read_set(self, trie: TokenTrie | str | bytes | Mapping[str, Any] | None, path: str | None) -> TokenTrie:
        """Return a trie, the set of a payload, or without these the set of a path."""
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

    def set_trie(self, trie: TokenTrie, mode: StepMode | None = None, rules: SpanOptions = _DEFAULT_SPAN) -> None:
        """Constrain the following tokens by a trie, from its root."""
        native = self._default_spans.get(mode) if rules is _DEFAULT_SPAN else None
        if native is None:
            native = self.native.with_vocab(lambda vocab: read_span(vocab, mode, rules))
            if rules is _DEFAULT_SPAN:
                self._default_spans[mode] = native
        self.set_span((trie, native))

    def set_span(self, span: tuple[TokenTrie, Any]) -> None:
        """Constrain the following tokens by a trie with checked rules, from its root."""
        set_trie = lib.token_trie_stream_set_token_trie
        self._change(set_trie, span[0].c_set, span[1], after=lambda: self._keep_span(span))

    def clear_span(self) -> None:
        """Remove the trie; a grammar set before applies again."""
        self._change(lib.token_trie_stream_clear_token_trie, after=lambda: self._keep_span(None))

    def _keep_span(self, span: tuple[TokenTrie, Any] | None) -> None:
        self._set = span

    def set_grammar(self, gbnf: str | None, root: str = "root") -> None:
        """Set or remove the grammar, as of `StreamHandle.set_grammar`; after a GrammarError the old one is kept."""
        text = ffi.NULL if gbnf is None else encode(gbnf, "gbnf")
        self._change(lib.token_trie_stream_set_grammar, text, encode(root, "root"))

    def set_seed(self, seed: int | None) -> None:
        """Restart random draws from a seed; None: a new seed each time."""
        sampling = replace(self._sampling, seed=seed)
        self._change(lib.token_trie_stream_set_sampling, native_sampling(sampling, draws=False, **self._penalties))

    # State and queries.

    @property
    def state(self) -> StreamState:
        """The state of the stream."""
        held = self._set
        state = self.raw_state
        return state_of(state, self._is_cancelled, None if held is None or held is not self._set else held[0])

    @property
    def raw_state(self) -> Any:
        """The struct token_trie_stream_state; `state` takes as long as a branch point."""
        state = new_struct("token_trie_stream_state")
        self.native.look(lib.token_trie_stream_get_state, state)
        return state

    def answer(self, query: Query, prefix: Sequence[int] | None = None) -> Answer:
        """Answer a query after the sequence, or after a prefix instead if the query scores whole answers.

        Generated tokens are added to the sequence. Without a seed, the random draws of a handle continue.
        ArgumentError for an empty sequence or a query that cannot be answered here; ContextError if the answer does not
        fit the context, or the model's graph has no hidden state that can be read; CancelledError.
        """
        native = query.native(is_alone=True, continues=self._continues, **self._penalties)
        after = ffi.NULL if prefix is None else ffi.from_buffer("llama_token[]", np.array(prefix, np.int32))
        out = ffi.new("struct token_trie_answer **")
        arguments = after, 0 if prefix is None else len(prefix), native, out
        if query.is_decoded:
            is_heard = query.until is not None  # Python raises an interrupt between two tokens
            is_short = is_heard or (
                query.mode != "text" and query.trie is not None and query.trie.core.max_length <= _MAX_QUICK_ANSWER
            )
            raised = None

            def decode(stream: Any, *arguments: Any) -> int:
                nonlocal raised
                status = int(lib.token_trie_stream_answer(stream, *arguments))
                raised = take_raised()
                return status

            self._decode(decode if is_heard else lib.token_trie_stream_answer, *arguments, is_short=is_short)
            if raised is not None:
                lib.token_trie_answer_free(out[0])
                raise raised
        else:
            call = partial(self.native.call, lib.token_trie_stream_answer, *arguments)  # changes nothing
            is_short = query.trie is not None and query.trie.core.n_nodes <= _MAX_QUICK_NODES
            self._run(call, is_short=is_short)
            if prefix is None:
                self.has_backlog = False  # the sequence was evaluated
        return read_answer(out[0])

    # Calls that affect a reader, and its steps.

    def _change(
        self,
        function: Callable[..., int],
        *arguments: Any,
        after: Callable[[], None] | None = None,
        thread: int = 0,
    ) -> None:
        """Make a call of the ABI that affects a reader; BusyError if another thread is reading."""
        thread = thread or get_ident()

        def changed() -> None:
            self._n_changes += 1
            if after is not None:
                after()

        self.native.call(function, *arguments, before=lambda: self._check_reader(thread), after=changed)

    def _check_reader(self, thread: int) -> None:
        """Raise BusyError if another thread than this one is reading."""
        reader = self._reader()
        if reader is not None and reader.thread != thread:
            raise BusyError("a generation that another thread reads is under way; use one StreamHandle a thread")

    def _end_reader(self) -> None:
        """End the reader, because its text is replaced."""
        reader = self._reader()
        if reader is not None:
            reader.is_replaced = True
            self.dismiss(reader)

    def dismiss(self, reader: Generation) -> None:
        """End a reader, so that another can begin."""
        reader.left = 0
        if self._reader() is reader:
            self._reader = _none

    def _draw_by(self, stream: Any, sampling: Sampling) -> int:
        """Set the sampling inside a call, without restarting its random draws; return the status."""
        if sampling == self._sampling:
            return 0
        native = native_sampling(sampling, draws=False, continues=True, **self._penalties)
        status = int(lib.token_trie_stream_set_sampling(stream, native))
        if status == 0:
            self._sampling = sampling
        return status

    def step(self, reader: Generation, caller: int, entering: int = 0) -> GeneratedToken | None:
        """Make a step for a calling thread, perhaps on another thread; None if the generation is over.

        This is `NativeStream.call` with less overhead, which would be a third of a step.
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
                        if reader.left <= 0:  # another thread took the last step meanwhile
                            reader.require_kept()
                            return None
                        self._admit(reader)
                        check(self._draw_by(native.pointer, reader.sampling))
                    if reader.n_cancels != self.n_cancels:
                        self._is_cancelled = True
                        self.dismiss(reader)
                        return None
                    reader.thread = caller
                    token, stop = self._token, self._stop
                    if native.logging is nullcontext:
                        status = _next(native.pointer, token, stop)
                    else:
                        with native.logging():
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
                    return _new(GeneratedToken, (token_id, text, logprob, forced == 1))
                finally:
                    native.entered = 0
        except BusyError:
            raise
        except Exception:
            self.dismiss(reader)
            raise

    def _admit(self, reader: Generation) -> None:
        if self._reader() is not None:
            raise BusyError(
                "another generation of this handle is under way; read it to its end, or close() it, and use one "
                "StreamHandle a thread"
            )
        self._is_cancelled = False
        self._n_changes += 1
        self._reader = weakref.ref(reader)

    def _decode(self, function: Callable[..., int], *arguments: Any, is_short: bool) -> None:
        """Make a call of the ABI that writes into the sequence; Ctrl-C ends it, unless it is short."""
        thread = get_ident()

        def call() -> None:
            self._change(function, *arguments, after=self._end_reader, thread=thread)

        self._run(call, is_short=is_short)
        self.has_backlog = False

    def _run(self, call: Callable[[], object], *, is_short: bool) -> None:
        """Make a call of the ABI, which Ctrl-C ends unless it is short and has no backlog to evaluate."""
        if is_short and not self.has_backlog:
            call()
        else:
            interruptible(call, self.native.cancel)

    def generate_until(self, stops: Sequence[str], max_tokens: int, sampling: Sampling) -> int | None:
        """Generate in one call until a stop string, which is removed again; return its index, or None.

        If free text comes before a span, only this text is generated, and the stop reason is "complete".
        """
        n_cancels = self.n_cancels
        strings, which = c_strings([text.encode() for text in stops]), ffi.new("int32_t *", -1)
        raised: list[BaseException] = []
        go_on = ffi.callback("token_trie_on_token", _go_on, onerror=lambda _type, error, _trace: raised.append(error))

        def run(stream: Any) -> int:
            self._end_reader()  # even if it fails midway
            self._is_cancelled = n_cancels != self.n_cancels
            if self._is_cancelled:
                return 0
            text = len(stops), go_on, ffi.NULL, which
            status = self._draw_by(stream, sampling)
            return status or int(lib.token_trie_stream_generate_until(stream, max_tokens, strings, *text))

        self._decode(run, is_short=True)  # the callback raises interrupts between two tokens
        if raised:
            raise raised[0]
        return None if which[0] < 0 else int(which[0])


class Generation(Iterator[GeneratedToken]):
    """An iterator over the steps of one `StreamHandle.generate`; each step is computed when it is requested.

    From its first step on, it occupies the handle, until it ends, is closed, or is garbage-collected. In the meantime,
    another generation raises BusyError. So does a change of the handle by another thread than the one that requested
    the last step.
    """

    def __init__(self, stream: Stream, max_tokens: int, sampling: Sampling) -> None:
        if type(max_tokens) is not int:
            check_integers(max_tokens=max_tokens)
        self._stream = stream
        self.left = max_tokens
        """Remaining number of tokens."""
        self.sampling = sampling
        self.n_cancels = stream.n_cancels
        """That of the stream at the start."""
        self.thread = 0
        """The thread that requested the last step."""
        self.is_replaced = False
        """Whether other text has replaced its own."""

    def require_kept(self) -> None:
        """Raise BusyError if other text has replaced this generation's."""
        if self.is_replaced:
            raise BusyError("this generation is over: other text took the place of its own")

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> GeneratedToken:
        if self.left <= 0:
            self.require_kept()
            raise StopIteration
        thread = get_ident()
        stream = self._stream
        if stream.has_backlog:
            step = interruptible(lambda: stream.step(self, thread), stream.native.cancel)
            stream.has_backlog = False
        else:
            step = stream.step(self, thread, thread)
        if step is None:
            raise StopIteration
        return step

    def close(self) -> None:
        """End the generation, so that the handle is free for other calls; its tokens stay in the sequence."""
        self._stream.dismiss(self)

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a generation cannot be copied or pickled: its steps are of one stream")
