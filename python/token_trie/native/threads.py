"""Threads that make native calls: those of OpenMP are released, and Ctrl-C ends a call."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from queue import SimpleQueue
from threading import get_ident
from typing import Any, TypeAlias, TypeVar

from token_trie.errors import LlamaVersionError
from token_trie.native.core import llama_cpp
from token_trie.native.llama_facts import library_of

T = TypeVar("T")

_OMP_PAUSE_SOFT = 1
_is_forked = False  # OpenMP waits in vain for threads that are in the parent process


@functools.cache
def _pause_openmp() -> Callable[[int], object] | None:
    """Return omp_pause_resource_all of the OpenMP that llama.cpp is linked with; None without one."""
    try:
        pause: Callable[[int], object] = library_of(llama_cpp)[0]["omp_pause_resource_all"]
    except (AttributeError, LlamaVersionError):
        return None
    return pause


def release_threads(*, but_main: bool = False) -> None:
    """End the OpenMP threads that llama.cpp has for the calling thread; its next pass starts them again.

    Every thread that evaluates, or loads a model with AMX, keeps some. GNU's OpenMP counts all of them: if there are
    more than processors, each goes to sleep at every operation of a pass, which then takes up to four times as long.
    With `but_main`, this does nothing in the main thread, which often evaluates again soon.
    """
    pause = _pause_openmp()
    if pause is not None and not _is_forked and not (but_main and is_main_thread()):
        pause(_OMP_PAUSE_SOFT)


def and_release_threads(call: Callable[[], T]) -> T:
    """Make a call, and release the threads that it has started."""
    try:
        return call()
    finally:
        release_threads()


def is_main_thread() -> bool:
    """Whether this is the thread that gets signals."""
    return threading.current_thread() is threading.main_thread()


def interruptible(call: Callable[[], T], cancel: Callable[[], None]) -> T:
    """Make a long native call that Ctrl-C ends, before KeyboardInterrupt is raised.

    Only the main thread gets signals, so a worker thread makes the call for it.
    """
    if not is_main_thread():
        return call()
    release_threads()  # the worker starts its own
    future: Future[T] = Future()
    try:
        _worker().put((future, call, acting_thread()))
        while not future.done():
            # With a timeout, because a signal just before the wait, or in another thread, does not end the wait.
            with contextlib.suppress(FutureTimeoutError):
                future.exception(timeout=0.1)
        return future.result()
    except BaseException:
        while not (future.done() or future.cancel()):
            with contextlib.suppress(BaseException):  # one interrupt is enough
                # Repeatedly, because the call may not have begun yet.
                cancel()
                wait([future], timeout=0.01)
        raise
    finally:
        del future  # the exception in it may refer to this frame


_acting = threading.local()


def acting_thread() -> int:
    """Return the calling thread; in a worker of `interruptible`, the thread that it works for."""
    return getattr(_acting, "thread", 0) or get_ident()


_Task: TypeAlias = tuple[Future[Any], Callable[[], Any], int]
_idle: list[SimpleQueue[_Task]] = []  # idle workers; a signal handler that chooses needs a second one


def _worker() -> SimpleQueue[_Task]:
    with contextlib.suppress(IndexError):
        return _idle.pop()
    tasks: SimpleQueue[_Task] = SimpleQueue()
    threading.Thread(target=_work, args=(tasks,), name="token-trie interruptible", daemon=True).start()
    return tasks


def _work(tasks: SimpleQueue[_Task]) -> None:
    while True:
        future, call, _acting.thread = tasks.get()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(and_release_threads(call))
            except BaseException as error:
                future.set_exception(error)
        del future, call
        _idle.append(tasks)


def _after_fork() -> None:
    global _is_forked
    _is_forked = True
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
