"""TokenTreePayloads as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from token_trie.errors import PayloadError
from token_trie.native.arguments import encode


def json_of(payload: str | bytes | Mapping[str, Any]) -> bytes:
    """Return a payload, JSON or what JSON stands for, as UTF-8."""
    if isinstance(payload, Mapping):
        try:
            payload = json.dumps(payload, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise PayloadError(f"payload: {error}") from error
    return payload if isinstance(payload, bytes) else encode(payload, "payload")


def payload_of_texts(names: Iterable[str], texts: Iterable[str], model_id: str = "", path: str = "") -> str:
    """Write a payload of members in any tokenization."""
    leaves = [{"name": name, "text": text} for name, text in zip(names, texts, strict=True)]
    descriptor = {"path": path, "tokenization": "any", "leaves": leaves}
    return json.dumps({"modelId": model_id, "descriptors": [descriptor]}, ensure_ascii=False, separators=(",", ":"))
