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
from token_trie.native.lease import attachment
from token_trie.native.llama_facts import model_of
from token_trie.sets.control_texts import JSONObject
from token_trie.sets.prompt import chat_handler_of, tokenize_prompt, tokenize_rendered
from token_trie.sets.rendered import read, render

_NAME, _ARGUMENTS = "tool_name_here", JSONObject(argument="value_here")
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
    if not messages:
        raise ArgumentError("messages: none given")
    given = for_template(llm, [_with_objects(message, f"messages[{i}]") for i, message in enumerate(messages)], tools)
    template = _template_with_tools(llm)
    if template is None:
        return tokenize_prompt(llm, given, n_ctx), None
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
    call = {"id": "000000000", "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        whole = render(messages=[*messages, answer], tools=list(tools)).prompt
    except Exception:
        return None
    before, found, rest = whole.removeprefix(prompt).partition(_NAME)
    between, found_too, behind = rest.partition(str(_ARGUMENTS))
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


def read_arguments(given: object) -> JSONObject:
    """Return the arguments of a call, which OpenAI's API has as JSON text, as templates take them.

    Raises
    ------
    ArgumentError
        They are no JSON object.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"not JSON ({error}); give a JSON object, or its text") from None
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{type(given).__name__}, where a JSON object or its text belongs")
    return JSONObject(given)


def _with_objects(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Copy a message, with the arguments of its calls as objects."""
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        raise ArgumentError(f"{place}.tool_calls: {type(calls).__name__} where a list of calls belongs")
    made = []
    for i, call in enumerate(calls):
        at = f"{place}.tool_calls[{i}]"
        function = _function(call)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ArgumentError(f"{at}: no function with a name")
        try:
            function = {**function, "arguments": read_arguments(function.get("arguments", ""))}
        except ArgumentError as error:
            raise ArgumentError(f"{at}.function.arguments: {error}") from None
        made.append({**call, "function": function} if "function" in call else function)
    return {**message, "tool_calls": made} if made else dict(message)


def _function(call: Any) -> Any:
    """Return what is called; transformers also takes calls without a level of their own for it."""
    return call.get("function", call) if isinstance(call, Mapping) else None


def for_template(
    llm: Llama, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Put into turns of text what the model's chat template has no turns for: tools, their calls and results, a system.

    The caller holds a lease.
    """
    if _template_with_tools(llm) is None:
        messages = _calls_as_text(messages)
        messages = tell_of_tools(messages, tools) if tools else messages
    if messages[0].get("role") == "system" and not _takes_system(llm):
        system, *rest = messages
        i = next((i for i, message in enumerate(rest) if message.get("role") == "user"), None)
        if i is None:
            return [{**system, "role": "user"}, *rest]
        rest[i] = _joined(system, rest[i], "\n\n")
        return rest
    return messages


def _takes_system(llm: Llama) -> bool:
    """Whether the chat template shows a system message; some refuse one, others leave it out."""
    try:
        handler = chat_handler_of(llm)
    except Exception:
        return True  # there is none of this name, which the prompt is refused with
    known = attachment(llm).known
    of, takes = known.get("takes a system message", (None, False))
    if of is not handler:
        user = {"role": "user", "content": "a"}
        try:
            takes = tokenize_prompt(llm, [{"role": "system", "content": "b"}, user]) != tokenize_prompt(llm, [user])
        except ArgumentError:
            takes = False
        known["takes a system message"] = handler, takes
    return bool(takes)


def _calls_as_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names: dict[Any, str] = {}
    told: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        if calls := message.get("tool_calls"):
            names |= {call.get("id"): _function(call)["name"] for call in calls}
            written = [{name: _function(call)[name] for name in ("name", "arguments")} for call in calls]
            text = {"role": "assistant", "content": "\n".join(map(_json, written))}
            message = _joined(message, text, "\n") if message.get("content") else text
        is_result = message.get("role") in ("tool", "function")
        if is_result:
            name = message.get("name") or names.get(message.get("tool_call_id"))
            result = {"name": name} if name else {}
            message = {"role": "user", "content": _json({**result, "result": _text(message.get("content"))})}
        if told and after_result and message.get("role") == "user":
            told[-1] = _joined(told[-1], message, "\n")
        else:
            told.append(message)
        after_result = is_result or (after_result and message.get("role") == "user")
    return told


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(content: Any) -> str:
    """Return the text of a message's content, which may be in parts."""
    if isinstance(content, str) or not isinstance(content, Sequence):
        return "" if content is None else str(content)
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def _joined(first: dict[str, Any], second: dict[str, Any], between: str) -> dict[str, Any]:
    """Return the second of two messages, with the text of the first before its own."""
    before, content = _text(first.get("content")) + between, second.get("content")
    if isinstance(content, str) or not isinstance(content, Sequence):
        return {**second, "content": before + _text(content)}
    return {**second, "content": [{"type": "text", "text": before}, *content]}


def tell_of_tools(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put tools into the system message."""
    lines = [ASKING, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)]
    told = {"role": "system", "content": "\n".join(lines)}
    if messages[0].get("role") != "system":
        return [told, *messages]
    if messages[0].get("content"):
        told = _joined(messages[0], told, "\n")
    return [told, *messages[1:]]
