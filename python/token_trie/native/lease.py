"""What token-trie attaches to a `Llama`, so that closing it waits for what works on its model.

llama.cpp frees a model whether it is in use or not, and a Llama frees its own from any thread, or as garbage. So
whoever works on the model of a Llama holds a lease while it does, and streams register here. Closing the Llama then is:

    llm.close()  ->  1. nothing new begins
                     2. streams: the call under way is cancelled, stream and context are freed
                     3. leases end
                     4. llama-cpp-python frees what it has: adapter, context, model

What is attached holds no reference to its Llama, which would keep it alive.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from threading import get_ident
from typing import Any, Protocol, TypeVar

from token_trie.errors import ArgumentError
from token_trie.native.core import llama_cpp
from token_trie.native.gate import Gate
from token_trie.native.llama_facts import exit_stacks, model_of, n_callbacks, set_exit_stack
from token_trie.native.loaded import Applied, applied_to, context_address

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


def _start_anew() -> None:
    global _attaching
    _attaching = threading.Lock()
    for attached in list(_attached):
        attached.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
