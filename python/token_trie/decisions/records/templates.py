r"""Prompts that tell a model of tools, and the template by which it writes a call.

That is read off the model's own chat template, by what it makes of a call with these marks:

    <tool_call>\n{"name": "N", "arguments": {"K": "V"}}\n</tool_call><|im_end|>
    |---- before -----|   |-- between --|   A      |--- behind ---|
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.core import Llama, llama_cpp, vocab_of
from token_trie.native.llama_facts import model_of
from token_trie.sets.prompt import tokenize_prompt, tokenize_rendered
from token_trie.sets.rendered import read, render

_NAME, _ARGUMENTS = "tool_name_here", {"argument": "value_here"}
ASKING = 'Answer with one call of these tools, as JSON of this form: {"name":…,"arguments":{…}}'


class CallTemplate(NamedTuple):
    """What stands around a tool's name and its arguments."""

    before: str
    between: str
    behind: str


def ask_for_tools(
    llm: Llama,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[dict[str, Any]],
    n_ctx: int,
    *,
    thinks: bool = False,
) -> tuple[list[int], CallTemplate | None]:
    """Return the tokens of a prompt that tells of tools, and the template of a call; None for one of our own.

    How a call begins is part of the prompt, unless the model thinks in between.

    Raises
    ------
    ArgumentError
        These are no messages, or the template refuses them.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not all(isinstance(message, Mapping) for message in messages):
        raise ArgumentError("messages: not a list of chat messages")
    given = [dict(message) for message in messages]
    if not given:
        raise ArgumentError("messages: none given")
    template = _template_with_tools(llm)
    if template is None:
        return tokenize_prompt(llm, tell_of_tools(given, tools), n_ctx), None
    formatter = template(True)
    try:
        prompt = render(
            llm,
            {"messages": given, "tools": list(tools)},
            lambda data, mark: read(llm, formatter(**data).prompt, mark),
        )
    except TokenTrieError:
        raise
    except Exception as error:
        raise ArgumentError(f"messages: the chat template refuses them: {error}") from error
    written = _template_of(llm, template(False), prompt.text, given, tools)
    if written is None or thinks:
        return tokenize_rendered(llm, prompt, n_ctx), written
    return tokenize_rendered(llm, prompt.followed_by(llm, written.before), n_ctx), written._replace(before="")


def _template_with_tools(llm: Llama) -> Any:
    name = llm.chat_format or ""
    if llm.chat_handler is not None or not name.startswith("chat_template."):
        return None
    template = llm.metadata.get("tokenizer.chat_template" + name.removeprefix("chat_template").replace(".default", ""))
    if template is None or "tools" not in template:
        return None
    eos, bos = (
        model_of(llm).token_get_text(token) if token >= 0 else "" for token in (llm.token_eos(), llm.token_bos())
    )
    return lambda is_prompt: llama_cpp.llama_chat_format.Jinja2ChatFormatter(
        template, eos, bos, add_generation_prompt=is_prompt
    )


def _template_of(
    llm: Llama, render: Any, prompt: str, messages: list[Any], tools: Sequence[dict[str, Any]]
) -> CallTemplate | None:
    spelled = json.dumps(_ARGUMENTS)
    for arguments in (_ARGUMENTS, spelled):
        call = {"id": "call_000000", "type": "function", "function": {"name": _NAME, "arguments": arguments}}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            whole = render(messages=[*messages, answer], tools=list(tools)).prompt
        except Exception:
            continue
        before, found, rest = whole.removeprefix(prompt).partition(_NAME)
        between, found_too, behind = rest.partition(spelled)
        if whole.startswith(prompt) and found and found_too and between and not _has_control(llm, between):
            return CallTemplate(before, between, _plain_beginning(llm, behind))
    return None


def _plain_beginning(llm: Llama, text: str) -> str:
    """Return a text up to its first control token."""
    vocab = vocab_of(llm)
    plain = []
    for token in llm.tokenize(text.encode(), add_bos=False, special=True):
        if vocab.is_control(token):
            break
        plain.append(token)
    kept = vocab.detokenize(plain).decode(errors="ignore")
    return kept if text.startswith(kept) else kept.removeprefix(" ")


def _has_control(llm: Llama, text: str) -> bool:
    vocab = vocab_of(llm)
    tokens = llm.tokenize(text.encode(), add_bos=False, special=True)
    return any(vocab.is_control(token) for token in tokens)


def tell_of_tools(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put tools into the system message."""
    lines = [ASKING, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)]
    system = messages[0] if messages[0].get("role") == "system" else None
    before = [system["content"]] if system is not None and system.get("content") else []
    told = {"role": "system", "content": "\n".join([*before, *lines])}
    return [told, *messages[system is not None :]]
