"""Decisions as tools of the Model Context Protocol, over standard input and output."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from token_trie import __version__
from token_trie.decisions.choose import ChoiceRequest
from token_trie.decisions.options import ChooseOptions
from token_trie.errors import TokenTrieError
from token_trie.serve.engine import Engine
from token_trie.serve.limits import IN_PIECES, Limits, RefusedError, check_depth, parse, refusal_of
from token_trie.serve.sets import Sets
from token_trie.serve.systemone import JsonText, Noul, ScoreShape, SystemOneRequest, systemone
from token_trie.sets.prompt import Filled, Prompt

_LIMITS = Limits(options=10_000)

_DECIDE = """\
Let a local language model answer typed questions about a state, each independently, with a probability for every \
option. A choice has criteria {option: description or null}; a score has criteria [level, …], lowest first; a noul is \
a yes-or-no question, whose answer is the probability of yes. Describe options alike, each as one would say it in \
answer. Example: {"state": "I was charged twice", "questions": {"team": {"type": "choice", "instructions": "Which \
team?", "criteria": {"billing": "payments and charges", "technical": "the app does not work"}}}}"""
_CHOOSE = """\
Let a local language model continue a prompt with one of the choices, and tell the probability of each among them. \
The prompt should end where the answer begins, such as "Q: What is the capital of France?\\nA:"."""


class Described(BaseModel):
    """A question answered by one of its options."""

    type: Literal["choice"]
    instructions: JsonText | None = None
    criteria: Annotated[dict[str, JsonText | None], Field(min_length=2), IN_PIECES]


class Decide(BaseModel):
    """Questions about a state."""

    model_config = ConfigDict(extra="forbid")

    state: JsonText = Field(description="What the questions are about: text, or a JSON value.")
    questions: dict[str, Annotated[Noul | Described | ScoreShape, Field(discriminator="type")]] = Field(
        min_length=1, description="Questions by names of your own."
    )


class Choose(BaseModel):
    """A prompt and its choices."""

    model_config = ConfigDict(extra="forbid")

    prompt: StrictStr = Field(min_length=1, description="Text that the answer follows.")
    choices: list[StrictStr] = Field(min_length=1, description="The answers that there are.")
    chat: StrictBool = Field(default=False, description="Whether the prompt is a message to the model, as in a chat.")


async def serve_tools(engine: Engine, name: str) -> None:
    """Answer a client on standard input and output until it leaves; nothing else may write there.

    Parameters
    ----------
    name : str
        Name of the model, for the client.
    """

    async def decide(arguments: dict[str, Any]) -> dict[str, Any]:
        asked = parse(Decide, arguments)
        body = parse(SystemOneRequest, asked.model_dump())
        return await systemone(engine, body, Sets(), _LIMITS, name)

    async def choose(arguments: dict[str, Any]) -> dict[str, Any]:
        asked = parse(Choose, arguments)
        choices = list(dict.fromkeys(asked.choices))
        said = Filled([("", asked.prompt)])  # names of control tokens are text here
        prompt: Prompt = [{"role": "user", "content": asked.prompt}] if asked.chat else said
        request = ChoiceRequest.read(choices, ChooseOptions(probabilities=True))
        answer = (await engine.read(lambda: (prompt, request))).result
        assert answer.probabilities is not None
        probabilities = dict(zip(choices, answer.probabilities.tolist(), strict=True))
        ranked = sorted(probabilities.items(), key=lambda one: -one[1])
        return {"choice": answer.value, "probabilities": dict(ranked), "mass": answer.mass, "fits": answer.fits}

    calls = {"decide": decide, "choose": choose}
    hints = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    tools = [
        Tool(name=name, description=text, input_schema=shape.model_json_schema(), annotations=hints)
        for name, text, shape in (("decide", _DECIDE, Decide), ("choose", _CHOOSE, Choose))
    ]

    async def list_tools(_context: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(_context: Any, params: CallToolRequestParams) -> CallToolResult:
        call = calls.get(params.name)
        if call is None:
            raise MCPError(INVALID_PARAMS, f"no tool {params.name!r}; there are {', '.join(calls)}")
        arguments = params.arguments or {}
        try:
            check_depth(arguments, _LIMITS.depth)
            result = await call(arguments)
        except RefusedError as refused:
            return _refused(refused)
        except TokenTrieError as error:
            return _refused(refusal_of(error))
        text = json.dumps(result, ensure_ascii=False, allow_nan=False)
        return CallToolResult(content=[TextContent(text=text)], structured_content=result)

    server: Server[Any] = Server("token-trie", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _refused(refused: RefusedError) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=refused.placed)], is_error=True)
