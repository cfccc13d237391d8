r"""How a chat template shows tools: the prompt that describes them, and the template of a call.

The template of a call is read off the model's own chat template, by rendering a call with the marks N and A:

    <tool_call>\n{"name": "N", "arguments": {"K": "V"}}\n</tool_call><|im_end|>
    |---- before -----|   |-- between --|   A      |--- after ---|
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from token_trie.errors import ArgumentError
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lifetime import attachment
from token_trie.records.nodes import Layout
from token_trie.sets.control_tokens import JSONObject, read, render
from token_trie.sets.prompt import (
    chat_handler_of,
    closed,
    render_chat,
    template_of,
    tokenize_prompt,
    tokenize_rendered,
    without_thought,
)

_A = {"type": "object", "properties": {"a": {"type": "string", "description": "a"}}, "required": ["a"]}
_SHORT = {
    "messages": [{"role": "user", "content": "a"}],
    "tools": [{"type": "function", "function": {"name": "a", "description": "a", "parameters": _A}}],
}
_NAME, _ARGUMENTS = "tool_name_here", JSONObject(argument="value_here")
ASKING = 'Answer with one call of these tools, as JSON of this form: {"name":…,"arguments":{…}}'
OFFERING = (
    'If one of these tools helps, answer with one call, as JSON of this form: {"name":…,"arguments":{…}}; '
    "otherwise answer in plain text."
)


class CallTemplate(NamedTuple):
    """Texts around the name and arguments of a call."""

    before: str
    between: str
    after: str
    layout: Layout | None = None
    """White space of the arguments; None: the model's own."""


PLAIN = CallTemplate('{"name":"', '","arguments":', "}")
"""Template of a call if the model's chat template has none."""


def ask_for_tools(
    llm: Llama,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[dict[str, Any]],
    n_ctx: int,
    *,
    must: bool = True,
    thinks: bool = False,
) -> tuple[list[int], CallTemplate]:
    """Return the tokens of a prompt that describes tools, and the template of a call after it.

    `must`: whether the model is asked for a call, if the chat template does not describe the tools; `thinks`: whether a
    thought comes before the call. ArgumentError if the messages are invalid, or the chat template refuses them.
    """
    is_list = isinstance(messages, Sequence) and not isinstance(messages, (str, bytes))
    if not is_list or not all(isinstance(message, Mapping) for message in messages):
        raise ArgumentError("messages: not a list of chat messages")
    if not messages:
        raise ArgumentError("messages: none given")
    given = [_with_objects(message, f"messages[{i}]") for i, message in enumerate(messages)]
    given = for_template(llm, given, tools, must=must)
    if not has_calls(llm):
        return tokenize_prompt(llm, given, n_ctx, thinks=thinks), PLAIN
    failed: ArgumentError | None = None
    for shown in (list(tools), [_with_defaults(tool) for tool in tools]):
        data = {"messages": given, "tools": shown}
        try:
            prompt = render(llm, data, lambda data, mark: read(llm, _render(llm, data, thinks=thinks), mark))
            before = _render(llm, data) if thinks else prompt.text
            break
        except ArgumentError as error:
            failed = failed or error
    else:
        assert failed is not None
        raise failed
    return tokenize_rendered(llm, prompt, n_ctx), _call_after(llm, before, data) or _short_call(llm)


def _with_defaults(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with what OpenAI's format leaves out and some chat templates expect."""
    defaults = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return {**tool, "function": {**defaults, **tool["function"]}}


def has_calls(llm: Llama) -> bool:
    """Return whether the chat template describes tools, and has calls with their arguments as JSON.

    Some templates write arguments in another way, as Qwen3.5's, or fail.
    """
    return _short_call(llm) is not PLAIN


def _short_call(llm: Llama) -> CallTemplate:
    """Return the template of a call after a short prompt with one tool; `PLAIN` if there is none."""
    known, key = attachment(llm).known, ("short call", template_of(llm))
    if key not in known:
        call = None
        if "tools" in (template_of(llm) or ""):
            with suppress(ArgumentError):
                call = _call_after(llm, _render(llm, _SHORT), _SHORT)
        known[key] = call or PLAIN
    found: CallTemplate = known[key]
    return found


def _render(llm: Llama, data: dict[str, Any], *, thinks: bool = False) -> str:
    """Return the text of a prompt, after which the answer follows at once unless the model `thinks`."""
    text: str = render_chat(
        llm, data["messages"], tools=data["tools"], **({} if thinks else without_thought(llm))
    ).prompt
    return text if thinks else closed(text)


def _call_after(llm: Llama, prompt: str, data: dict[str, Any]) -> CallTemplate | None:
    """Return the template of a call after a rendered prompt; None if there is none, or it changes the prompt."""
    call = {"id": "000000000", "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        whole = render_chat(
            llm, [*data["messages"], answer], is_prompt=False, tools=data["tools"], **without_thought(llm)
        ).prompt
    except ArgumentError:
        return None
    before, found, rest = whole.removeprefix(prompt).partition(_NAME)
    between, found_too, end = rest.partition(str(_ARGUMENTS))
    is_found = whole.startswith(prompt) and found and found_too and between
    if not is_found or between != _plain_beginning(llm, between):
        return None
    return CallTemplate(before, between, _plain_beginning(llm, end), Layout(is_spaced=True))


def _plain_beginning(llm: Llama, text: str) -> str:
    """Return the text before the first control token."""
    vocab = vocab_of(llm)
    plain = []
    for token in llm.tokenize(text.encode(), add_bos=False, special=True):
        if vocab.is_control(token):
            break
        plain.append(token)
    kept = vocab.detokenize(plain).decode(errors="ignore")
    return kept if text.startswith(kept) else kept.removeprefix(" ")


def read_arguments(given: object) -> JSONObject:
    """Return the arguments of a call, an object or its JSON text, as chat templates take them; else ArgumentError."""
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"not JSON ({error}); give a JSON object, or its text") from None
    if not isinstance(given, Mapping):
        raise ArgumentError(f"must be a JSON object or its text, not {type(given).__name__}")
    return JSONObject(given)


def _with_objects(message: Mapping[str, Any], position: str) -> dict[str, Any]:
    """Copy a message and parse the arguments of its calls."""
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        raise ArgumentError(f"{position}.tool_calls must be a list of calls, not {type(calls).__name__}")
    made = []
    for i, call in enumerate(calls):
        at = f"{position}.tool_calls[{i}]"
        function = _function(call)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ArgumentError(f"{at}: no function with a name")
        try:
            function = {**function, "arguments": read_arguments(function.get("arguments", ""))}
        except ArgumentError as error:
            raise ArgumentError(f"{at}.function.arguments: {error}") from None
        made.append({**call, "function": function} if "function" in call else function)
    # Without text as ``""``, as in `_call_after`: some templates write None.
    return {**message, "content": message.get("content") or "", "tool_calls": made} if made else dict(message)


def _function(call: Any) -> Any:
    """Return the function of a call; transformers also accepts calls without the key."""
    return call.get("function", call) if isinstance(call, Mapping) else None


def for_template(
    llm: Llama, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), *, must: bool = True
) -> list[dict[str, Any]]:
    """Rewrite as text what the chat template does not support: tools, calls, results, system messages."""
    if not has_calls(llm):
        messages = _calls_as_text(messages)
        messages = tell_of_tools(messages, tools, must=must) if tools else messages
    if messages[0].get("role") == "system" and not _takes_system(llm):
        system, *messages = messages
        i = next((i for i, message in enumerate(messages) if message.get("role") == "user"), None)
        if i is None:
            messages = [{**system, "role": "user"}, *messages]
        else:
            messages[i] = _joined(system, messages[i], "\n\n")
    shown = {"tools": list(tools)} if tools and has_calls(llm) else {}
    lost = None
    with suppress(ArgumentError):  # which the prompt itself will report
        lost = _left_out(llm, messages, shown)
    if lost is not None:  # by many templates, the text before a call: it becomes a turn of its own
        messages = [part for message in messages for part in _text_and_calls(message)]
        with suppress(ArgumentError):
            lost = _left_out(llm, messages, shown)
    if lost is not None:
        raise ArgumentError(f"messages: the model's chat template leaves out {lost}")
    return messages


def _text_and_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the text of a message and its calls as two messages, if it has both."""
    if not message.get("content") or not message.get("tool_calls"):
        return [message]
    return [{name: given for name, given in message.items() if name != "tool_calls"}, {**message, "content": ""}]


def _left_out(llm: Llama, messages: Sequence[Mapping[str, Any]], tools: dict[str, Any]) -> str | None:
    """Return what text or call the chat template leaves out, as some do with a role; ArgumentError if it fails."""
    marks: dict[str, str] = {}

    def marked(message: Mapping[str, Any]) -> dict[str, Any]:
        role, made = str(message.get("role")), dict(message)

        def mark(what: str) -> str:
            name = f"part-{len(marks)}-shown"
            marks[name] = f"{what} of the role {role!r}"
            return name

        if isinstance(message.get("content"), str) and message["content"].strip():
            made["content"] = mark("a message")
        calls = []
        for call in message.get("tool_calls") or ():
            function = {**_function(call), "arguments": JSONObject({mark("a call's arguments"): ""})}
            function["name"] = mark("a call")
            calls.append({**call, "function": function} if "function" in call else function)
        return made | ({"tool_calls": calls} if calls else {})

    text = render_chat(llm, [marked(message) for message in messages], **tools, **without_thought(llm)).prompt
    return next((what for mark, what in marks.items() if mark not in text), None)


def _takes_system(llm: Llama) -> bool:
    """Return whether the chat template shows a system message; some refuse it, others omit it."""
    try:
        handler = chat_handler_of(llm)
    except Exception:
        return True  # the prompt itself will report the unknown handler
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
    written: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        if calls := message.get("tool_calls"):
            names |= {call.get("id"): _function(call)["name"] for call in calls}
            functions = [{name: _function(call)[name] for name in ("name", "arguments")} for call in calls]
            text = {"role": "assistant", "content": "\n".join(map(_json, functions))}
            message = _joined(message, text, "\n") if message.get("content") else text
        is_result = message.get("role") in ("tool", "function")
        if is_result:
            name = message.get("name") or names.get(message.get("tool_call_id"))
            result = {"name": name} if name else {}
            message = {"role": "user", "content": _json({**result, "result": _text(message.get("content"))})}
        if written and after_result and message.get("role") == "user":
            written[-1] = _joined(written[-1], message, "\n")
        else:
            written.append(message)
        after_result = is_result or (after_result and message.get("role") == "user")
    return written


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(content: Any) -> str:
    """Return the text of a message's content, which can have parts."""
    if isinstance(content, str) or not isinstance(content, Sequence):
        return "" if content is None else str(content)
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def _joined(first: dict[str, Any], second: dict[str, Any], between: str) -> dict[str, Any]:
    """Return the second message with the text of the first before it."""
    before, content = _text(first.get("content")) + between, second.get("content")
    if isinstance(content, str) or not isinstance(content, Sequence):
        return {**second, "content": before + _text(content)}
    return {**second, "content": [{"type": "text", "text": before}, *content]}


def tell_of_tools(
    messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]], *, must: bool = True
) -> list[dict[str, Any]]:
    """Describe the tools in the system message, and ask for a call, or offer one."""
    lines = [ASKING if must else OFFERING, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)]
    system = {"role": "system", "content": "\n".join(lines)}
    if messages[0].get("role") != "system":
        return [system, *messages]
    if messages[0].get("content"):
        system = _joined(messages[0], system, "\n")
    return [system, *messages[1:]]
