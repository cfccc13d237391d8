"""`choose_tool`: call one of several tools; with ``tool_choice="auto"``, call one or answer in text."""

from __future__ import annotations

import inspect
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, get_type_hints, overload

from token_trie.decisions.options import RecordOptions
from token_trie.decisions.request import Prefix, Request, TextRequest
from token_trie.errors import ArgumentError
from token_trie.llama.query import Plan
from token_trie.llama.text import Text, TextOptions
from token_trie.native.core import Llama
from token_trie.native.lifetime import LruCache, attachment
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
from token_trie.records.gbnf import MAX_STATES, too_many
from token_trie.records.keywords import OF_KIND
from token_trie.records.nodes import Node, Object, types_in
from token_trie.records.schema import read_measured
from token_trie.records.tool_prompt import PLAIN, CallTemplate, ask_for_tools
from token_trie.records.verbatim import check_used, source_of
from token_trie.records.write import RecordDecoder

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import RecordKeywords


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
    n_states: int = 0
    """The size of its patterns."""


_VALIDATING = {"anyOf", "oneOf", "allOf", "$ref", "enum", "const", "patternProperties", "propertyNames"}
_MAX_READ = 1 << 20
_tools: LruCache[Tool] = LruCache(512, 1 << 20)


def read_tools(tools: Sequence[object], positions: Sequence[int] | None = None) -> tuple[Tool, ...]:
    """Read tools, with a cache; ArgumentError names the tool that is invalid or not supported.

    `positions`: those of the tools in the list that they are a part of.
    """
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise ArgumentError(f"tools must be a list of tools, not {type(tools).__name__}")
    if not tools:
        raise ArgumentError("tools: none given")
    found: dict[str, Tool] = {}
    n_states = 0
    for i, given in zip(positions or range(len(tools)), tools, strict=True):
        tool = _read_one(given, f"tools[{i}]")
        n_states += tool.n_states
        if n_states > MAX_STATES:
            raise ArgumentError(f"tools[{i}]: the patterns up to here have {too_many(n_states)}")
        if tool.name in found:
            where = ".function.name" if isinstance(given, Mapping) else ""
            raise ArgumentError(f"tools[{i}]{where}: {tool.name!r} comes twice")
        found[tool.name] = tool
    return tuple(found.values())


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
        node, n_states = _read_laxly(function.get("parameters"), ignored)
    except ArgumentError as error:
        raise ArgumentError(f"{where}.function.parameters: {error}") from error
    return Tool(name, node, json.loads, tool, tool, tuple(ignored or ()), n_states)


def _read_laxly(parameters: Any, ignored: list[str] | None) -> tuple[Node, int]:
    """Do as `_read_parameters`; with `ignored`, a property that cannot be read is any value, and no keyword is read."""
    try:
        return _read_parameters(parameters, ignored)
    except ArgumentError as error:
        given = parameters.get("properties") if isinstance(parameters, dict) else None
        if ignored is None or not isinstance(given, dict):
            raise
        kept = {name: parameters[name] for name in ("$defs", "definitions") if name in parameters}
        if len(json.dumps(kept)) * len(given) > _MAX_READ:  # each property is read with all definitions
            raise
        ignored[:] = [str(error)]
    required, properties = parameters.get("required"), {}
    for name, schema in given.items():
        try:
            _read_parameters({"type": "object", "properties": {name: schema}, "required": [name], **kept}, [])
            properties[name] = schema
        except ArgumentError as error:
            properties[name] = True
            ignored.append(str(error))
    names = [name for name in given if name in required] if isinstance(required, list) else []
    more: list[str] = []
    found = _read_parameters({"type": "object", "properties": properties, "required": names, **kept}, more)
    ignored[:] = dict.fromkeys([*ignored, *more])
    return found


def _read_parameters(parameters: Any, ignored: list[str] | None = None) -> tuple[Node, int]:
    if parameters is None or parameters == {}:
        return Object(()), 0
    says_more = isinstance(parameters, dict) and (parameters.get("required") or parameters.keys() & _VALIDATING)
    if isinstance(parameters, dict) and parameters.get("type") == "object" and not says_more:
        # An unspecified object: any value for a schema, no arguments for a tool.
        more = {} if "additionalProperties" in parameters else {"properties": parameters.get("properties") or {}}
        parameters = parameters | more
    if isinstance(parameters, dict) and parameters.keys() & OF_KIND["object"]:
        parameters = {"type": "object", **parameters}
    node, n_states = read_measured(parameters, ignored)
    if types_in(node) != {"object"}:
        raise ArgumentError("not an object with properties")
    return node, n_states


def _read_callable(tool: Any) -> Tool:
    template = read_template(tool if isinstance(tool, type) else _arguments_of(tool))
    if not isinstance(template.schema, dict):
        raise ArgumentError("not an object with properties")
    described = template.schema.get("description") if isinstance(tool, type) else inspect.getdoc(tool)
    parameters = {key: value for key, value in _untitled(template.schema).items() if key != "description"}
    node, n_states = _read_parameters(parameters)
    function = {"name": tool.__name__, **({"description": described} if described else {}), "parameters": parameters}
    shown = {"type": "function", "function": function}
    return Tool(tool.__name__, node, template.read, shown, tool, n_states=n_states)


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

_TAGS = ("<tool_call>", "<tool_calls>", "<function_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call|>")
"""Texts that begin a call in the templates of Qwen, Hermes, Mistral, Llama, Granite and Phi."""
_OPENING = re.compile(r"(```\w*|<tools?>|[\[{]|Action:)?\s*\Z")
"""Text that models write before the JSON of a call."""
OPENINGS = ("```", "<tools>", "Action:")
"""Such texts, which a stream holds back where one may have begun."""


def beginnings_of_calls(tools: Sequence[Tool], template: CallTemplate) -> tuple[str, ...]:
    """Return texts that begin a call of one of the tools; small models forget the tag, or write another."""
    own = template.before.strip()
    tags = dict.fromkeys([*_TAGS, own] if own and not own.startswith("{") else _TAGS)
    names = [json.dumps(tool.name, ensure_ascii=False) for tool in tools]
    lines = ("{", "{ ", "{\n  ", "{\n    ", "{\n\t")
    return (
        *tags,
        *(f'{line}"{key}":{space}{name}' for name in names for line in lines for key in _KEYS for space in (" ", "")),
        *(f"{before}{tool.name}{after}" for tool in tools for before, after in (("<function=", ""), ("[", "("))),
    )


_KEYS = ("name", "function")


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
    offsets : dict of str to (int, int)
        Where verbatim arguments stand in the text; as of `Record`.
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
    offsets: dict[str, tuple[int, int]] = field(default_factory=dict, compare=False)

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
    """Make the request for a call in the format of a template; ArgumentError for a text that no tool takes from."""
    check_used(options.text, [tool.node for tool in tools])

    def fill(decoder: RecordDecoder) -> Plan[Callable[..., ToolCall[Any]]]:
        names = tuple(json.dumps(tool.name, ensure_ascii=False)[1:-1] for tool in tools)
        index, probability = yield from decoder.choose(names, template.between)
        tool = tools[index]
        decoder.writer.write(template.between)
        text = yield from decoder.run(tool.node, template.after)
        value = tool.read(text)
        decoder.writer.write(template.after)
        own = tool.name, json.loads(text), value, tool.given, text, probability, decoder.probabilities
        return partial(ToolCall, *own, ignored=tool.ignored, offsets=decoder.offsets)

    return RecordRequest(options, fill, template.before, template.layout)


N_BEGINNING = 32
"""Tokens in which the model can begin a call, where the other answer is no text."""


@dataclass(frozen=True)
class CallOrText(Request[Any]):
    """A request for a call of a tool if that is what the model begins to write, and for another answer if not.

    A text is what the model writes when nothing is forbidden, up to what would begin a call.
    """

    call: RecordRequest[ToolCall[Any]]
    text: TextRequest
    """The text that the model writes, with the beginnings among its stop strings."""
    beginnings: tuple[str, ...]
    """The results of `beginnings_of_calls`."""
    otherwise: PlanOf[Any, Any] | None = None
    """Plans another answer in place of the text."""

    def after(self, model: Model, prefix: Prefix) -> Plan[Any]:
        """Plan the answer."""
        text = yield from self.text.after(model, prefix)
        if text.stop_string in self.beginnings:
            text = replace(text, text=text_before(text.text))
            if not text.text:
                return (yield from self.call.after(model, prefix))
        return text if self.otherwise is None else (yield from self.otherwise(model, prefix.tokens))


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
        are ignored, a property that cannot be read is any value, and `ToolCall.ignored` lists both. Or pydantic models
        and other classes that `fill` supports, whose names are the tools' names; or functions whose parameters have
        type hints. The docstring of a class or function is the tool's description, and ``Annotated[…,
        pydantic.Field(description=…)]`` describes a parameter. Classes and functions need the extra ``records``.
    tool_choice : {"required", "auto"}
        "required": the answer is a call. "auto": a call if the model begins one at once, else the text that it writes,
        of up to `max_tokens`, which ends before what would begin a call.
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
        assert model.llm is not None
        thinks = options.think is not None
        tokens, template = ask_for_tools(model.llm, messages, shown, model.n_ctx, must=not is_free, thinks=thinks)
        source = options.text if options.text is not None else source_of(messages)
        call = tool_request(tools, options, template).of_text(source)
        if not is_free:
            return (yield from call.plan(model, tokens))
        beginnings = beginnings_of_calls(tools, template)
        drawn = vars(options.settled(options.mode == "sampled")) | {"seed": options.seed}
        text = TextRequest(options.max_tokens, TextOptions(**drawn, stop=beginnings))
        answer: ToolCall[Any] | Text = yield from CallOrText(call, text, beginnings).plan(model, tokens)
        return answer

    return plan
