"""Streams of the C ABI: one thread in a call at a time, closed by any thread, at the latest with their handles."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import SimpleQueue
from threading import get_ident
from typing import Any, TypeVar

from token_trie.errors import ArgumentError, BusyError
from token_trie.native.core import _core, quiet
from token_trie.native.ffi import check, check_pointer, ffi, lib, new_struct
from token_trie.native.lifetime import Attachment, Closeable
from token_trie.native.threads import acting_thread, interruptible, release_threads

T = TypeVar("T")

_OWNED = "the stream is in the middle of several calls of another thread; use one StreamHandle a thread"


class NativeStream(Closeable):
    """A stream of the C ABI.

    `call` admits one thread at a time, until its results are copied. `close` refuses new calls, cancels the running
    one, waits until its results are copied, and returns when the stream is freed, even if several threads close it.
    """

    def __init__(self, pointer: Any, attached: Attachment | None = None) -> None:
        self.pointer = pointer
        self.lock = threading.Lock()
        self.entered = 0  # the thread inside a call
        self.owner = 0  # the thread that owns it for several calls
        self._n_owned = 0
        self._owning = threading.Lock()
        self._vocab: _core.Vocab | None = None
        state = new_struct("token_trie_stream_state")
        check(lib.token_trie_stream_get_state(pointer, state))
        self.n_ctx_max = int(state.n_context_max)
        # A Llama has `verbose`. The context of a file logs many lines whenever it grows.
        self.logging: Callable[[], AbstractContextManager[None]] = quiet if attached is None else nullcontext
        self._attached = attached
        super().__init__("stream", set() if attached is None else attached.streams)

    def call(
        self,
        function: Callable[..., int],
        *arguments: Any,
        before: Callable[[], None] | None = None,
        after: Callable[[], T] | None = None,
    ) -> T | None:
        """Call a function of the ABI between `before` and `after`; return the result of `after`.

        Raises BusyError during another call.
        """
        thread = get_ident()
        with self.enter():
            self.entered = thread  # at once, because a signal handler that closes may run after any call
            try:
                self._require_open()
                if before is not None:
                    before()
                with self.logging():
                    status = function(self.pointer, *arguments)
                check(status)
                return None if after is None else after()
            finally:
                release_threads(but_main=True)
                self.entered = 0

    def look(self, function: Callable[..., int], *arguments: Any) -> None:
        """Call a function of the ABI that only reads, without excluding other threads."""
        self.require_own_process()
        check(function(self.pointer, *arguments))

    def with_vocab(self, use: Callable[[_core.Vocab], T]) -> T:
        """Call a function with the vocabulary, which stays valid meanwhile, also inside another call of this thread.

        BusyError as of `call`.
        """
        thread = get_ident()
        if self._vocab is not None and self.is_entered_here():
            return use(self._vocab)
        with self.enter():
            self.entered = thread
            try:
                self._require_open()
                address = check_pointer(lib.token_trie_stream_get_vocab(self.pointer))
                if self._vocab is None:
                    self._vocab = _core.Vocab(int(ffi.cast("uintptr_t", address)))
                return use(self._vocab)
            finally:
                self.entered = 0

    @contextmanager
    def own(self) -> Iterator[None]:
        """Exclude other threads for several calls; BusyError if another thread is inside."""
        thread = acting_thread()
        is_owned = False
        try:
            with self._owning:
                if self.owner not in (0, thread):
                    raise BusyError(_OWNED)
                self.owner = thread
                self._n_owned += 1
                is_owned = True  # no interrupt comes between this and the count, only after calls
            yield
        finally:
            if is_owned:
                self._n_owned -= 1
                if self._n_owned == 0:
                    self.owner = 0

    def fork(self) -> NativeStream:
        """Make another stream that continues from here, on the same context; BusyError as of `call`."""
        made: list[Any] = []

        def make(stream: Any) -> int:
            if self._attached is not None and self._attached.closed:
                raise ArgumentError("llm: this Llama is closed")  # which closes only the streams that exist
            made.append(lib.token_trie_stream_fork(stream))
            return 0 if made[0] != ffi.NULL else int(lib.token_trie_last_status())

        other = self.call(make, after=lambda: NativeStream(made[0], self._attached))
        assert other is not None
        return other

    def enter(self) -> threading.Lock:
        """Return the lock, if it is free, for a ``with``, in whose middle no interrupt can come.

        Two threads within a microsecond may both get it; one then waits for the other.
        """
        if self.owner and self.owner != acting_thread():
            raise BusyError(_OWNED)
        if self.lock.locked():
            self.require_own_process()
            self._require_open()
            raise BusyError("the stream is in a call already, of another thread or of its own callback")
        return self.lock

    def _require_open(self) -> None:
        self.require_own_process()
        if self.is_closing:
            raise ArgumentError("stream: closed")

    def cancel(self) -> None:
        """End the running call, if any."""
        if not self.is_forked:
            lib.token_trie_stream_cancel(self.pointer)

    def shut(self) -> None:
        """Cancel the running call, wait for its end, free the stream."""
        while self.lock.locked():
            # Repeatedly, because the call may not have begun yet.
            lib.token_trie_stream_cancel(self.pointer)
            time.sleep(0.001)
        with self.lock:
            try:
                # On a worker thread, because an interrupt would be lost in llama.cpp's log callback.
                interruptible(self._free, lambda: None)
            finally:
                self.entered = 0

    def _free(self) -> None:
        self.entered = get_ident()
        with quiet():
            lib.token_trie_stream_close(self.pointer)
        self.forget()

    def is_entered_here(self) -> bool:
        """Return whether this thread is inside a call."""
        return self.lock.locked() and self.entered == get_ident()


# Opening a stream waits at most this long until dropped ones are freed.
_MAX_WAIT_S = 1.0

_logger = logging.getLogger(__name__)
_making = threading.Lock()
_dropped: SimpleQueue[Any] | None = None
_owned: dict[weakref.ref[Any], NativeStream] = {}  # by their handles


def close_with(handle: object, native: NativeStream) -> None:
    """Close a stream when a handle is dropped or the process ends."""
    _owned[weakref.ref(handle, _queue().put)] = native


def wait_for_dropped() -> None:
    """Wait until the streams of all dropped handles are freed."""
    if any(handle() is None for handle in list(_owned)):
        freed = threading.Event()
        _queue().put(freed)
        freed.wait(_MAX_WAIT_S)


def _queue() -> SimpleQueue[Any]:
    global _dropped
    with _making:
        if _dropped is None:
            dropped: SimpleQueue[Any] = SimpleQueue()
            threading.Thread(target=_close_dropped, args=(dropped,), name="token-trie", daemon=True).start()
            _dropped = dropped
        return _dropped


def _close_dropped(dropped: SimpleQueue[Any]) -> None:
    while True:
        item = dropped.get()
        if isinstance(item, threading.Event):
            item.set()
            continue
        try:
            _owned[item].close()
        except Exception:
            _logger.exception("a stream that was dropped cannot be closed")
        _owned.pop(item, None)


@atexit.register
def _close_all() -> None:
    for native in list(_owned.values()):
        native.close()


def _forget_dropped() -> None:
    global _dropped, _making
    _making, _dropped = threading.Lock(), None
    _owned.clear()  # they belong to the parent process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_dropped)
