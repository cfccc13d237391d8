"""Long native calls that an interrupt from the keyboard ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from threading import get_ident
from typing import TypeVar

T = TypeVar("T")


def interruptible(call: Callable[[], T], cancel: Callable[[], None]) -> T:
    """Make a long native call so that an interrupt from the keyboard, which only the main thread hears, ends it.

    A worker thread then makes it. When the interrupt goes on its way, the call has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    future: Future[T] = Future()
    try:
        threading.Thread(target=_work, args=(future, call, acting_thread()), daemon=True).start()
        while not future.done():
            # Only for so long: a signal that came just before the wait, or to another thread, ends none.
            with contextlib.suppress(FutureTimeoutError):
                future.exception(timeout=0.1)
        return future.result()
    except BaseException:
        while not (future.done() or future.cancel()):
            with contextlib.suppress(BaseException):  # one interrupt is as good as many
                # Again and again: it might come before the call has begun.
                cancel()
                wait([future], timeout=0.01)
        raise
    finally:
        del future  # which may hold an exception, and that this very frame


_acting = threading.local()


def acting_thread() -> int:
    """Return the thread that asks: of a worker of `interruptible`, the one it works for."""
    return getattr(_acting, "thread", 0) or get_ident()


def _work(future: Future[T], call: Callable[[], T], thread: int) -> None:
    _acting.thread = thread
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
