"""A native stream: how it is entered, owned, cancelled and freed, also where its handle is dropped unclosed."""

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
from token_trie.native.core import _core
from token_trie.native.ffi import check, check_pointer, ffi, lib, new_struct
from token_trie.native.lifetime import Attachment, Closeable, acting_thread, interruptible, quiet

T = TypeVar("T")

_OWNED = "the stream is in the middle of several calls of another thread; use one StreamHandle a thread"


class NativeStream(Closeable):
    """A stream of the C ABI.

    `call` admits one thread at a time, and holds the others off until results are copied. `close` lets nothing new
    begin, cancels what is under way, waits until its results are copied too, and returns when all is freed, whoever
    else closes at the same time.
    """

    def __init__(self, pointer: Any, attached: Attachment | None = None) -> None:
        self.pointer = pointer
        self.lock = threading.Lock()
        self.entered = 0  # the thread that is inside a call
        self.owner = 0  # the thread that has it for several calls in a row
        self._n_owned = 0
        self._owning = threading.Lock()
        self._vocab: _core.Vocab | None = None
        state = new_struct("token_trie_stream_state")
        check(lib.token_trie_stream_get_state(pointer, state))
        self.n_ctx_max = int(state.n_context_max)
        # A Llama says whether it is verbose; a file's context is made again, with as many lines, when it grows.
        self.listen: Callable[[], AbstractContextManager[None]] = quiet if attached is None else nullcontext
        self._attached = attached
        self._applied = None if attached is None else attached.applied
        super().__init__("stream", set() if attached is None else attached.streams)

    def call(
        self,
        function: Callable[..., int],
        *arguments: Any,
        before: Callable[[], None] | None = None,
        after: Callable[[], T] | None = None,
    ) -> T | None:
        """Call a function of the ABI between two others; return what `after` does. BusyError during another."""
        thread = get_ident()
        with self.enter():
            self.entered = thread  # at once, as a signal's handler that closes comes behind any call
            try:
                self._require_open()
                if before is not None:
                    before()
                with self.listen():
                    status = function(self.pointer, *arguments)
                check(status)
                return None if after is None else after()
            finally:
                self.entered = 0

    def look(self, function: Callable[..., int], *arguments: Any) -> None:
        """Call a function of the ABI that only looks, and keeps nobody out meanwhile; BusyError as of `call`."""
        self.require_own_process()
        check(function(self.pointer, *arguments))

    def with_vocab(self, use: Callable[[_core.Vocab], T]) -> T:
        """Let work be done on the vocabulary, which stays for as long; BusyError as of `call`."""
        thread = get_ident()
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
        """Let nobody else in between the calls made meanwhile; BusyError where somebody is."""
        thread = acting_thread()
        is_owned = False
        try:
            with self._owning:
                if self.owner not in (0, thread):
                    raise BusyError(_OWNED)
                self.owner = thread
                self._n_owned += 1
                is_owned = True  # in one go with the count, as an interrupt comes behind calls alone
            yield
        finally:
            if is_owned:
                self._n_owned -= 1
                if self._n_owned == 0:
                    self.owner = 0

    def fork(self) -> NativeStream:
        """Make another that goes on from here, on the same context; BusyError as of `call`."""
        made: list[Any] = []

        def make(stream: Any) -> int:
            if self._attached is not None and self._attached.closed:
                raise ArgumentError("llm: this Llama is closed")  # by who closes each stream that there is
            made.append(lib.token_trie_stream_fork(stream))
            return 0 if made[0] != ffi.NULL else int(lib.token_trie_last_status())

        other = self.call(make, after=lambda: NativeStream(made[0], self._attached))
        assert other is not None
        return other

    def enter(self) -> threading.Lock:
        """Return the lock, unless it is taken, for a ``with``, which no interrupt can come in the middle of.

        Two that come within a microsecond may both get it, and one then waits for the other.
        """
        self._require_open()
        if self.owner and self.owner != acting_thread():
            raise BusyError(_OWNED)
        if self.lock.locked():
            self.require_own_process()
            raise BusyError("the stream is in a call already, of another thread or of its own callback")
        return self.lock

    def _require_open(self) -> None:
        if self.is_closing:
            raise ArgumentError("stream: closed")
        if self._attached is not None:
            self._attached.require(self._applied)

    def cancel(self) -> None:
        """End the call under way, if there is one."""
        if not self.is_disowned:
            lib.token_trie_stream_cancel(self.pointer)

    def shut(self) -> None:
        """Cancel the call under way, wait for its end, free the stream."""
        while self.lock.locked():
            # Again and again: it might come before the call has begun.
            lib.token_trie_stream_cancel(self.pointer)
            time.sleep(0.001)
        with self.lock:
            try:
                # On a thread that no interrupt comes to, as it would be lost in what llama.cpp logs.
                interruptible(self._free, lambda: None)
            finally:
                self.entered = 0

    def _free(self) -> None:
        self.entered = get_ident()
        with quiet():
            lib.token_trie_stream_close(self.pointer)
        self.forget()

    def is_entered_here(self) -> bool:
        """Whether this very thread is inside a call."""
        return self.lock.locked() and self.entered == get_ident()

    def disown(self) -> bool:
        """Forget it unfreed: it belongs to the process that this one was forked from."""
        super().disown()
        self.entered = 0
        self.lock = threading.Lock()
        self.lock.acquire()
        return False


# Who opens a stream waits so long at most for the memory of those that were dropped before.
_WAIT_S = 1.0

_logger = logging.getLogger(__name__)
_making = threading.Lock()
_dropped: SimpleQueue[Any] | None = None
_owners: set[_Owner] = set()


class _Owner(weakref.ref[Any]):
    """Of a stream."""

    __slots__ = ("native",)

    native: NativeStream


def close_with(handle: object, native: NativeStream) -> None:
    """Close a stream when a handle is dropped, or the process ends."""
    owner = _Owner(handle, _queue().put)
    owner.native = native
    _owners.add(owner)


def wait_for_dropped() -> None:
    """Return when the streams of all handles that were dropped are freed."""
    if any(owner() is None for owner in list(_owners)):
        freed = threading.Event()
        _queue().put(freed)
        freed.wait(_WAIT_S)


def _queue() -> SimpleQueue[Any]:
    global _dropped
    with _making:
        if _dropped is None:
            dropped: SimpleQueue[Any] = SimpleQueue()
            threading.Thread(target=_free, args=(dropped,), name="token-trie", daemon=True).start()
            _dropped = dropped
        return _dropped


def _free(dropped: SimpleQueue[Any]) -> None:
    while True:
        item = dropped.get()
        if isinstance(item, threading.Event):
            item.set()
            continue
        try:
            item.native.close()
        except Exception:
            _logger.exception("a stream that was dropped cannot be closed")
        _owners.discard(item)


@atexit.register
def _close_all() -> None:
    for owner in list(_owners):
        owner.native.close()


def _forget_dropped() -> None:
    global _dropped, _making
    _making, _dropped = threading.Lock(), None
    _owners.clear()  # they belong to the process that this one was forked from


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_dropped)
