"""Things that end with a `Llama`: native objects that any thread may close, and bounded caches of results."""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from token_trie.errors import ArgumentError
from token_trie.native.core import llama_cpp
from token_trie.native.llama_facts import adapters_of, call_at_close, model_of

_FORKED = "{} before this process was forked, and llama.cpp's threads are not in it; {}, or begin processes with spawn"


class Closeable(ABC):
    """A native object that any thread may close; `what` is its name in messages.

    It is added to `siblings`, the open objects of the same Llama, and removed when it is freed.
    """

    def __init__(self, what: str, siblings: set[Closeable]) -> None:
        self.is_closing = False
        self.is_freed = False
        self.is_forked = False  # it belongs to the parent process
        self._what = what
        self._siblings = siblings
        siblings.add(self)
        _all_open.add(self)

    def require_own_process(self) -> None:
        """Raise ArgumentError in a forked process."""
        if self.is_forked:
            raise ArgumentError(_FORKED.format(f"{self._what}: opened", "open one of its own"))

    @abstractmethod
    def is_entered_here(self) -> bool:
        """Whether this thread is inside a call."""

    @abstractmethod
    def cancel(self) -> None:
        """End the running call, if any."""

    def close(self) -> None:
        """End the running call, wait for it, free; closing twice does nothing."""
        if self.is_forked or self.is_freed:
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


_all_open: set[Closeable] = set()

R = TypeVar("R")
T = TypeVar("T")


class LruCache(Generic[T]):
    """A cache, bounded by entries and total weight; the newest entry is always kept."""

    def __init__(self, capacity: int, weight: int) -> None:
        self._capacity = capacity
        self._weight = weight
        self._entries: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> T | None:
        """Return the value of a key, or None."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def get(self, key: Hashable, weight: int, make: Callable[[], T]) -> T:
        """Return the value of a key, or make it; two threads may both make it."""
        found = self.find(key)
        if found is None:
            found = make()
            self.put(key, weight, found)
        return found

    def is_new(self, key: Hashable, value: T) -> bool:
        """Return whether a key was not there, and put it there, with weight 1."""
        if self.find(key) is not None:
            return False
        self.put(key, 1, value)
        return True

    def put(self, key: Hashable, weight: int, value: T) -> None:
        """Set the value of a key."""
        with self._lock:
            self._total += weight - self._entries.pop(key, (value, 0))[1]
            self._entries[key] = value, weight
            while len(self._entries) > 1 and (len(self._entries) > self._capacity or self._total > self._weight):
                self._total -= self._entries.popitem(last=False)[1][1]


MAX_SEEN = 100_000
"""Number of rows that are remembered, so that equal ones count once."""


def cache_in(known: dict[object, Any], name: str, capacity: int, weight: int) -> LruCache[Any]:
    """Return the cache of a name among what is known of a model; it is made the first time."""
    cache: LruCache[Any] = known.get(name) or known.setdefault(name, LruCache(capacity, weight))
    return cache


class Attachment:
    """Data and resources that belong to one Llama. It keeps no reference to the Llama."""

    def __init__(self, adapters: tuple[tuple[int, float], ...]) -> None:
        self.closed = False
        self.is_forked = False
        self.adapters = adapters
        """Adapters that the Llama was made with, as addresses and scales; contexts opened on its weights get them."""
        self.importing = threading.Lock()
        """Held while the Llama's own context is read."""
        self.known: dict[object, Any] = {}
        """Results about the model, kept for the next call."""
        self.streams: set[Closeable] = set()
        """Open native objects."""
        self._made: dict[type, Any] = {}  # resources, one of each class
        self._making: dict[type, threading.Lock] = {}

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

    def end(self) -> None:
        """Close all native objects; the Llama calls it when it is closed, before it frees the model."""
        self.closed = True
        if self.is_forked:
            return
        for _ in range(2):  # a call that was under way may have opened another
            streams = list(self.streams)
            for stream in streams:
                stream.cancel()  # all first, because a fork that closes waits for a running one
            for stream in streams:
                stream.close()
        self._made.clear()


_attached: weakref.WeakKeyDictionary[Any, Attachment] = weakref.WeakKeyDictionary()


def attachment(llm: Any) -> Attachment:
    """Return the attachment of a Llama; the first call makes it.

    ArgumentError if it is no Llama, is closed, or was used before this process was forked.
    """
    if not isinstance(llm, llama_cpp.Llama):
        raise ArgumentError(f"llm must be a llama_cpp.Llama, not {type(llm).__name__}")
    attached = _attached.get(llm)
    if model_of(llm).model is None or (attached is not None and attached.closed):
        raise ArgumentError("llm: this Llama is closed")
    if attached is None:
        new = Attachment(adapters_of(llm))
        attached = _attached.setdefault(llm, new)
        if attached is new:
            call_at_close(llm, attached.end)
    if attached.is_forked:
        raise ArgumentError(_FORKED.format("llm: used", "load the model here"))
    return attached


def _after_fork() -> None:
    for one in _all_open:
        one.is_forked = one.is_closing = True
    for attached in list(_attached.values()):
        attached.is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
