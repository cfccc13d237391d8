"""The process-wide cache of tries read from payloads."""

from __future__ import annotations

from typing import NamedTuple

from token_trie.native.core import _core


class CacheStats(NamedTuple):
    """Counts of the process-wide cache of tries read from payloads; since the process began."""

    hits: int
    misses: int
    evictions: int
    entries: int
    capacity: int
    nbytes: int


def cache_stats() -> CacheStats:
    """Count what happened in the cache behind `TokenTrie.from_payload` and the C samplers."""
    return CacheStats(*_core.cache_stats())


def cache_clear() -> None:
    """Empty the cache. Tries in use live on."""
    _core.cache_clear()
