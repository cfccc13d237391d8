"""``POST /v1/chat/completions`` and ``POST /v1/completions``: answers in OpenAI's format, whole or as events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from token_trie.native.core import Llama
from token_trie.records.tools import for_template, read_arguments, read_tools
from token_trie.serve import shapes
from token_trie.serve.answers import (
    ANY_OBJECT,
    AnswerConstraint,
    Answering,
    AnswerOptions,
    Calling,
    ConstrainedPrompt,
    Turns,
    answer_of,
    plain,
)
from token_trie.serve.decisions import together
from token_trie.serve.errors import Place, invalid, refusing
from token_trie.serve.limits import Claim, check_depth, levels_of
from token_trie.serve.responses import EventStream, Wire
from token_trie.serve.service import Service
from token_trie.serve.sets import KEYS, AnySet, Sets, read_set
from token_trie.serve.shapes import ChatRequest, CompletionRequest, GenerationRequest
from token_trie.sets.prompt import Filled, Prompt, has_chat_template

_ANSWER_BYTES = 16 << 10
"""Memory of an answer while it is generated."""
_MAX_PROMPTS = 128
_DEFAULT_TOKENS = 16
"""Maximum tokens of a completion, as in OpenAI's format."""
_PLAIN_STOPS = ("\nuser:", "\nsystem:", "\nassistant:")
"""Stop strings in plain text: another turn begins."""


async def chat_completion(service: Service, body: ChatRequest, claim: Claim) -> Any:
    """Answer a chat; RefusedError, with the place, if it cannot be answered."""
    claim.add(_ANSWER_BYTES)
    asked = await service.engine.on_worker(lambda: _read_chat(service, body))
    return await _respond(service, body, [asked], Wire(service.config.name, is_chat=True))


async def completion(service: Service, body: CompletionRequest, claim: Claim) -> Any:
    """Complete prompts; errors as in `chat_completion`."""
    prompts = prompts_of(body)
    claim.add(_ANSWER_BYTES * len(prompts))
    asked = await service.engine.on_worker(lambda: _read_prompts(service, body, prompts))
    return await _respond(service, body, asked, Wire(service.config.name, is_chat=False))


def _read_chat(service: Service, body: ChatRequest) -> Answering:
    refuse_unsupported(body)
    turns = turns_of(body.messages)
    constraint = constraint_of(body, service.sets)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    n_alternatives = (body.top_logprobs or 0) if body.logprobs else None
    stops = () if constraint != AnswerConstraint() or has_chat_template(service.engine.llm) else _PLAIN_STOPS
    options = _options_of(body, max_tokens, n_alternatives, stops)
    text = ConstrainedPrompt(lambda llm: prompt_of(llm, turns), constraint, options)
    return _calling(body, turns, text) or text


def _read_prompts(service: Service, body: CompletionRequest, prompts: list[str | list[int]]) -> list[Answering]:
    refuse_unsupported(body)
    constraint = constraint_of(body, service.sets)
    options = _options_of(body, _DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens, body.logprobs)

    def asked(given: str | list[int]) -> ConstrainedPrompt:
        def prompt(_: Llama) -> Prompt:
            return Filled([("", given)]) if isinstance(given, str) and not body.parse_special else given

        return ConstrainedPrompt(prompt, constraint, options)

    return [asked(given) for given in prompts]


async def _respond(service: Service, body: GenerationRequest, asked: Sequence[Answering], wire: Wire) -> Any:
    if not body.stream:
        answers = await together(answer_of(service.engine, one) for one in asked)
        return await service.engine.on_worker(lambda: wire.whole(answers))
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    return await EventStream(service.engine, asked, wire, with_usage=with_usage).begin()


# Options


def _options_of(
    body: GenerationRequest, max_tokens: int | None, n_alternatives: int | None, stops: Sequence[str] = ()
) -> AnswerOptions:
    own = [body.stop] if isinstance(body.stop, str) else body.stop or []
    sampling: dict[str, Any] = {
        "top_p": float(body.top_p or 1.0),
        "top_k": max(body.top_k or 0, 0),
        "min_p": float(body.min_p or 0.0),
        # Seed -1 is a random one, as in llama.cpp.
        "seed": None if body.seed is None or body.seed == -1 else body.seed % (2**32 - 1),
    }
    if body.top_p == 0:
        sampling["temperature"] = 0.0
    elif body.temperature is not None:
        sampling["temperature"] = float(body.temperature)
    texts = (*(text for text in own if text), *stops)
    return AnswerOptions(sampling, max_tokens, texts, n_alternatives, body.x_distribution)


_UNSUPPORTED: list[tuple[Any, ...]] = [
    (0, "presence_penalty", "frequency_penalty", "mirostat", "min_tokens", "dry_multiplier", "xtc_probability"),
    (0, "dynatemp_range"),
    (1, "n", "best_of", "repetition_penalty", "repeat_penalty", "typical_p"),
    (-1, "n_predict", "top_n_sigma"),
    (False, "echo", "ignore_eos", "use_beam_search", "include_stop_str_in_output", "continue_final_message"),
    (True, "skip_special_tokens", "add_generation_prompt"),
    ("", "suffix", "grammar", "guided_grammar"),
    ([], "stop_token_ids", "bad_words", "functions"),
    ({}, "logit_bias"),
    (["text"], "modalities"),
    (None, "allowed_token_ids", "truncate_prompt_tokens", "prompt_logprobs", "chat_template", "audio"),
    (None, "web_search_options", "guided_regex", "regex", "ebnf"),
]
"""A value that changes nothing, and fields that are not supported with any other."""
_NEUTRAL = {name: value for value, *names in _UNSUPPORTED for name in names}


def refuse_unsupported(body: GenerationRequest) -> None:
    """Refuse a field that would change the answer but is not supported."""
    for name, given in (body.model_extra or {}).items():
        if given is not None and given != _NEUTRAL.get(name, given):
            raise invalid("is not supported here", (name,), "unsupported")
    outputs = body.structured_outputs
    for name, given in ((outputs.model_extra if outputs is not None else None) or {}).items():
        if name in ("grammar", "regex", "structural_tag") and given is not None:
            raise invalid("is not supported here", ("structured_outputs", name), "unsupported")


# Constraints


def constraint_of(body: GenerationRequest, sets: Sets) -> AnswerConstraint:
    """Return the constraint of a request; RefusedError for two constraints, or an unknown set."""
    found = list(_constraints(body, sets))
    if len(found) > 1:
        raise invalid(
            f"goes with no {'.'.join(map(str, found[0].place))}: an answer has one constraint", found[1].place
        )
    if not found and body.structured_outputs is not None and body.structured_outputs.model_extra:
        raise invalid("has none of choice, json and json_object", ("structured_outputs",), "unsupported")
    return found[0] if found else AnswerConstraint()


def _constraints(body: GenerationRequest, sets: Sets) -> Iterator[AnswerConstraint]:
    outputs = body.structured_outputs or shapes.StructuredOutputs(json=None)
    for choice, place in (
        (outputs.choice, ("structured_outputs", "choice")),
        (body.token_trie, ("token_trie",)),
        (body.guided_choice, ("guided_choice",)),
    ):
        if choice is not None:
            yield AnswerConstraint(place, choices=_choices_of(choice, sets, place))
    for schema, place in (
        (outputs.json_, ("structured_outputs", "json")),
        (ANY_OBJECT if outputs.json_object else None, ("structured_outputs", "json_object")),
        (body.guided_json, ("guided_json",)),
        (body.json_schema, ("json_schema",)),
    ):
        if schema is not None:
            yield _by_schema(schema, place)
    if body.response_format is not None and body.response_format.type != "text":
        yield _by_format(body.response_format)


def _choices_of(given: Any, sets: Sets, place: Place) -> Callable[[Llama], AnySet]:
    if isinstance(given, dict) and "set" in given and set(given) <= {"set", *KEYS} and len(given) <= 2:
        found = sets.get(given["set"], (*place, "set"))
        return lambda _: sets.filtered(found, given) if len(given) == 2 else found.members
    if isinstance(given, dict) and isinstance(given.get("set"), str) and given["set"] in sets:
        raise invalid("beside the name of a set, one of mask and indices is known", place)
    return lambda llm: read_set(llm, given)


def _by_format(given: shapes.ResponseFormat) -> AnswerConstraint:
    place: Place = ("response_format",)
    if given.schema_ is not None:
        return _by_schema(given.schema_, (*place, "schema"))
    if given.type == "json_object" and given.json_schema is None:
        return AnswerConstraint(place, schema=ANY_OBJECT)
    if given.json_schema is None or given.json_schema.schema_ is None:
        raise invalid("missing", (*place, "json_schema", "schema"), "missing")
    strict = given.json_schema.strict is not False
    return _by_schema(given.json_schema.schema_, (*place, "json_schema", "schema"), strict=strict)


def _by_schema(given: Any, place: Place, *, strict: bool = True) -> AnswerConstraint:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise invalid(f"no JSON: {error}", place, "json_invalid") from None
        check_depth(given, place=place)
    if not isinstance(given, dict):
        raise invalid("an object belongs here", place, "dict_type")
    check_schema(given, place)
    return AnswerConstraint(place, schema=given, strict=strict)


_MAX_ALTERNATIVES, _MAX_VALUES = 256, 25_000


def check_schema(schema: Any, place: Place) -> None:
    """Refuse a JSON Schema with too many values or alternatives, as comparing them takes long."""
    n_values = n_pairs = 0
    for level in levels_of(schema):
        n_values += len(level)
        if n_values > _MAX_VALUES:
            raise invalid(f"more than {_MAX_VALUES:,} values, keys and keywords", place, "too_long")
        for each in level:
            for name in ("oneOf", "anyOf") if isinstance(each, dict) else ():
                n_pairs += len(each[name]) ** 2 if isinstance(each.get(name), list) else 0
                if n_pairs > _MAX_ALTERNATIVES**2:
                    raise invalid(
                        f"{name}: more than {_MAX_ALTERNATIVES} schemas, or as many pairs of them", place, "too_long"
                    )


# Tools


def _calling(body: ChatRequest, turns: Turns, otherwise: ConstrainedPrompt) -> Calling | None:
    """Return the tools that may be called; None if there are none. RefusedError for an unknown tool."""
    choice = body.tool_choice
    if not body.tools or choice == "none":
        if isinstance(choice, dict) or choice == "required":
            raise invalid("there are no tools", ("tool_choice",))
        return None
    check_schema(body.tools, ("tools",))
    with refusing(("tools",)):
        tools = read_tools(body.tools)
    must = choice == "required"
    if isinstance(choice, dict):
        names, must = _chosen(choice)
        if missing := names - {tool.name for tool in tools}:
            raise invalid(f"there is no tool {min(missing)!r}", ("tool_choice",))
        tools = tuple(tool for tool in tools if tool.name in names)
    if must and (place := otherwise.constraint.place):
        raise invalid("goes with no tool that is to be called: an answer has one constraint", place)
    if body.logprobs:
        raise invalid("goes with no tools", ("logprobs",), "unsupported")
    return Calling(turns, tools, None if must else otherwise, otherwise.options)


def _chosen(choice: Any) -> tuple[set[str], bool]:
    """Return the names in a choice of tools, and whether one of them must be called."""
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            return {name}, True
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [_, *_] as some},
        }:
            return set().union(*(_chosen(one)[0] for one in some if isinstance(one, dict))), mode == "required"
    raise invalid("names a function, or has a mode and some allowed_tools", ("tool_choice",))


# Prompts


def prompts_of(body: CompletionRequest) -> list[str | list[int]]:
    """Return the prompts of a request, at least one."""
    given: Any = body.prompt
    is_one = isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))
    prompts: list[str | list[int]] = [given] if is_one else given
    if not 1 <= len(prompts) <= _MAX_PROMPTS:
        raise invalid(f"{len(prompts):,} prompts; 1 to {_MAX_PROMPTS} are answered at once", ("prompt",))
    return prompts


def turns_of(messages: Sequence[shapes.Message]) -> Turns:
    """Return messages in the format of chat templates; RefusedError for content that is not text."""
    turns = []
    for i, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role
        turn: dict[str, Any] = {"role": role, "content": _content(message, i)}
        if message.tool_calls:
            turn["tool_calls"] = [
                _call(call, ("messages", i, "tool_calls", k)) for k, call in enumerate(message.tool_calls)
            ]
        for name in ("name", "tool_call_id"):
            if getattr(message, name) is not None:
                turn[name] = getattr(message, name)
        turns.append(turn)
    return turns


def _call(call: shapes.Call, place: Place) -> dict[str, Any]:
    place = (*place, "function", "arguments")
    with refusing(place):
        arguments = read_arguments(call.function.arguments)
    check_depth(arguments, place=place)
    return {**call.model_dump(), "function": {"name": call.function.name, "arguments": arguments}}


def _content(message: shapes.Message, index: int) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for i, part in enumerate(message.content):
        if part.type == "input_json" or part.type in get_args(shapes.Unreadable):
            raise invalid(f"{part.type}: text alone is understood", ("messages", index, "content", i), "unsupported")
    return "\n".join(part.text or part.refusal for part in message.content)


def prompt_of(llm: Llama, turns: Turns) -> Prompt:
    """Return the prompt of messages, by the model's own template or, without one, in plain text."""
    if not has_chat_template(llm):
        return plain(turns)
    return for_template(llm, turns)
