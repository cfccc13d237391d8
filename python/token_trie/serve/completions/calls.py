"""Calls of tools: one of those given, or a text where the model may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from token_trie.decisions.free_text import TextRequest
from token_trie.decisions.records.templates import CallTemplate, ask_for_tools, tell_of_tools
from token_trie.decisions.records.tools import PLAIN, tool_request
from token_trie.decisions.records.toolset import Tool, read_tools
from token_trie.decisions.runner import run
from token_trie.errors import TokenTrieError
from token_trie.llama.text import TextOptions
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lease import lease
from token_trie.serve.completions.answers import Asked, Finished, OnText, notes_of, record_options
from token_trie.serve.completions.grammars import check_schema
from token_trie.serve.completions.prompts import plain
from token_trie.serve.completions.shapes import Allowed, ChatRequest, Named
from token_trie.serve.engine import Engine
from token_trie.serve.refusal import invalid, refusal_of
from token_trie.sets.chat_form import has_chat_template
from token_trie.sets.prompt import tokenize_prompt

_PROBED = 4
"""Tokens by which a call is told from a text."""


@dataclass(frozen=True)
class Calling:
    """Messages, and the tools that may be called."""

    turns: list[dict[str, Any]]
    tools: tuple[Tool, ...]
    otherwise: Asked | None
    """What answers where the model calls nothing; None: it is to call."""
    shape: ChatRequest

    async def __call__(self, engine: Engine, place: int, on_text: OnText | None) -> Finished:
        """Answer it."""
        tokens, template = await engine.on_worker(lambda: self._prompt(engine.llm, engine.n_ctx, thinks=True))
        if self.otherwise is not None and not await self._begins_a_call(engine, tokens, template):
            asked = self.otherwise
            behind = Asked(lambda _: tokens, asked.constraint, asked.place, asked.sampling, None, asked.stops)
            return await behind(engine, place, on_text)
        options = record_options(self.shape, place, None)

        def call() -> Any:
            tokens, template = self._prompt(engine.llm, engine.n_ctx, thinks=False)
            return run(engine.llm, tokens, tool_request(self.tools, options, template))

        made = await engine.alone(call)
        more = {"x_probability": made.probability, **notes_of(made.truncated, made.ignored)}
        return Finished("", "tool_calls", made.stats.n_prompt, 0, made.stats.n_tokens, call=made.to_dict(), more=more)

    def _prompt(self, llm: Llama, n_ctx: int, *, thinks: bool) -> tuple[list[int], CallTemplate]:
        shown = [tool.shown for tool in self.tools]
        with lease(llm):
            if not has_chat_template(llm):
                return tokenize_prompt(llm, plain(tell_of_tools(self.turns, shown)), n_ctx), PLAIN
            tokens, template = ask_for_tools(llm, self.turns, shown, n_ctx, thinks=thinks)
            return tokens, template or PLAIN

    async def _begins_a_call(self, engine: Engine, tokens: list[int], template: CallTemplate) -> bool:
        request = TextRequest(engine.llm, _PROBED, TextOptions(temperature=0.0))
        found = await engine.read(lambda: (tokens, request))
        with lease(engine.llm):
            begin = vocab_of(engine.llm).detokenize(found.tokens, True).decode(errors="ignore").strip()
        call = template.before.strip()
        return bool(begin) and (call.startswith(begin) or begin.startswith(call))


def read_calling(shape: ChatRequest, turns: list[dict[str, Any]], otherwise: Asked) -> Calling | None:
    """Return what may be called; None where nothing may. RefusedError for tools that there are not."""
    choice = shape.tool_choice
    if not shape.tools or choice == "none":
        if isinstance(choice, (Named, Allowed)) or choice == "required":
            raise invalid("there are no tools", ("tool_choice",))
        return None
    check_schema(shape.tools, ("tools",))
    try:
        tools = read_tools(shape.tools)
    except TokenTrieError as error:
        raise refusal_of(error, ("tools",)) from error
    must = choice == "required"
    if isinstance(choice, Named):
        tools, must = _only(tools, {choice.function.name}), True
    elif isinstance(choice, Allowed):
        some = choice.allowed_tools
        tools, must = _only(tools, {tool.function.name for tool in some.tools}), some.mode == "required"
    if must and otherwise.place:
        raise invalid("goes with no tool that is to be called: an answer has one constraint", otherwise.place)
    if shape.logprobs:
        raise invalid("goes with no tools", ("logprobs",), "unsupported")
    return Calling(turns, tools, None if must else otherwise, shape)


def _only(tools: tuple[Tool, ...], names: set[str]) -> tuple[Tool, ...]:
    missing = names - {tool.name for tool in tools}
    if missing:
        raise invalid(f"there is no tool {min(missing)!r}", ("tool_choice",))
    return tuple(tool for tool in tools if tool.name in names)
