"""TokenTreePayloads, and the process-wide cache of tries read from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from token_trie.errors import PayloadError
from token_trie.native.core import _core
from token_trie.native.options import encode


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


def json_of(given: str | bytes | Mapping[str, Any], what: str = "payload") -> bytes:
    """Return JSON text, or a mapping as JSON, in UTF-8."""
    if isinstance(given, Mapping):
        try:
            given = json.dumps(given, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise PayloadError(f"{what}: {error}") from error
    return given if isinstance(given, bytes) else encode(given, what)


def named_leaves(trie: _core.Trie) -> list[tuple[str, int]]:
    """Return the name and leaf of each member, aliases last."""
    return [*((trie.name(leaf), leaf) for leaf in range(trie.n_leaves)), *trie.aliases]


def payload_of(trie: _core.Trie, model_id: str, path: str) -> str:
    """Write the payload of a set, with its aliases."""
    named = named_leaves(trie)
    tokens, offsets = trie.arrays()
    leaves = [{"name": name, "tokens": tokens[slice(*offsets[leaf : leaf + 2])].tolist()} for name, leaf in named]
    payload: dict[str, Any] = {"modelId": model_id}
    if trie.vocab:
        payload["vocab"] = trie.vocab
    payload["descriptors"] = [{"path": path, "leaves": leaves}]
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
