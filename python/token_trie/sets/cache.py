"""The process-wide cache of tries read from payloads."""

from __future__ import annotations

from typing import NamedTuple

from token_trie.native.core import _core


class CacheStats(NamedTuple):
    """Counts of the process-wide cache of tries from payloads, since the start of the process."""

    hits: int
    misses: int
    evictions: int
    entries: int
    capacity: int
    nbytes: int


def cache_stats() -> CacheStats:
    """Return the counts of the cache that `TokenTrie.from_payload` and the C samplers use."""
    return CacheStats(*_core.cache_stats())


def cache_clear() -> None:
    """Empty the cache. Tries that are in use stay valid."""
    _core.cache_clear()
