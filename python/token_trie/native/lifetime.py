"""How long native objects live: leases on a `Llama`, gates that any thread may close, calls that interrupts end."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import get_ident
from typing import Any, Protocol, TypeVar

from token_trie.errors import ArgumentError
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.llama_facts import exit_stacks, model_of, n_callbacks, set_exit_stack
from token_trie.native.loaded import Applied, applied_to, context_address


class Gate(ABC):
    """Something open.

    Parameters
    ----------
    what : str
        What it is, for messages.
    beside : set of Gate
        Those of the same Llama, among which it stands while it is open.
    """

    def __init__(self, what: str, beside: set[Gate]) -> None:
        self.is_closing = False
        self.is_freed = False
        self.is_disowned = False  # it belongs to the process that this one was forked from
        self._what = what
        self._beside = beside
        beside.add(self)
        _open_gates.add(self)

    def require_own_process(self) -> None:
        """Raise ArgumentError in a forked process."""
        if self.is_disowned:
            raise ArgumentError(f"{self._what}: opened before this process was forked; open one of its own")

    @abstractmethod
    def is_entered_here(self) -> bool:
        """Whether this very thread is inside a call."""

    @abstractmethod
    def cancel(self) -> None:
        """End what is under way, if there is something."""

    def close(self) -> None:
        """End what is under way, wait for that, free; closing twice does nothing."""
        if self.is_disowned or self.is_freed:
            return
        if self.is_entered_here():
            # By a signal's handler or a log callback, where its end cannot be waited for; also of what closing logs.
            if not self.is_closing:
                threading.Thread(target=self.close, daemon=True).start()
            return
        self.is_closing = True
        self.shut()

    @abstractmethod
    def shut(self) -> None:
        """End what is under way, wait for that, free, say so by `forget`."""

    def forget(self) -> None:
        """Be freed: nobody need close it."""
        self.is_freed = True
        self._beside.discard(self)
        _open_gates.discard(self)

    def disown(self) -> bool:
        """Forget it unfreed, in a forked process; whether it is of use there."""
        self.is_disowned = True
        return False


_open_gates: set[Gate] = set()


def _disown_all() -> None:
    for gate in list(_open_gates):
        gate.disown()
    _open_gates.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)


M = TypeVar("M", bound="Made")


class Made(Protocol):
    """What there is one of for a Llama."""

    def close(self) -> None:
        """Free what it has."""

    def disown(self) -> bool:
        """Start anew in a forked process; whether it is of use there."""


class Attachment:
    """What is kept beside one Llama."""

    def __init__(self, context: int) -> None:
        self.closed = False
        self.constrained = False
        self.forked = False  # with streams: llama.cpp's threads are then in another process
        self.known: dict[object, Any] = {}  # of the model, by whoever asked, for the next time
        self.making = threading.Lock()
        self._renewing = threading.Lock()
        self._made: dict[type[Made], Made] = {}
        self._making: dict[type[Made], threading.Lock] = {}
        self.streams: set[Gate] = set()
        self.context = context
        self.applied = applied_to(context)  # what is opened on the model computes with the same
        self._leases: dict[int, threading.Lock] = {}  # one a thread, so that no thread waits for another's
        self._all_freed = threading.Event()
        _attached.add(self)

    def made(self, kind: type[M]) -> M | None:
        """Return the one of a kind, if it was made."""
        found = self._made.get(kind)
        return found if isinstance(found, kind) else None

    def make(self, kind: type[M], make: Callable[[], M]) -> M:
        """Return the one of a kind, which is made if there is none."""
        found = self.made(kind)
        if found is None:
            with self._making.setdefault(kind, threading.Lock()):
                found = self.made(kind)
                if found is None:
                    found = self._made[kind] = make()
        return found

    def is_current(self) -> bool:
        """Whether nothing else is applied to the Llama's context now."""
        return applied_to(self.context) is self.applied

    def require(self, applied: Applied | None) -> None:
        """Raise ArgumentError where a context was made with other adapters than the Llama has now."""
        if applied is not None and applied_to(self.context) is not applied:
            raise ArgumentError(
                "llm: its adapters, their scales or its control vector were changed after this was opened; open another"
            )

    def renew(self) -> None:
        """Forget all that was computed with other adapters than the Llama has now, and close what is made for it."""
        with self._renewing:
            if self.is_current():
                return
            self.applied = applied_to(self.context)
            made, self._made, self.known = list(self._made.values()), {}, {}
        for one in made:
            one.close()

    def lease(self) -> AbstractContextManager[Any]:
        """Keep the model while the context entered lasts; whether it is there still, `vocab_of` then tells.

        It is the thread's lock itself, as only a lock's own ``with`` cannot be interrupted between taking and keeping.
        """
        lock = self._leases.get(get_ident()) or self._leases.setdefault(get_ident(), threading.Lock())
        return _NOTHING if lock.locked() else lock

    def end(self) -> None:
        """Let nothing new begin, and wait until nothing is under way; to be called from any thread, and again."""
        self.closed = True
        self._close_streams()
        for lock in list(self._leases.values()):
            with lock:
                pass
        self._close_streams()  # those that were being opened
        self._made.clear()

    def _close_streams(self) -> None:
        streams = list(self.streams)
        for stream in streams:
            stream.cancel()  # forks take turns, and one that closes waits for the turn of another
        for stream in streams:
            stream.close()

    def close(self, stack: ExitStack, rest: ExitStack) -> None:
        """End, then run the callbacks that stood in the Llama's stack before. Whoever else closes waits for that."""
        self.closed = True
        if self._is_used_here():
            # By a signal's handler or a log callback, where nothing can be waited for.
            threading.Thread(target=self.close, args=(stack, rest), daemon=True).start()
            return
        stack.callback(self._wait, stack)
        try:
            self.end()
        except BaseException:
            # The stack under way comes back to it, and raises this afterwards.
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
        """Start anew in a forked process: threads that held anything here are not in it."""
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
    """Return what is attached to a Llama, from the first time on; ArgumentError: it is none, or closed."""
    if not isinstance(llm, llama_cpp.Llama):
        raise ArgumentError(f"llm: {type(llm).__name__} where a llama_cpp.Llama belongs")
    attached: Attachment | None = llm.__dict__.get("_token_trie")
    if attached is not None:
        if not attached.is_current():
            attached.renew()
        return attached
    with _attaching:
        attached = llm.__dict__.get("_token_trie")
        if attached is None:
            attached = Attachment(context_address(llm))
            # The model may go before the Llama, as garbage of one cycle, and another thread may be closing them now:
            # who takes callbacks off these stacks takes ours first, and what frees the model must still be below it.
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
    """Keep a Llama from being freed while the context entered lasts; see `Attachment.lease`."""
    return attachment(llm).lease()


def _disown_leases() -> None:
    global _attaching
    _attaching = threading.Lock()
    for attached in list(_attached):
        attached.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_leases)


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


# Of llama-cpp-python's logger: that takes llama.cpp's warnings for errors, as its levels are one off, and shows these
# where a Llama is not verbose; errors it never does.
_QUIET = logging.CRITICAL
_llama_logger = logging.getLogger("llama-cpp-python")
_quiet_lock = threading.RLock()
_n_quiet = 0
_loud = logging.NOTSET


@contextmanager
def quiet() -> Iterator[None]:
    """Keep llama.cpp's thousands of lines about a model it loads off the terminal, as `Llama(verbose=False)` does."""
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
            if _n_quiet == 0 and _llama_logger.level == _QUIET:  # a Llama that was made meanwhile has set another
                _llama_logger.setLevel(_loud)


def be_quiet_with(llm: Llama) -> None:
    """Keep warnings about contexts that are made beside a Llama off the terminal, if it is not verbose, for good."""
    if not llm.verbose and _llama_logger.level == logging.ERROR:
        _llama_logger.setLevel(_QUIET)
