"""Lifetimes of native objects: closing from any thread, leases on a `Llama`, native calls that Ctrl-C ends."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, ExitStack, contextmanager
from queue import SimpleQueue
from threading import get_ident
from typing import Any, TypeAlias, TypeVar

from token_trie.errors import ArgumentError, LlamaVersionError
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.llama_facts import exit_stacks, library_of, model_of, n_callbacks, set_exit_stack
from token_trie.native.loaded import NOTHING, SETTINGS, Applied, applied_to, context_address


class Closeable(ABC):
    """A native object that any thread may close; `what` is its name in messages.

    It is added to `siblings`, the open objects of the same Llama, and removed when it is freed.
    """

    def __init__(self, what: str, siblings: set[Closeable]) -> None:
        self.is_closing = False
        self.is_freed = False
        self.is_disowned = False  # it belongs to the parent of this forked process
        self._what = what
        self._siblings = siblings
        siblings.add(self)
        _all_open.add(self)

    def require_own_process(self) -> None:
        """Raise ArgumentError in a forked process."""
        if self.is_disowned:
            raise ArgumentError(f"{self._what}: opened before this process was forked; open one of its own")

    @abstractmethod
    def is_entered_here(self) -> bool:
        """Whether this thread is inside a call."""

    @abstractmethod
    def cancel(self) -> None:
        """End the running call, if any."""

    def close(self) -> None:
        """End the running call, wait for it, free; closing twice does nothing."""
        if self.is_disowned or self.is_freed:
            return
        if self.is_entered_here():
            # In a signal handler or log callback, which cannot wait for the end of its own call.
            if not self.is_closing:
                threading.Thread(target=self.close, daemon=True).start()
            return
        self.is_closing = True
        self.shut()

    @abstractmethod
    def shut(self) -> None:
        """End the running call, wait for it, free, and call `forget`."""

    def forget(self) -> None:
        """Record that it is freed."""
        self.is_freed = True
        self._siblings.discard(self)
        _all_open.discard(self)

    def disown(self) -> bool:
        """Mark it as the parent's, in a forked process; return whether it can be used there."""
        self.is_disowned = True
        return False


_all_open: set[Closeable] = set()

R = TypeVar("R")


class Attachment:
    """Data and resources that belong to one Llama.

    A resource has `close`, which frees it, and `disown`, which prepares it for a forked process and returns whether it
    can be used there.
    """

    def __init__(self, context: int) -> None:
        self.closed = False
        self.constrained = False
        self.forked = False  # with open streams: llama.cpp's threads are in the parent process
        self.known: dict[object, Any] = {}  # results about the model, kept for the next call
        self.making = threading.Lock()
        self._renewing = threading.Lock()
        self._made: dict[type, Any] = {}  # resources, one of each class
        self._making: dict[type, threading.Lock] = {}
        self.streams: set[Closeable] = set()
        self.context = context
        self.applied = applied_to(context)  # contexts opened on the model get the same settings
        self._leases: dict[int, threading.Lock] = {}  # one for each thread, so that threads do not wait for each other
        self._all_freed = threading.Event()
        _attached.add(self)

    def made(self, kind: type[R]) -> R | None:
        """Return the resource of a class, if it was made."""
        return self._made.get(kind)

    def make(self, kind: type[R], make: Callable[[], R]) -> R:
        """Return the resource of a class; make it if there is none."""
        found: R | None = self._made.get(kind)
        if found is None:
            with self._making.setdefault(kind, threading.Lock()):
                found = self._made.get(kind)
                if found is None:
                    found = self._made[kind] = make()
        return found

    def require(self, applied: Applied | None) -> None:
        """Raise ArgumentError if a context was made with other adapters than the Llama has now."""
        if applied is not None and SETTINGS.get(self.context, NOTHING) is not applied:
            raise ArgumentError(
                "llm: its adapters, their scales or its control vector were changed after this was opened; open another"
            )

    def renew(self) -> None:
        """After a change of adapters: drop all results and close all resources."""
        with self._renewing:
            applied = applied_to(self.context)
            if applied is self.applied:
                return
            self.applied = applied
            made, self._made, self.known = list(self._made.values()), {}, {}
        for one in made:
            one.close()

    def lease(self) -> AbstractContextManager[Any]:
        """Return a context manager that keeps the model from being freed; inside, `vocab_of` raises if it is closed.

        It is the thread's lock itself, because only the ``with`` of a lock cannot be interrupted halfway.
        """
        lock = self._leases.get(get_ident()) or self._leases.setdefault(get_ident(), threading.Lock())
        return _NOTHING if lock.locked() else lock

    def end(self) -> None:
        """Refuse new calls, and wait for the running ones. Any thread may call this, repeatedly."""
        self.closed = True
        self._close_streams()
        for lock in list(self._leases.values()):
            with lock:
                pass
        self._close_streams()  # which were being opened
        self._made.clear()

    def _close_streams(self) -> None:
        streams = list(self.streams)
        for stream in streams:
            stream.cancel()  # all first, because a fork that closes waits for a running one
        for stream in streams:
            stream.close()

    def close(self, stack: ExitStack, rest: ExitStack) -> None:
        """End all calls, then run the previous callbacks of the Llama's stack. Other closing threads wait for that."""
        self.closed = True
        if self._is_used_here():
            # In a signal handler or log callback, which cannot wait for its own call.
            threading.Thread(target=self.close, args=(stack, rest), daemon=True).start()
            return
        stack.callback(self._wait, stack)
        try:
            self.end()
        except BaseException:
            # The running stack calls it again, and raises this error afterwards.
            stack.callback(self.close, stack, rest)
            raise
        try:
            rest.close()
        finally:
            self._all_freed.set()

    def _wait(self, stack: ExitStack) -> None:
        if not (self._all_freed.is_set() or self._is_used_here()):
            stack.callback(self._wait, stack)
            self._all_freed.wait()

    def _is_used_here(self) -> bool:
        mine = self._leases.get(get_ident())
        return (mine is not None and mine.locked()) or any(stream.is_entered_here() for stream in list(self.streams))

    def disown(self) -> None:
        """Reset all locks in a forked process, which has none of the threads that held them."""
        self.forked = self.forked or bool(self.streams)
        self.making = threading.Lock()
        self._renewing = threading.Lock()
        self._making = {}
        self._made = {kind: made for kind, made in self._made.items() if made.disown()}
        self.streams = set()
        self._leases = {}
        self._all_freed = threading.Event()


_NOTHING: AbstractContextManager[Any] = contextlib.nullcontext()
_attached: weakref.WeakSet[Attachment] = weakref.WeakSet()
_attaching = threading.Lock()


def attachment(llm: Any) -> Attachment:
    """Return the attachment of a Llama; the first call makes it. ArgumentError if it is no Llama, or closed."""
    if not isinstance(llm, llama_cpp.Llama):
        raise ArgumentError(f"llm: {type(llm).__name__} where a llama_cpp.Llama belongs")
    attached: Attachment | None = llm.__dict__.get("_token_trie")
    if attached is not None:
        if SETTINGS.get(attached.context, NOTHING) is not attached.applied:
            attached.renew()
        return attached
    with _attaching:
        attached = llm.__dict__.get("_token_trie")
        if attached is None:
            attached = Attachment(context_address(llm))
            # The model may be collected before the Llama, and another thread may be closing them now. A stack runs our
            # callback first, and the one that frees the model must still be below it.
            of_model, rest = exit_stacks(llm)
            of_model.callback(attached.end)
            if model_of(llm).model is None or n_callbacks(of_model) < 2:
                raise ArgumentError("llm: this Llama is closed")
            rest.callback(attached.end)
            whole = ExitStack()
            whole.callback(attached.close, whole, rest)
            set_exit_stack(llm, whole)
            llm.__dict__["_token_trie"] = attached
    return attached


def lease(llm: Any) -> AbstractContextManager[Any]:
    """Return a context manager that keeps a Llama from being freed; see `Attachment.lease`."""
    return attachment(llm).lease()


def _disown_all() -> None:
    global _attaching
    _attaching = threading.Lock()
    for one in list(_all_open):
        one.disown()
    _all_open.clear()
    for attached in list(_attached):
        attached.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)


_OMP_PAUSE_SOFT = 1
_forked_thread = 0  # whose OpenMP threads, if any, are in the parent process


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
    In the thread that a fork has copied, this does nothing; with `but_main`, nor in the main thread, which often
    evaluates again soon.
    """
    pause = _pause_openmp()
    if pause is not None and get_ident() != _forked_thread and not (but_main and is_main_thread()):
        pause(_OMP_PAUSE_SOFT)


T = TypeVar("T")


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
        del future  # its exception may refer to this frame


_acting = threading.local()


def acting_thread() -> int:
    """Return the calling thread; in a worker of `interruptible`, the thread that it works for."""
    return getattr(_acting, "thread", 0) or get_ident()


_Task: TypeAlias = tuple[Future[Any], Callable[[], Any], int]
_idle: list[SimpleQueue[_Task]] = []  # of workers; a signal handler that chooses needs a second one


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


def _note_fork() -> None:
    global _forked_thread
    _forked_thread = get_ident()
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


# Level of llama-cpp-python's logger. Its levels are one off: it takes llama.cpp's warnings for errors, shows them even
# if a Llama is not verbose, and never shows errors.
_QUIET = logging.CRITICAL
_llama_logger = logging.getLogger("llama-cpp-python")
_quiet_lock = threading.RLock()
_n_quiet = 0
_loud = logging.NOTSET


@contextmanager
def quiet() -> Iterator[None]:
    """Keep llama.cpp's lines about loading a model off the terminal, as `Llama(verbose=False)` does."""
    global _n_quiet, _loud
    with _quiet_lock:
        if _n_quiet == 0:
            _loud = _llama_logger.level
            _llama_logger.setLevel(_QUIET)
        _n_quiet += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _n_quiet -= 1
            if _n_quiet == 0 and _llama_logger.level == _QUIET:  # unless a new Llama has set another level
                _llama_logger.setLevel(_loud)


def be_quiet_with(llm: Llama) -> None:
    """Keep warnings about further contexts of a Llama that is not verbose off the terminal, permanently."""
    if not llm.verbose and _llama_logger.level == logging.ERROR:
        _llama_logger.setLevel(_QUIET)
