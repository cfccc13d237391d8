"""`choose_tool`: one of OpenAI's tools, with its arguments."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from token_trie.decisions.how import ANY_SEED
from token_trie.decisions.records.filling import FillOptions, How, filling, read_how
from token_trie.decisions.records.plan import Node, Object
from token_trie.decisions.records.record import RecordStats
from token_trie.decisions.records.schema import read_schema
from token_trie.decisions.records.templates import Form, ask_for_tools
from token_trie.errors import ArgumentError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.chooser import cancel, chooser, room_of
from token_trie.llama.program import Program
from token_trie.native.arguments import check_names
from token_trie.native.core import Llama
from token_trie.native.lease import lease
from token_trie.sets.memory import Memory

if TYPE_CHECKING:
    from typing_extensions import Unpack


PLAIN = Form('{"name":"', '","arguments":', "}")
"""A call as it is written where the model's template has no way of its own."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool.

    Attributes
    ----------
    id, type, function
        As in OpenAI's ``tool_calls``: function is a dict of name and arguments, these as JSON; see `to_dict`.
    name : str
        Of the tool.
    arguments : dict
        What it is called with, valid by its parameters.
    probability : float
        Of the name, as of the values in `Record.probabilities`.
    probabilities : dict of str to float
        Of the arguments, by JSON pointer.
    truncated : tuple of str
        Pointers of arguments that were closed because their tokens were out.
    stats : RecordStats
        What it took.
    thought : str or None
        What the model wrote before the call, up to the marker; None where it was not asked to think.
    """

    name: str
    arguments: dict[str, Any]
    text: str
    """The arguments' JSON."""
    probability: float = field(compare=False)
    probabilities: dict[str, float] = field(compare=False)
    truncated: tuple[str, ...] = ()
    stats: RecordStats | None = field(default=None, compare=False)
    thought: str | None = None
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}", compare=False)
    type: str = "function"

    @property
    def function(self) -> dict[str, str]:
        """Name and arguments, as OpenAI has them."""
        return {"name": self.name, "arguments": self.text}

    def to_dict(self) -> dict[str, Any]:
        """Return it as an item of OpenAI's ``tool_calls``."""
        return {"id": self.id, "type": self.type, "function": self.function}


class Tools(NamedTuple):
    """What may be called."""

    names: tuple[str, ...]
    nodes: tuple[Node, ...]
    """Of the arguments."""
    given: tuple[dict[str, Any], ...]


_read: Memory[Tools] = Memory(64, 1 << 20)


def read_tools(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """Read OpenAI's tools; the last ones are remembered.

    Raises
    ------
    ArgumentError
        There are none, or one is not of the shape, or its parameters are not supported: with the place.
    """
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise ArgumentError(f"tools: {type(tools).__name__} where a list of tools belongs")
    try:
        key = json.dumps([dict(tool) for tool in tools], allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"tools: no JSON: {error}") from error
    return _read.get(key, len(key), lambda: _read_all(json.loads(key)))


def _read_all(tools: list[dict[str, Any]]) -> Tools:
    if not tools:
        raise ArgumentError("tools: none given")
    names: list[str] = []
    nodes = []
    for i, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict):
            raise ArgumentError(f'tools[{i}]: not {{"type": "function", "function": {{…}}}}')
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"tools[{i}].function.name: {name!r} is no name")
        if name in names:
            raise ArgumentError(f"tools[{i}].function.name: {name!r} comes twice")
        names.append(name)
        nodes.append(_read_parameters(function.get("parameters"), f"tools[{i}].function.parameters"))
    return Tools(tuple(names), tuple(nodes), tuple(tools))


def _read_parameters(parameters: Any, where: str) -> Node:
    if parameters is None or parameters == {}:
        return Object(())
    try:
        node = read_schema({"properties": {}} | parameters if parameters == {"type": "object"} else parameters)
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {error}") from error
    if not isinstance(node, Object):
        raise ArgumentError(f"{where}: not an object with properties")
    return node


def call_tool(handle: Program, tools: Tools, how: How, form: Form = PLAIN, prompt: list[int] | None = None) -> ToolCall:
    """Let a call be written in the form given, behind what stands or a prompt in its place."""
    with filling(handle, how, prompt, form.before) as under_way:
        names = tuple(json.dumps(name, ensure_ascii=False)[1:-1] for name in tools.names)
        index, probability = under_way.walk.choose(names, form.between)
        under_way.writer.write(form.between)
        text = under_way.walk.run(tools.nodes[index], form.behind)
        under_way.writer.write(form.behind)
        under_way.writer.flush()
        return ToolCall(
            tools.names[index],
            json.loads(text),
            text,
            probability,
            under_way.walk.probabilities,
            *under_way.told(),
        )


def choose_tool(
    llm: Llama,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    **options: Unpack[FillOptions],
) -> ToolCall:
    """Let the model call one of some tools.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    messages : sequence of dict
        Chat messages.
    tools : sequence of dict
        As OpenAI has them: ``{"type": "function", "function": {"name": …, "description": …, "parameters": schema}}``.
        Schemas are those that `fill` takes, of objects.
    **options
        Those of `fill`.

    Returns
    -------
    ToolCall

    Raises
    ------
    TokenTrieError
        As of `fill`; also where messages and template do not fit each other.

    Notes
    -----
    Where the model's chat template knows tools, it tells of them, and the call is written as it writes one. Otherwise
    the system message ends in "Answer with one call of these tools, as JSON of this form:", the form
    ``{"name":…,"arguments":{…}}``, and each tool's function as JSON on a line, and so the call is written.
    """
    check_names("choose_tool", options, FillOptions.__annotations__)
    read, how = read_tools(tools), read_how(**options)
    with lease(llm):
        tokens, form = ask_for_tools(llm, messages, read.given, room_of(llm), thinks=how.think is not None)
    with chooser(llm) as handle:
        if how.seed is None:
            handle.set_seed(ANY_SEED)
        return call_tool(handle, read, how, form or PLAIN, tokens)


async def achoose_tool(
    llm: Llama,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    **options: Unpack[FillOptions],
) -> ToolCall:
    """Do as `choose_tool` does, on a worker thread; a task that is cancelled ends it."""
    return await in_worker(lambda: choose_tool(llm, messages, tools, **options), lambda thread: cancel(llm, thread))
