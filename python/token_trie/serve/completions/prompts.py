"""Prompts of completions. Names of control tokens in what others wrote stay text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from token_trie.decisions.records.templates import for_template, read_arguments
from token_trie.errors import TokenTrieError
from token_trie.native.core import Llama
from token_trie.native.lease import lease
from token_trie.serve.body import Limits, check_depth
from token_trie.serve.completions.shapes import Call, Message, OtherPart
from token_trie.serve.refusal import Place, invalid, refusal_of
from token_trie.sets.chat_form import has_chat_template
from token_trie.sets.prompt import Filled, Prompt

PLAIN_STOPS = ("\nuser:", "\nsystem:", "\nassistant:")
"""Where an answer in plain text ends, as somebody else's turn begins."""


def turns_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as chat templates take them; RefusedError for what is no text."""
    turns = []
    for i, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role
        turn: dict[str, Any] = {"role": role, "content": _content(message, i)}
        if message.tool_calls:
            turn["tool_calls"] = [
                _call(call, ("messages", i, "tool_calls", k)) for k, call in enumerate(message.tool_calls)
            ]
        for name in ("name", "tool_call_id"):
            if getattr(message, name) is not None:
                turn[name] = getattr(message, name)
        turns.append(turn)
    return turns


def _call(call: Call, place: Place) -> dict[str, Any]:
    place = (*place, "function", "arguments")
    try:
        arguments = read_arguments(call.function.arguments)
    except TokenTrieError as error:
        raise refusal_of(error, place) from None
    check_depth(arguments, Limits.depth, place)
    return {**call.model_dump(), "function": {"name": call.function.name, "arguments": arguments}}


def _content(message: Message, place: int) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for i, part in enumerate(message.content):
        if isinstance(part, OtherPart):
            raise invalid(f"{part.type}: text alone is understood", ("messages", place, "content", i), "unsupported")
    return "\n".join(getattr(part, "text", "") or getattr(part, "refusal", "") for part in message.content)


def prompt_of(llm: Llama, turns: list[dict[str, Any]]) -> Prompt:
    """Return the prompt that messages are: by the model's own template, or in plain text where it has none."""
    if not has_chat_template(llm):
        return plain(turns)
    with lease(llm):
        return for_template(llm, turns)


def plain(turns: Sequence[dict[str, Any]]) -> Filled:
    """Return messages in plain text, a turn a paragraph, up to the assistant's."""
    parts: list[tuple[str, str]] = []
    between = ""
    for turn in turns:
        said = str(turn["content"])
        for call in turn.get("tool_calls") or ():
            said += f"{call['function']['name']}({call['function']['arguments']})"
        parts.append((f"{between}{turn['role']}: ", said))
        between = "\n\n"
    return Filled([*parts, (f"{between}assistant:", "")])
