"""Formats of sets: TokenTreePayloads, with their cache, and RTP-LLM's tree decode configuration."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from types import NoneType
from typing import Any, NamedTuple

from token_trie.errors import ArgumentError, PayloadError
from token_trie.native.core import _core, logger
from token_trie.native.options import encode
from token_trie.sets.tokenization import joined


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


_MAX_TOKEN = 2**31 - 1
_N_SHOWN = 5
"""Number of unreached keys that a warning names."""


class _Object(dict[str, Any]):
    """A JSON object, with the keys that come twice in it."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs) if len(self) < len(pairs) else {}
        self.twice = [key for key, n in counts.items() if n > 1]


_KINDS = {
    _Object: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a fraction",
    NoneType: "null",
}


def read_prefix_dict(given: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[_core.Trie, int]:
    """Return the set and its start token; see `TokenTrie.from_prefix_dict`."""
    where, config = _read(given)
    for key in ("start_token_id", "end_token_id", "sep", "prefix_dict"):
        if key in config.twice:
            raise PayloadError(f"{key}: the key comes twice")
    start = _token(config.get("start_token_id", 225), "start_token_id")
    end = _token(config.get("end_token_id", 2), "end_token_id")
    if start == end:
        raise PayloadError(f"end_token_id: {end} is the start token too")
    sep: str = _checked(config.get("sep", "_"), str, "a string", "sep")
    if not sep or set(sep) & set("-0123456789"):
        raise PayloadError(f"sep: {_quoted(sep)}: it does not separate token ids")
    if "prefix_dict" not in config:
        raise PayloadError('configuration: the key "prefix_dict" is missing')
    lists: _Object = _checked(config["prefix_dict"], _Object, "an object", "prefix_dict")
    if lists.twice:
        raise PayloadError(f"prefix_dict: {len(lists.twice)} of its keys come twice")
    following, n_skipped = _following(lists)
    members = _members(following, str(start), end, sep)
    if n_skipped:
        logger.warning(
            "%s: %d ids in lists are no tokens (negative, or beyond 32 bits) and were skipped", where, n_skipped
        )
    if following:
        shown = ", ".join(map(repr, list(following)[:_N_SHOWN])) + (", …" if len(following) > _N_SHOWN else "")
        logger.warning("%s: nothing leads to %d of the keys: %s", where, len(following), shown)
    return _core.Trie.build(*joined(members), [], ""), start


def _read(given: object) -> tuple[str, _Object]:
    """Return a name for messages, and the configuration."""
    if isinstance(given, Mapping):
        where, text = "prefix_dict", json_of(given, "configuration")
    elif isinstance(given, (str, os.PathLike)):
        where = os.fsdecode(given)
        try:
            with open(where, "rb") as file:
                text = file.read()
        except (OSError, ValueError) as error:
            raise ArgumentError(f"file: {where!r}: {getattr(error, 'strerror', error)}") from error
    else:
        raise ArgumentError(f"configuration must be a dict or the path of a file, not {type(given).__name__}")
    try:
        config = json.loads(text, object_pairs_hook=_Object)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"configuration: broken JSON: {error}") from error
    _checked(config, _Object, "an object", "configuration")
    return where, config


def _following(lists: _Object) -> tuple[dict[str, set[int]], int]:
    """Return the tokens after each key, and the number of ids that are no tokens."""
    following: dict[str, set[int]] = {}
    n_skipped = 0
    for key, value in lists.items():
        ids: list[Any] = _checked(value, list, "an array", f"prefix_dict[{_quoted(key)}]")
        if not set(map(type, ids)) <= {int}:
            for i, one in enumerate(ids):
                _checked(one, int, "a token id", f"prefix_dict[{_quoted(key)}][{i}]")
        following[key] = {one for one in ids if 0 <= one <= _MAX_TOKEN}
        n_skipped += sum(not 0 <= one <= _MAX_TOKEN for one in ids)
    return following, n_skipped


def _members(following: dict[str, set[int]], start: str, end: int, sep: str) -> list[list[int]]:
    """Return the members, in the order of their tokens, and remove the keys on their way from `following`."""
    if not following:
        raise PayloadError("prefix_dict: no key")
    if start not in following:
        raise PayloadError(f"prefix_dict: no key {_quoted(start)}, which start_token_id begins with")
    members: list[list[int]] = []
    open_: list[tuple[str, list[int]]] = [(start, [])]
    while open_:
        key, path = open_.pop()
        tokens = following.pop(key, set())
        if not tokens or end in tokens:
            if not path:
                raise PayloadError(
                    f"prefix_dict[{_quoted(start)}]: may end at once; an empty answer is no member of a set"
                )
            members.append(path)
        open_ += ((f"{key}{sep}{token}", [*path, token]) for token in sorted(tokens - {end}, reverse=True))
    return members


def _token(value: object, place: str) -> int:
    token: int = _checked(value, int, "a token id", place)
    if not 0 <= token <= _MAX_TOKEN:
        raise PayloadError(f"{place}: {token} is not a token id")
    return token


def _checked(value: object, kind: type[Any], what: str, place: str) -> Any:
    """Return a value; PayloadError if it is of another kind."""
    if type(value) is not kind:
        raise PayloadError(f"{place} must be {what}, not {_KINDS[type(value)]}")
    return value


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= 80 else f"{text[:80]}...")
