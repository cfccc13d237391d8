"""Streams of handles that are dropped unclosed: a thread of its own frees them.

A weak reference's callback that is Python may be interrupted from the keyboard like any code of the main thread, and
the interrupt is then lost. So the callback is a function in C, which runs none: it puts the reference into a queue.

    del handle  ->  queue  ->  thread: stream.close()
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from queue import SimpleQueue
from typing import Any

from token_trie.llama.native_stream import NativeStream

# Who opens a stream waits so long at most for the memory of those that were dropped before.
_WAIT_S = 1.0

_logger = logging.getLogger(__name__)
_making = threading.Lock()
_dropped: SimpleQueue[Any] | None = None
_open: set[_Owner] = set()


class _Owner(weakref.ref[Any]):
    """Of a stream."""

    __slots__ = ("native",)

    native: NativeStream


def close_with(handle: object, native: NativeStream) -> None:
    """Close a stream when a handle is dropped, or the process ends."""
    owner = _Owner(handle, _queue().put)
    owner.native = native
    _open.add(owner)


def wait_for_dropped() -> None:
    """Return when the streams of all handles that were dropped are freed."""
    if any(owner() is None for owner in list(_open)):
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
        _open.discard(item)


@atexit.register
def _close_all() -> None:
    for owner in list(_open):
        owner.native.close()


def _start_anew() -> None:
    global _dropped, _making
    _making, _dropped = threading.Lock(), None
    _open.clear()  # they belong to the process that this one was forked from


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
