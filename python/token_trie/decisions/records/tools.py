"""`choose_tool`: one of some tools, with its arguments."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from token_trie.decisions.options import RecordOptions
from token_trie.decisions.records.filling import Filling, RecordRequest
from token_trie.decisions.records.record import RecordStats
from token_trie.decisions.records.templates import CallTemplate, ask_for_tools
from token_trie.decisions.records.toolset import Tool, read_tools
from token_trie.decisions.runner import run
from token_trie.llama.chooser import n_ctx_of
from token_trie.native.core import Llama
from token_trie.native.lease import lease
from token_trie.native.options import takes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import RecordKeywords

T = TypeVar("T")

PLAIN = CallTemplate('{"name":"', '","arguments":', "}")
"""A call as it is written where the model's template has no way of its own."""


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
    """The arguments' JSON."""
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
        """Name and arguments, as OpenAI has them."""
        return {"name": self.name, "arguments": self.text}

    def to_dict(self) -> dict[str, Any]:
        """Return it as an item of OpenAI's ``tool_calls``."""
        return {"id": self.id, "type": self.type, "function": self.function}


def tool_request(
    tools: tuple[Tool, ...], options: RecordOptions, template: CallTemplate = PLAIN
) -> RecordRequest[ToolCall[Any]]:
    """Request a call, written by a template."""

    def fill(under_way: Filling) -> ToolCall[Any]:
        decoder = under_way.decoder
        names = tuple(json.dumps(tool.name, ensure_ascii=False)[1:-1] for tool in tools)
        index, probability = decoder.choose(names, template.between)
        tool = tools[index]
        under_way.writer.write(template.between)
        text = decoder.run(tool.node, template.behind)
        value = tool.read(text)
        under_way.writer.write(template.behind)
        own = tool.name, json.loads(text), value, tool.given, text
        return ToolCall(*own, probability, decoder.probabilities, *under_way.told(), ignored=tool.ignored)

    return RecordRequest(options, fill, template.before)


@overload
def choose_tool(
    llm: Llama, messages: Sequence[Mapping[str, Any]], tools: Sequence[type[T]], **options: Unpack[RecordKeywords]
) -> ToolCall[T]: ...
@overload
def choose_tool(
    llm: Llama,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | Sequence[Callable[..., Any]],
    **options: Unpack[RecordKeywords],
) -> ToolCall[dict[str, Any]]: ...
@overload
def choose_tool(
    llm: Llama, messages: Sequence[Mapping[str, Any]], tools: Sequence[object], **options: Unpack[RecordKeywords]
) -> ToolCall[Any]: ...
@takes(RecordOptions)
def choose_tool(
    llm: Llama, messages: Sequence[Mapping[str, Any]], tools: Sequence[object], **options: Unpack[RecordKeywords]
) -> ToolCall[Any]:
    """Let the model call one of some tools.

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
    **options
        Those of `RecordOptions`.

    Returns
    -------
    ToolCall
        Nothing is called: ``call.tool(**call.value)`` calls a function.

    Raises
    ------
    TokenTrieError
        As in `fill`; also if the messages do not fit the model's chat template.

    Notes
    -----
    If the model's chat template supports tools, it describes them to the model, and the call is written in its format.
    Otherwise, this is added to the system message: "Answer with one call of these tools, as JSON of this form:", the
    form ``{"name":…,"arguments":{…}}``, and each tool's function as one line of JSON. The call has this form. Calls and
    results in the messages are then text in turns of the assistant and the user. If the template has no system message,
    as Gemma 2's, its text begins the first turn of the user.

    Arguments of calls in the messages are JSON objects, or the text of one, as OpenAI has them. The template gets an
    object.
    """
    asked, read = RecordOptions.read("choose_tool", options), read_tools(tools)
    shown = [tool.shown for tool in read]
    with lease(llm):
        tokens, template = ask_for_tools(llm, messages, shown, n_ctx_of(llm), thinks=asked.think is not None)
    return run(llm, tokens, tool_request(read, asked, template or PLAIN))
