"""A least-recently-used cache with a weight limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Memory(Generic[T]):
    """The values used last: so many entries at most, of this total weight; the newest is kept whatever its weight."""

    def __init__(self, capacity: int, weight: int) -> None:
        self._capacity = capacity
        self._weight = weight
        self._entries: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()

    def entries(self) -> list[tuple[Hashable, T]]:
        """Return all keys and values, the one used last at the end."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._entries.items()]

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


def memory_in(known: dict[object, Any], name: str, capacity: int, weight: int) -> Memory[Any]:
    """Return the memory of a name among what is known of a model; it is made the first time."""
    memory: Memory[Any] = known.get(name) or known.setdefault(name, Memory(capacity, weight))
    return memory
