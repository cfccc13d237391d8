"""What a `StreamHandle` gives: steps, one after the other, each whole, all to one reader; and where it stands."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from token_trie.errors import ArgumentError, BusyError, TokenTrieError
from token_trie.ffi import check, ffi, lib, new_struct

if TYPE_CHECKING:
    from token_trie.stream import StreamHandle


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
    """"walking", "complete" or "escaped"; "none" without a trie."""
    n_items: int
    leaf: int | None
    """Index of the member finished last."""
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


STOPS = ("none", "max_tokens", "complete", "end", "callback", "cancelled")
SPANS = ("walking", "complete", "escaped", "none")


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
        self._token = new_struct("token_trie_token")
        self._stop = ffi.new("int32_t *")
        self._n_cancels = handle._n_cancels
        self._thread = 0  # that asked for the last step
        self._replaced = False

    def __iter__(self) -> Generation:
        return self

    def __aiter__(self) -> Generation:
        return self

    def __next__(self) -> Step:
        step = self._compute(get_ident()) if self._goes_on() else None
        if step is None:
            raise StopIteration
        return step

    async def __anext__(self) -> Step:
        if not self._goes_on():
            raise StopAsyncIteration
        work = asyncio.get_running_loop().run_in_executor(None, self._compute, get_ident())
        try:
            step = await asyncio.shield(work)
        except asyncio.CancelledError:
            while not work.done():
                # Again and again: it might come before the call has begun, and a task may be cancelled twice.
                self._handle.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([work], timeout=0.01)
            work.exception()
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

    def _goes_on(self) -> bool:
        if self._replaced:
            raise BusyError("this generation is over: another prompt took the place of its text")
        return self._left > 0

    def _compute(self, thread: int) -> Step | None:
        native = self._handle._native
        try:
            # As `NativeStream.call`, without its frame for each token.
            with native.enter():
                native.entered = get_ident()
                self._begin(thread)
                temperature, top_p = self._options
                check(lib.token_trie_stream_next(native.pointer, temperature, top_p, self._token, self._stop))
                return self._read()
        except _CancelledBetweenSteps:
            self._handle._cancelled = True
        except BusyError:
            raise
        except TokenTrieError:
            self.close()
            raise
        self.close()
        return None

    def _begin(self, thread: int) -> None:
        handle = self._handle
        owner = handle._generation()
        if owner is not None and owner is not self:
            raise BusyError(
                "another generation of this handle is under way; read it to its end, or close() it, and use one "
                "StreamHandle a thread"
            )
        if self._n_cancels != handle._n_cancels:
            raise _CancelledBetweenSteps
        handle._cancelled = False
        if owner is None:
            handle._generation = weakref.ref(self)
        self._thread = thread

    def _read(self) -> Step | None:
        token = self._token
        if self._stop[0] == lib.TOKEN_TRIE_STOP_MAX_TOKENS and self._left > 1:
            self._left -= 1
        else:
            self.close()
        if token.id < 0:
            return None
        text = ffi.buffer(token.text, token.text_len)[:].decode()
        return Step(token.id, text, token.logprob, bool(token.forced))


class _CancelledBetweenSteps(Exception):  # noqa: N818
    """Where the native side has nothing to cancel."""
