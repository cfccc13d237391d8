"""What a `StreamHandle` gives: steps, one after the other, each whole, all to one reader; and where it stands."""

from __future__ import annotations

import asyncio
import struct
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from token_trie.errors import ArgumentError, BusyError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.contexts import interruptible
from token_trie.native.ffi import check, ffi, lib

if TYPE_CHECKING:
    from token_trie.llama.stream import StreamHandle
    from token_trie.sets.trie import TokenTrie


class Step(NamedTuple):
    """One token."""

    token: int
    """Its id."""
    text: str
    """The characters it completes; ``""`` if it ends inside one."""
    logprob: float
    """Natural logarithm of its share among the allowed tokens; 0 if forced, NaN in free text."""
    forced: bool
    """Whether it was the only token allowed."""


@dataclass(frozen=True)
class StreamState:
    """Where a stream stands. Counts are since it was opened."""

    stop: str
    """Why the last `generate` ended: "none", "max_tokens", "complete", "end", "callback" or "cancelled"."""
    span: str
    """"thinking", "walking", "complete" or "escaped"; "none" without a trie."""
    n_items: int
    leaf: int | None
    """Index of the member finished last,"""
    name: str | None
    """and its name."""
    logprob: float
    """Of this span: the sum over its branch points, ends among them."""
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
    """Tokens that the context has room for; it grows when more are needed,"""
    n_context_max: int
    """to so many."""
    cache_bytes: int
    """Memory of the context's cache; 0 until something is evaluated."""
    n_taken_over: int
    """Tokens that were not evaluated because the Llama had."""
    n_closed: int
    """Lists that `max_span` ended."""
    n_on_device: int
    """Passes whose branch point was decided by what the device alone had gathered."""
    ending: str
    """Why the span is over behind the member finished last, known as soon as nothing but its end may come: "token",
    "max_items", "none_left" or "max_span"; "none" as long as a member may go on or begin."""


STOPS = ("none", "max_tokens", "complete", "end", "callback", "cancelled", "string")
ENDINGS = ("none", "token", "max_items", "none_left", "max_span")
SPANS = ("walking", "complete", "escaped", "thinking", "none")


def state_of(state: Any, cancelled: bool, trie: TokenTrie | None) -> StreamState:
    """Read a struct token_trie_stream_state; cancelled where that happened between two steps."""
    leaf = None if state.leaf < 0 else int(state.leaf)
    counts = [field.name for field in fields(StreamState) if field.type == "int" and field.name != "n_items"]
    return StreamState(
        stop="cancelled" if cancelled else STOPS[state.stop],
        span=SPANS[state.span],
        ending=ENDINGS[state.ending],
        n_items=state.n_items,
        leaf=leaf,
        name=None if leaf is None or trie is None else trie.core.name(leaf),
        logprob=float(state.logprob),
        **{name: int(getattr(state, name)) for name in counts},
    )


class Generation(Iterator[Step], AsyncIterator[Step]):
    """Steps of one `StreamHandle.generate`, each computed when it is asked for.

    From its first step on it has the handle for itself: until it ends, is closed, or is garbage, another generation
    raises BusyError, and so does what changes the handle from another thread than the one that asked for the last step.
    Under ``async for`` a worker thread computes; a task cancelled meanwhile cancels the stream.
    """

    def __init__(self, handle: StreamHandle, max_tokens: int, temperature: float, top_p: float) -> None:
        self._handle = handle
        self._left = max_tokens
        self._options = temperature, top_p
        self._claim: weakref.ref[Generation] | None = None  # what stands in the handle while it is this one's
        self._n_cancels = handle._n_cancels
        self._thread = 0  # that asked for the last step
        self._replaced = False

    def __iter__(self) -> Generation:
        return self

    def __aiter__(self) -> Generation:
        return self

    def __next__(self) -> Step:
        if self._left <= 0:
            self._require_kept()
            raise StopIteration
        thread = get_ident()
        handle = self._handle
        if handle._is_behind:
            # Much may have to be evaluated first.
            step = interruptible(lambda: self._compute(thread), handle._native.cancel)
            handle._is_behind = False
        else:
            step = self._compute(thread, thread)
        if step is None:
            raise StopIteration
        return step

    async def __anext__(self) -> Step:
        if self._left <= 0:
            self._require_kept()
            raise StopAsyncIteration
        asking = get_ident()
        try:
            step = await in_worker(lambda: self._compute(asking), self._handle._cancel_of)
        except asyncio.CancelledError:
            self.close()  # whether or not there was a step, which nobody gets
            raise
        if step is None:
            raise StopAsyncIteration
        return step

    def close(self) -> None:
        """End it, so that the handle is free for other calls; what was generated stays in the sequence."""
        self._left = 0
        self._handle._release(self)

    async def aclose(self) -> None:
        """Do as `close` does."""
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a generation cannot be copied or pickled: its steps are of one stream")

    def _require_kept(self) -> None:
        if self._replaced:
            raise BusyError("this generation is over: other text took the place of its own")

    def _compute(self, asking: int, entering: int = 0) -> Step | None:
        """Make a step, which a thread asks for, maybe of another; as `NativeStream.call`, but with less on the way."""
        handle = self._handle
        native = handle._native
        lock = native.lock
        if lock.locked() or native.owner:
            native.enter()
        try:
            with lock:
                if native._closing:
                    native.enter()
                native.entered = entering or get_ident()
                try:
                    # In this very frame, as a call costs as much as a third of a step.
                    claim = self._claim
                    if claim is None or handle._generation is not claim:
                        if self._left <= 0:  # another thread took the last step since this one looked
                            self._require_kept()
                            return None
                        self._begin()
                    if self._n_cancels != handle._n_cancels:
                        raise _CancelledBetweenSteps
                    self._thread = asking
                    temperature, top_p = self._options
                    token, bytes_of, stop = handle._token
                    if native.listen is nullcontext:
                        status = _next(native.pointer, temperature, top_p, token, stop)
                    else:
                        with native.listen():
                            status = _next(native.pointer, temperature, top_p, token, stop)
                    if status < 0:
                        check(status)
                    if stop[0] == GOES_ON and self._left > 1:
                        self._left -= 1
                    else:
                        self._left = 0
                        handle._release(self)
                    _, token_id, forced, logprob, n_bytes = _FIELDS(bytes_of)
                    if token_id < 0:
                        return None
                    text = _unpack(token.text, n_bytes).decode()
                    return _new(Step, (token_id, text, logprob, forced == 1))
                finally:
                    native.entered = 0
        except _CancelledBetweenSteps:
            handle._cancelled = True
        except BusyError:
            raise
        except Exception:
            self.close()
            raise
        self.close()
        return None

    def _begin(self) -> None:
        handle = self._handle
        if handle._generation() is not None:
            raise BusyError(
                "another generation of this handle is under way; read it to its end, or close() it, and use one "
                "StreamHandle a thread"
            )
        handle._cancelled = False
        handle._n_changes += 1
        self._claim = handle._generation = weakref.ref(self)


_TOKEN = ffi.typeof("struct token_trie_token *")
_TOKEN_SIZE = ffi.sizeof("struct token_trie_token")
_STOP = ffi.typeof("int32_t *")
_FIELDS = struct.Struct("NiifN").unpack_from  # all before its text, in one look
_next = lib.token_trie_stream_next
_unpack = ffi.unpack
_new = tuple.__new__


def new_token() -> tuple[Any, Any, Any]:
    """Make what token_trie_stream_next fills: a token, and the reason to stop."""
    token = ffi.new(_TOKEN)
    token.size = _TOKEN_SIZE
    return token, ffi.buffer(token), ffi.new(_STOP)


GOES_ON = lib.TOKEN_TRIE_STOP_MAX_TOKENS


class _CancelledBetweenSteps(Exception):  # noqa: N818
    """Where the native side has nothing to cancel."""
