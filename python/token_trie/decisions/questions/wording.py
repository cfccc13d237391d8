"""What questions are made of, as the texts that a model reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

from token_trie.errors import ArgumentError
from token_trie.native.arguments import encode

Wording: TypeAlias = str | Mapping[str, Any] | Sequence[Any]
"""A text, or a JSON value, of which a model gets the JSON text."""

_NAME = re.compile(r"[A-Za-z0-9]+(_+[A-Za-z0-9]+)+")


def text_of(given: object, what: str) -> str:
    """Return a text, or the JSON text of another value.

    Raises
    ------
    ArgumentError
        It has none, or holds what no text for a model may. The message begins with ``what``.
    """
    if not isinstance(given, str):
        try:
            given = json.dumps(given, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"{what}: no text and no JSON value: {error}") from error
    encode(given, what)
    return given


class StateText(str):
    """What a state is for a model, and what it was."""

    given: Any


def state_text(state: object) -> StateText:
    """Return what a state is for a model: text as it is, a turn a paragraph of chat messages, other values as JSON.

    Raises
    ------
    ArgumentError
        As of `text_of`.
    """
    text = StateText(_state_text(state))
    text.given = state
    return text


def _state_text(state: object) -> str:
    if isinstance(state, Sequence) and not isinstance(state, (str, bytes)) and state and all(map(_is_message, state)):
        turns = [f"{message['role']}: {_content(message, i)}" for i, message in enumerate(state)]
        return text_of("\n\n".join(turns), "state")
    return text_of(state, "state")


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and "content" in value


def _content(message: Mapping[str, Any], place: int) -> str:
    content, what = message["content"], f"state[{place}].content"
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if parts and all(isinstance(part, str) for part in parts):
            content = "\n".join(map(str, parts))
    return text_of(content, what)


def words_of(name: object) -> str:
    """Return the words that a name is made of: ``book_flight`` is "book flight", True is "true"."""
    if isinstance(name, Enum):
        name = name.value if isinstance(name.value, str) else name.name
    if isinstance(name, bool):
        return str(name).lower()
    text = str(name)
    if not _NAME.fullmatch(text):
        return text
    return re.sub("_+", " ", text.lower() if text.isupper() else text)
