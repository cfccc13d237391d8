"""TokenTreePayloads as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from token_trie.errors import PayloadError
from token_trie.native.arguments import encode
from token_trie.native.core import _core


def json_of(payload: str | bytes | Mapping[str, Any]) -> bytes:
    """Return a payload, JSON or what JSON stands for, as UTF-8."""
    if isinstance(payload, Mapping):
        try:
            payload = json.dumps(payload, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise PayloadError(f"payload: {error}") from error
    return payload if isinstance(payload, bytes) else encode(payload, "payload")


def payload_of(trie: _core.Trie, model_id: str, path: str) -> str:
    """Write the payload of a set, names that gave way included."""
    own = range(trie.n_leaves)
    names = [*(trie.name(leaf) for leaf in own), *(name for name, _ in trie.aliases)]
    leaf_of = [*own, *(leaf for _, leaf in trie.aliases)]
    if not trie.is_tree:
        return payload_of_texts(names, [trie.text(leaf).decode() for leaf in leaf_of], model_id, path)
    tokens, offsets = trie.arrays()
    leaves = [
        {"name": name, "tokens": tokens[slice(*offsets[leaf : leaf + 2])].tolist()}
        for name, leaf in zip(names, leaf_of, strict=True)
    ]
    payload: dict[str, Any] = {"modelId": model_id}
    if trie.vocab:
        payload["vocab"] = trie.vocab
    payload["descriptors"] = [{"path": path, "leaves": leaves}]
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


def payload_of_texts(names: Iterable[str], texts: Iterable[str], model_id: str = "", path: str = "") -> str:
    """Write a payload of members in any tokenization."""
    leaves = [{"name": name, "text": text} for name, text in zip(names, texts, strict=True)]
    descriptor = {"path": path, "tokenization": "any", "leaves": leaves}
    return json.dumps({"modelId": model_id, "descriptors": [descriptor]}, ensure_ascii=False, separators=(",", ":"))
