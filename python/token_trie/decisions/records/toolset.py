"""Tools in the forms that programs have them in: OpenAI's, classes that pydantic reads, functions with type hints."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

from token_trie.decisions.records.layout import Layout, Position, Whole, ways
from token_trie.decisions.records.plan import Node, Object
from token_trie.decisions.records.schema import read_schema
from token_trie.decisions.records.types import json_key, read_template
from token_trie.errors import ArgumentError
from token_trie.sets.memory import Memory


class Tool(NamedTuple):
    """What may be called."""

    name: str
    node: Node
    """Of the arguments."""
    read: Callable[[str], Any]
    """Makes the value of the arguments' text."""
    shown: dict[str, Any]
    """It in OpenAI's shape, for the prompt."""
    given: Any
    ignored: tuple[str, ...] = ()
    """What the arguments are not kept to, with the reason."""


_SAYING_MORE = {"anyOf", "oneOf", "allOf", "$ref", "enum", "const", "patternProperties", "propertyNames"}
_read: Memory[Tool] = Memory(512, 1 << 20)


def read_tools(tools: Sequence[object]) -> tuple[Tool, ...]:
    """Read tools; the last are remembered. ArgumentError with the place: none, of no such form, not supported."""
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise ArgumentError(f"tools: {type(tools).__name__} where a list of tools belongs")
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
        return _read.get(key, len(key), lambda: _read_json(json.loads(key), where))._replace(given=tool)
    if not callable(tool) or not isinstance(getattr(tool, "__name__", None), str):
        what = type(tool).__name__
        raise ArgumentError(f"{where}: {what} where a tool of OpenAI's shape, a pydantic model or a function belongs")
    try:
        return _read.get(tool, 1000, lambda: _read_callable(tool))
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {tool.__name__}: {error}") from error


def _read_json(tool: dict[str, Any], where: str) -> Tool:
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise ArgumentError(f'{where}: not {{"type": "function", "function": {{…}}}}')
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"{where}.function.name: {name!r} is no name")
    # As in OpenAI's API, a tool that does not say so is not strict.
    ignored: list[str] | None = None if function.get("strict") is True else []
    try:
        node = _read_parameters(function.get("parameters"), ignored)
    except ArgumentError as error:
        raise ArgumentError(f"{where}.function.parameters: {error}") from error
    return Tool(name, node, json.loads, tool, tool, tuple(ignored or ()))


def _read_parameters(parameters: Any, ignored: list[str] | None = None) -> Node:
    if parameters is None or parameters == {}:
        return Object(())
    says_more = isinstance(parameters, dict) and (parameters.get("required") or parameters.keys() & _SAYING_MORE)
    if isinstance(parameters, dict) and parameters.get("type") == "object" and not says_more:
        # No word of what there is: for a schema anything, for a tool nothing.
        more = {} if "additionalProperties" in parameters else {"properties": parameters.get("properties") or {}}
        parameters = parameters | more
    node = read_schema(parameters, ignored)
    found = ways(Whole(node, Position()), Layout())
    if any((way.text[:1] if way.slot is None else way.slot.begins_with) != "{" for way in found):
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
    """Return a type of dicts that are a function's keyword arguments."""
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
    """Return a schema without the titles that pydantic makes of names, which a prompt is longer for."""
    of_schemas = ("properties", "$defs")

    def plain(key: str, value: Any) -> Any:
        if key in of_schemas:
            return {name: _untitled(part) for name, part in value.items()}
        if key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            return [_untitled(part) for part in value]
        return _untitled(value) if key in ("items", "additionalProperties") and isinstance(value, dict) else value

    return {key: plain(key, value) for key, value in schema.items() if key != "title"}
