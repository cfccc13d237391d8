r"""`choose_tool`: call one of several tools; how tools are read, and the template of a call.

The template is read off the model's own chat template, by rendering a call with the marks N and A:

    <tool_call>\n{"name": "N", "arguments": {"K": "V"}}\n</tool_call><|im_end|>
    |---- before -----|   |-- between --|   A      |--- after ---|

With ``tool_choice="auto"``, `CallOrText` decides between a call and text.
"""

from __future__ import annotations

import inspect
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_type_hints, overload

import numpy as np

from token_trie.arrays import Floats
from token_trie.decisions.bound_choices import BoundChoices, bind
from token_trie.decisions.options import RecordOptions
from token_trie.decisions.request import Prefix, Request, TextRequest
from token_trie.errors import ArgumentError
from token_trie.llama.query import Ask, Plan, Query
from token_trie.llama.text import Text, TextOptions
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lifetime import LruCache, attachment, cache_in
from token_trie.native.options import check_name, takes
from token_trie.plan import Many, Model, OnError, PlanOf, run
from token_trie.records.fill import (
    N_RECORDS,
    RecordRequest,
    RecordStats,
    json_key,
    read_for_many,
    read_template,
)
from token_trie.records.nodes import Layout, Node, Object, types_in
from token_trie.records.schema import read_schema
from token_trie.records.write import RecordDecoder, n_distinct
from token_trie.sets.choices import Choices, read_choices
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
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import RecordKeywords

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
        system, *rest = messages
        i = next((i for i, message in enumerate(rest) if message.get("role") == "user"), None)
        if i is None:
            return [{**system, "role": "user"}, *rest]
        rest[i] = _joined(system, rest[i], "\n\n")
        return rest
    return messages


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


class Tool(NamedTuple):
    """A tool that was read."""

    name: str
    node: Node
    """Plan of the arguments."""
    read: Callable[[str], Any]
    """Parses the text of the arguments."""
    shown: dict[str, Any]
    """The tool in OpenAI's format, for the prompt."""
    given: Any
    ignored: tuple[str, ...] = ()
    """Keywords of the arguments that are not enforced, with the reason."""


_VALIDATING = {"anyOf", "oneOf", "allOf", "$ref", "enum", "const", "patternProperties", "propertyNames"}
_tools: LruCache[Tool] = LruCache(512, 1 << 20)


def read_tools(tools: Sequence[object]) -> tuple[Tool, ...]:
    """Read tools, with a cache; ArgumentError names the tool that is invalid or not supported."""
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise ArgumentError(f"tools must be a list of tools, not {type(tools).__name__}")
    if not tools:
        raise ArgumentError("tools: none given")
    found = tuple(_read_one(tool, f"tools[{i}]") for i, tool in enumerate(tools))
    names = [tool.name for tool in found]
    for i, tool in enumerate(found):
        if tool.name in names[:i]:
            where = ".function.name" if isinstance(tool.given, Mapping) else ""
            raise ArgumentError(f"tools[{i}]{where}: {tool.name!r} comes twice")
    return found


def _read_one(tool: Any, where: str) -> Tool:
    if isinstance(tool, Mapping):
        key = json_key(tool, where)
        return _tools.get(key, len(key), lambda: _read_json(json.loads(key), where))._replace(given=tool)
    if not callable(tool) or not isinstance(getattr(tool, "__name__", None), str):
        what = type(tool).__name__
        raise ArgumentError(f"{where} must be a tool of OpenAI's shape, a pydantic model or a function, not {what}")
    try:
        return _tools.get(tool, 1000, lambda: _read_callable(tool))
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {tool.__name__}: {error}") from error


def _read_json(tool: dict[str, Any], where: str) -> Tool:
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise ArgumentError(f'{where}: not {{"type": "function", "function": {{…}}}}')
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"{where}.function.name: {name!r} is no name")
    if not isinstance(function.get("description") or "", str):
        raise ArgumentError(f"{where}.function.description: no text")
    # As in OpenAI's API, the default is not strict.
    ignored: list[str] | None = None if function.get("strict") is True else []
    try:
        node = _read_parameters(function.get("parameters"), ignored)
    except ArgumentError as error:
        raise ArgumentError(f"{where}.function.parameters: {error}") from error
    return Tool(name, node, json.loads, tool, tool, tuple(ignored or ()))


def _read_parameters(parameters: Any, ignored: list[str] | None = None) -> Node:
    if parameters is None or parameters == {}:
        return Object(())
    says_more = isinstance(parameters, dict) and (parameters.get("required") or parameters.keys() & _VALIDATING)
    if isinstance(parameters, dict) and parameters.get("type") == "object" and not says_more:
        # An unspecified object: any value for a schema, no arguments for a tool.
        more = {} if "additionalProperties" in parameters else {"properties": parameters.get("properties") or {}}
        parameters = parameters | more
    node = read_schema(parameters, ignored)
    if types_in(node) != {"object"}:
        raise ArgumentError("not an object with properties")
    return node


def _read_callable(tool: Any) -> Tool:
    template = read_template(tool if isinstance(tool, type) else _arguments_of(tool))
    if not isinstance(template.schema, dict):
        raise ArgumentError("not an object with properties")
    described = template.schema.get("description") if isinstance(tool, type) else inspect.getdoc(tool)
    parameters = {key: value for key, value in _untitled(template.schema).items() if key != "description"}
    node = _read_parameters(parameters)
    function = {"name": tool.__name__, **({"description": described} if described else {}), "parameters": parameters}
    return Tool(tool.__name__, node, template.read, {"type": "function", "function": function}, tool)


def _arguments_of(function: Any) -> Any:
    """Return a TypedDict of a function's keyword arguments."""
    try:
        from typing_extensions import NotRequired, Required, TypedDict
    except ImportError as error:
        raise ArgumentError('functions are read by pydantic: pip install "token-trie[records]"') from error
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:
        raise ArgumentError(f"its type hints cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ArgumentError(f"parameter {parameter.name!r} takes no keyword")
        if parameter.name not in hints:
            raise ArgumentError(f"parameter {parameter.name!r} has no type hint")
        hint = hints[parameter.name]
        fields[parameter.name] = Required[hint] if parameter.default is parameter.empty else NotRequired[hint]
    return TypedDict(function.__name__, fields)  # type: ignore[operator]


def _untitled(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the titles that pydantic adds, to shorten the prompt."""
    of_schemas = ("properties", "$defs")

    def plain(key: str, value: Any) -> Any:
        if key in of_schemas:
            return {name: _untitled(part) for name, part in value.items()}
        if key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            return [_untitled(part) for part in value]
        return _untitled(value) if key in ("items", "additionalProperties") and isinstance(value, dict) else value

    return {key: plain(key, value) for key, value in schema.items() if key != "title"}


T = TypeVar("T")
R = TypeVar("R")

PLAIN = CallTemplate('{"name":"', '","arguments":', "}")
"""Template of a call if the model's chat template has none."""

_TAGS = ("<tool_call>", "<tool_calls>", "<function_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call|>")
"""Texts that begin a call in the templates of Qwen, Hermes, Mistral, Llama, Granite and Phi."""
_OPENING = re.compile(r"(```\w*|<tools?>|\[|Action:)?\s*\Z")
"""Text that models write before the JSON of a call."""
OPENINGS = ("```", "<tools>", "Action:")
"""Such texts, which a stream holds back where one may have begun."""


def beginnings_of_calls(tools: Sequence[Tool], template: CallTemplate) -> list[str]:
    """Return texts that begin a call of one of the tools; small models forget the tag, or write another."""
    own = template.before.strip()
    tags = dict.fromkeys([*_TAGS, own] if own and not own.startswith("{") else _TAGS)
    names = [json.dumps(tool.name, ensure_ascii=False) for tool in tools]
    lines = ("{", "{ ", "{\n  ", "{\n    ", "{\n\t")
    return [
        *tags,
        *(f'{line}"{key}":{space}{name}' for name in names for line in lines for key in _KEYS for space in (" ", "")),
        *(f"{before}{tool.name}{after}" for tool in tools for before, after in (("<function=", ""), ("[", "("))),
    ]


_KEYS = ("name", "function")


@dataclass(frozen=True)
class TextBeforeCall(TextRequest):
    """A request for text that does not begin as a call, and ends before one."""

    GRAMMAR: ClassVar = r"root ::= [^<{\[`\x20\t\r\n] [\x00-\U0010FFFF]*"
    beginnings: Sequence[str] = ()
    """The results of `beginnings_of_calls`."""

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [*super().stops, *self.beginnings]

    def after(self, model: Model, prefix: Prefix) -> Plan[Text]:
        """Plan the text."""
        text = yield from super().after(model, prefix)
        return replace(text, text=text_before(text.text)) if text.stop_string in self.beginnings else text


def text_before(text: str) -> str:
    """Return the text before a call, without a tag or fence that opens the call."""
    return _OPENING.sub("", text).rstrip()


@dataclass(frozen=True)
class ToolCall(Generic[T]):
    """A call of a tool.

    Attributes
    ----------
    id, type, function
        As in OpenAI's ``tool_calls``: function is a dict of name and arguments, these as JSON; see `to_dict`.
    name : str
        Name of the tool.
    arguments : dict
        The arguments as JSON values; valid by the tool's parameters.
    value : object
        The arguments in the tool's own form: an instance of a model, the keyword arguments of a function
        (``call.tool(**call.value)``), or `arguments` for a tool in OpenAI's format.
    tool : object
        The tool, as it was given.
    probability : float
        The probability of the name, computed as in `Record.probabilities`.
    probabilities : dict of str to float
        The probabilities of the arguments, by JSON pointer.
    truncated : tuple of str
        Pointers of arguments that were ended because they reached `max_tokens`.
    stats : RecordStats
        What the call cost.
    thought : str or None
        What the model wrote before the call, up to the marker; None without `think`.
    ignored : tuple of str
        Keywords of the tool's schema that the arguments were not kept to, with the reason; only for a tool in OpenAI's
        format without ``"strict": true``.
    """

    name: str
    arguments: dict[str, Any]
    value: T
    tool: Any = field(compare=False, repr=False)
    text: str
    """The JSON of the arguments."""
    probability: float = field(compare=False)
    probabilities: dict[str, float] = field(compare=False)
    truncated: tuple[str, ...] = ()
    stats: RecordStats | None = field(default=None, compare=False)
    thought: str | None = None
    ignored: tuple[str, ...] = ()
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:9], compare=False)
    type: str = "function"

    @property
    def function(self) -> dict[str, str]:
        """Name and arguments in OpenAI's format."""
        return {"name": self.name, "arguments": self.text}

    def to_dict(self) -> dict[str, Any]:
        """Return the call as an item of OpenAI's ``tool_calls``."""
        return {"id": self.id, "type": self.type, "function": self.function}

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message in OpenAI's format, for the messages of the next turn."""
        return {"role": "assistant", "content": None, "tool_calls": [self.to_dict()]}

    def result(self, value: object) -> dict[str, Any]:
        """Return the message with a result of the call: a text, or a value that becomes JSON.

        Raises
        ------
        ArgumentError
            The value is not JSON.
        """
        try:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"value: no JSON ({error}); give a text or a JSON value") from error
        return {"role": "tool", "tool_call_id": self.id, "name": self.name, "content": text}


def tool_request(
    tools: tuple[Tool, ...], options: RecordOptions, template: CallTemplate = PLAIN
) -> RecordRequest[ToolCall[Any]]:
    """Make the request for a call in the format of a template."""

    def fill(decoder: RecordDecoder) -> Plan[Callable[..., ToolCall[Any]]]:
        names = tuple(json.dumps(tool.name, ensure_ascii=False)[1:-1] for tool in tools)
        index, probability = yield from decoder.choose(names, template.between)
        tool = tools[index]
        decoder.writer.write(template.between)
        text = yield from decoder.run(tool.node, template.after)
        value = tool.read(text)
        decoder.writer.write(template.after)
        own = tool.name, json.loads(text), value, tool.given, text
        return partial(ToolCall, *own, probability, decoder.probabilities, ignored=tool.ignored)

    return RecordRequest(options, fill, template.before, template.layout)


_NONE = "none"
_PLAIN_REQUESTS = (
    "Hello, who are you?",
    "What is the tallest mountain in the world?",
    "Can you explain how a rainbow forms?",
    "Thank you, that is all.",
    "Write a sentence about the sea.",
    "Which animal sleeps the longest?",
    "What do you think about friendship?",
    "How much is 8 times 7?",
)
"""Requests that need no tool."""
_N_FITTING = 6
"""Tools whose descriptions are read as requests that need one, at most."""
_KEPT, _KEPT_TOKENS = 256, 1 << 17


@dataclass(frozen=True)
class CallOrText(Request[ToolCall[Any] | R]):
    """A request for a call of a tool, or for another answer where no tool is needed.

    Small models begin calls whatever is asked. So the request has to make the names of the tools more probable, as the
    name of a call that has begun, and "none" less so, than requests do that need no tool. These log-odds are nearer, in
    standard deviations, to those of such requests, or to those of requests that are the descriptions of tools.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool]
    prompt: Callable[[list[Any]], list[int]]
    """Returns the tokens of messages with these tools."""
    call: RecordRequest[ToolCall[Any]]
    otherwise: Request[R]

    def after(self, model: Model, prefix: Prefix) -> Plan[ToolCall[Any] | R]:
        """Plan the decision, and the call or the other answer."""
        calls = yield from self.calls(model, prefix.tokens)
        request: Request[Any] = self.call if calls else self.otherwise
        answer: ToolCall[Any] | R = yield from request.after(model, prefix)
        return answer

    def calls(self, model: Model, tokens: list[int]) -> Plan[bool]:
        """Decide whether the model calls a tool after a prompt; what other prompts give is remembered."""
        memory: LruCache[Any] = cache_in(model.known, "calls", _KEPT, _KEPT_TOKENS)
        names = self._names()
        some = [tool.shown["function"] for tool in self.tools[:: -(-len(self.tools) // _N_FITTING)]]
        fitting = tuple(function.get("description") or function["name"] for function in some)

        def asked(tokens: list[int]) -> tuple[Ask, BoundChoices[str]]:
            tokens, choices = bind(model, model.append(tokens, self.call.lead), names, leading_space=False)
            trie = memory.get(choices.trie, 1, lambda: _beginnings_of(choices.trie))
            return Ask(tokens, Query("scores", trie, leaf_end="any")), choices

        step, choices = asked(tokens)
        first = self._prompt_of(_PLAIN_REQUESTS[0])
        key = tuple(first), self.call.lead, tuple(names.texts), fitting
        rule = memory.find(key)
        if rule is None:
            others = [first, *map(self._prompt_of, (*_PLAIN_REQUESTS[1:], *fitting))]
            asked_before = [asked(other) for other in others]
            answers = yield [one for one, _ in asked_before]
            scores = [one.aligned(answer.logprobs) for (_, one), answer in zip(asked_before, answers, strict=True)]
            rule = _rule_of(np.array(scores))
            memory.put(key, len(first), rule)
        mean, least = rule
        (answer,) = yield [step]
        return bool(_odds(choices.aligned(answer.logprobs) - mean) > least)

    def _names(self) -> Choices[str]:
        """Return the names of the tools, and "none" last; with the closing quote."""
        own, none = [tool.name for tool in self.tools], _NONE
        while none in own:
            none += " of these"
        return read_choices([json.dumps(name, ensure_ascii=False)[1:] for name in (*own, none)])

    def _prompt_of(self, request: str) -> list[int]:
        """Return the tokens of a prompt with another request."""
        system = [message for message in self.messages[:1] if message.get("role") == "system"]
        return self.prompt([*system, {"role": "user", "content": request}])


def _odds(gains: Floats) -> Floats:
    """Return the log-odds of the names against "none", which is the last."""
    odds: Floats = np.logaddexp.reduce(gains[..., :-1], axis=-1) - gains[..., -1]
    return odds


def _rule_of(scores: Floats) -> tuple[Floats, float]:
    """Return the mean scores after plain requests, and the log-odds between these and those that need a tool."""
    mean = np.mean(scores[: len(_PLAIN_REQUESTS)], axis=0)
    plain, fitting = np.split(_odds(scores - mean), [len(_PLAIN_REQUESTS)])
    # Few descriptions, or one, differ less than requests do: their variance is that of one more, which differs as much.
    n = len(fitting)
    near, far = plain.std(), np.sqrt((n * fitting.var() + plain.var()) / (n + 1))
    between = (plain.mean() * far + fitting.mean() * near) / (near + far) if far else plain.mean()
    return mean, float(between)


def _beginnings_of(trie: TokenTrie) -> TokenTrie:
    """Return the set with each member cut where it is distinct, so that few tokens are evaluated."""
    tokens, offsets = trie.core.arrays()
    rows = [tokens[begin:end].tolist() for begin, end in pairwise(offsets)]
    lengths = n_distinct(rows, range(len(rows)))
    return TokenTrie.from_sequences({str(i): row[:n] for i, (row, n) in enumerate(zip(rows, lengths, strict=True))})


@overload
def choose_tool(
    llm: Llama,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[object],
    *,
    tool_choice: Literal["auto"],
    **options: Unpack[RecordKeywords],
) -> ToolCall[Any] | Text: ...
@overload
def choose_tool(
    llm: Llama,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[type[T]],
    *,
    tool_choice: Literal["required"] = ...,
    **options: Unpack[RecordKeywords],
) -> ToolCall[T]: ...
@overload
def choose_tool(
    llm: Llama,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[object],
    *,
    tool_choice: Literal["required"] = ...,
    **options: Unpack[RecordKeywords],
) -> ToolCall[Any]: ...
@takes(RecordOptions)
def choose_tool(
    llm: Llama,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[object],
    *,
    tool_choice: Literal["required", "auto"] = "required",
    **options: Unpack[RecordKeywords],
) -> ToolCall[Any] | Text:
    """Let the model call one of several tools, or answer in text.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    messages : sequence of dict
        Chat messages.
    tools : sequence of dict, class or function
        As OpenAI has them: ``{"type": "function", "function": {"name": …, "description": …, "parameters": schema}}``,
        with object schemas that `fill` supports. Without ``"strict": true`` beside the name, other keywords of a schema
        are ignored, and listed in `ToolCall.ignored`. Or pydantic models and other classes that `fill` supports, whose
        names are the tools' names; or functions whose parameters have type hints. The docstring of a class or function
        is the tool's description, and ``Annotated[…, pydantic.Field(description=…)]`` describes a parameter. Classes
        and functions need the extra ``records``.
    tool_choice : {"required", "auto"}
        "required": the answer is a call. "auto": a call, or a text of up to `max_tokens`, whichever the request makes
        more probable (docs/records.md). A text ends before what would begin a call.
    **options
        Those of `RecordOptions`.

    Returns
    -------
    ToolCall or Text
        Nothing is called: ``call.tool(**call.value)`` calls a function. With "auto", `Text` if the model calls
        nothing. `message` of both is the assistant's message in OpenAI's format. For the next turn, append it to the
        messages, and after a call `ToolCall.result`: only what is new is then evaluated.

    Raises
    ------
    TokenTrieError
        As in `fill`; also if the messages do not fit the model's chat template.

    Notes
    -----
    If the model's chat template has calls with arguments as JSON, it describes the tools to the model, and the call is
    written in its format. Otherwise, this is added to the system message: "Answer with one call of these tools, as JSON
    of this form:" (with "auto": "If one of these tools helps, answer with one call, as JSON of this form: …; otherwise
    answer in plain text."), the form ``{"name":…,"arguments":{…}}``, and each tool's function as one line of JSON. The
    call has this form. Calls and results in the messages are then text in turns of the assistant and the user. If the
    template has no system message, as Gemma 2's, its text begins the first turn of the user.

    Arguments of calls in the messages are JSON objects, or the text of one, as OpenAI has them. The template gets an
    object.
    """
    attachment(llm)  # first, because it refuses what is no Llama
    return run(llm, messages, _plan_of(read_tools(tools), RecordOptions.read("choose_tool", options), tool_choice))


@takes(RecordOptions)
def choose_tool_many(
    llm: Llama,
    conversations: Iterable[Sequence[Mapping[str, Any]]],
    tools: Sequence[object],
    *,
    tool_choice: Literal["required", "auto"] = "required",
    as_ready: bool = False,
    on_error: OnError = "raise",
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
    **options: Unpack[RecordKeywords],
) -> Iterator[Any]:
    """Let the model call one of several tools in many conversations, as `choose_tool` does in one.

    Parameters
    ----------
    llm, as_ready, on_error, progress, n_parallel, n_ctx
        As of `fill_many`.
    conversations : iterable of sequences of dict
        The chat messages of each. The description of the tools is evaluated once for all.
    tools, tool_choice
        As of `choose_tool`, for all conversations.
    **options
        Those of `RecordOptions`, except on_text.

    Yields
    ------
    ToolCall or Text
        The result of `choose_tool`, up to llama.cpp's rounding, which depends on the size of a batch.

    Raises
    ------
    ArgumentError
        At once: a tool or an option is not supported.
    TokenTrieError
        Of a conversation, with its position: as of `choose_tool`.
    CancelledError
        The Llama was closed meanwhile.
    """
    plan = _plan_of(read_tools(tools), read_for_many("choose_tool_many", "choose_tool", options), tool_choice)
    n_parallel = N_RECORDS if n_parallel is None else n_parallel
    many = Many(llm, conversations, "conversation", "choose_tool", progress, n_parallel, n_ctx, on_error, as_ready)
    return many.run(plan)


def _plan_of(
    tools: tuple[Tool, ...], options: RecordOptions, tool_choice: str
) -> PlanOf[Sequence[Mapping[str, Any]], ToolCall[Any] | Text]:
    """Return what plans a call after the messages of a conversation; with "auto", or a text."""
    check_name(tool_choice, ("required", "auto"), "tool_choice")
    is_free = tool_choice == "auto"
    if is_free and options.think is not None:
        raise ArgumentError('think: goes with tool_choice="required"; with "auto" there is no thought')
    shown = [tool.shown for tool in tools]

    def plan(model: Model, messages: Sequence[Mapping[str, Any]]) -> Plan[ToolCall[Any] | Text]:
        llm = model.llm
        assert llm is not None

        def prompt(messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], CallTemplate]:
            return ask_for_tools(llm, messages, shown, model.n_ctx, must=not is_free, thinks=options.think is not None)

        tokens, template = prompt(messages)
        call = tool_request(tools, options, template)
        if not is_free:
            return (yield from call.plan(model, tokens))
        drawn = TextOptions(**vars(options.settled(options.mode == "sampled")) | {"seed": options.seed})
        text = TextBeforeCall(options.max_tokens, drawn, beginnings=beginnings_of_calls(tools, template))
        return (
            yield from CallOrText(messages, tools, lambda others: prompt(others)[0], call, text).plan(model, tokens)
        )

    return plan
