"""``POST /v1/chat/completions`` and ``POST /v1/completions``: answers in OpenAI's format, whole or as events."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, get_args

from pydantic_core import from_json
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.core import Llama
from token_trie.records.tool_prompt import for_template, read_arguments
from token_trie.records.tools import read_tools
from token_trie.records.verbatim import source_of
from token_trie.serve import shapes
from token_trie.serve.answers import (
    ANY_OBJECT,
    AnswerConstraint,
    Answering,
    AnswerOptions,
    Calling,
    ConstrainedPrompt,
    Finished,
    Part,
    Turns,
    answer_of,
    as_chat,
    as_completion,
    plain,
)
from token_trie.serve.engine import Engine
from token_trie.serve.errors import Place, RefusedError, dotted, invalid, openai_error, refusal_of, refusing
from token_trie.serve.limits import Claim, Usage, check_depth, levels_of
from token_trie.serve.service import Service
from token_trie.serve.sets import AnySet, Sets, read_set
from token_trie.serve.shapes import ChatRequest, CompletionRequest, GenerationRequest
from token_trie.sets.prompt import Filled, Prompt, has_chat_template

T = TypeVar("T")

_ANSWER_BYTES = 16 << 10
"""Memory of an answer while it is generated."""
_PART_BYTES = 64 << 10
_DONE = b"data: [DONE]\n\n"
_MAX_PROMPTS = 128
_DEFAULT_TOKENS = 16
"""Maximum tokens of a completion, as in OpenAI's format."""
_PLAIN_STOPS = ("\nuser:", "\nsystem:", "\nassistant:")
"""Stop strings in plain text: another turn begins."""
_log = logging.getLogger("token_trie.serve")


async def chat_completion(service: Service, body: ChatRequest, claim: Claim) -> Any:
    """Answer a chat; RefusedError, with the place, if it cannot be answered."""
    claim.add(_ANSWER_BYTES)
    ignored = ignored_options(body)
    answering = await _read(service.engine, body, lambda is_large: _read_chat(service, body, ignored, is_large))
    return await _respond(service, body, [answering], Wire(service.config.name, claim, ignored, is_chat=True))


async def completion(service: Service, body: CompletionRequest, claim: Claim) -> Any:
    """Complete prompts; errors as in `chat_completion`."""
    prompts = prompts_of(body)
    claim.add(_ANSWER_BYTES * len(prompts))
    answerings = await _read(service.engine, body, lambda is_large: _read_prompts(service, body, prompts, is_large))
    wire = Wire(service.config.name, claim, ignored_options(body), is_chat=False)
    return await _respond(service, body, answerings, wire)


async def _read(engine: Engine, body: GenerationRequest, read: Callable[[bool], T]) -> T:
    """Read a request on a worker; `read` gets whether that may take long."""
    is_large = await engine.on_worker(lambda: _is_large(body))
    return await engine.on_worker(lambda: read(is_large), is_large=is_large)


_LARGE = 16 << 10
"""Characters of choices, schemas and tools from which reading and planning may take long."""


def _is_large(body: GenerationRequest) -> bool:
    tools = body.tools if isinstance(body, ChatRequest) else None
    given = body.response_format, body.structured_outputs, body.guided_choice, body.format, tools
    return len(json.dumps(given, default=vars)) > _LARGE


def _read_chat(service: Service, body: ChatRequest, ignored: list[str], is_large: bool) -> Answering:
    """Read a chat; `ignored` gets the places of what is left out."""
    refuse_unsupported(body)
    turns = turns_of(body.messages, ignored)
    constraint = constraint_of(body, service.sets)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    n_alternatives = (body.top_logprobs or 0) if body.logprobs else None
    stops = () if constraint != AnswerConstraint() or has_chat_template(service.engine.llm) else _PLAIN_STOPS
    options = _options_of(body, is_large, max_tokens, n_alternatives, stops)
    text = ConstrainedPrompt(lambda llm: prompt_of(llm, turns), constraint, options, source=source_of(turns) or "")
    return _calling(body, turns, text, ignored) or text


def _read_prompts(
    service: Service, body: CompletionRequest, prompts: list[str | list[int]], is_large: bool
) -> list[Answering]:
    refuse_unsupported(body)
    constraint = constraint_of(body, service.sets)
    max_tokens = _DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    options = _options_of(body, is_large, max_tokens, body.logprobs)

    def constrained(given: str | list[int]) -> ConstrainedPrompt:
        def prompt(_: Llama) -> Prompt:
            return Filled([("", given)]) if isinstance(given, str) and not body.parse_special else given

        return ConstrainedPrompt(prompt, constraint, options, source=given if isinstance(given, str) else None)

    return [constrained(given) for given in prompts]


async def _respond(service: Service, body: GenerationRequest, answerings: Sequence[Answering], wire: Wire) -> Any:
    if not body.stream:
        answers = await _all(answer_of(service.engine, one) for one in answerings)
        return await service.engine.on_worker(lambda: wire.whole(answers))
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    return await EventStream(service.engine, answerings, wire, with_usage=with_usage).begin()


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all; if one fails, cancel the others before raising."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


# Options


def _options_of(
    body: GenerationRequest,
    is_large: bool,
    max_tokens: int | None,
    n_alternatives: int | None,
    stops: Sequence[str] = (),
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
    return AnswerOptions(sampling, max_tokens, texts, n_alternatives, is_large)


_UNSUPPORTED: list[tuple[Any, ...]] = [
    (0, "min_tokens"),
    (1, "n", "best_of"),
    (-1, "n_predict"),
    (False, "echo", "ignore_eos", "use_beam_search", "include_stop_str_in_output", "continue_final_message"),
    (True, "skip_special_tokens", "add_generation_prompt"),
    ("", "suffix", "grammar", "guided_grammar"),
    ([], "stop_token_ids", "bad_words", "functions"),
    ({}, "logit_bias"),
    (["text"], "modalities"),
    (None, "allowed_token_ids", "truncate_prompt_tokens", "prompt_logprobs", "chat_template", "audio"),
    (None, "vllm_xargs", "web_search_options", "guided_regex", "guided_json", "json_schema", "regex", "ebnf"),
]
"""A value that changes nothing, and fields that are not supported with any other."""
_IGNORED: list[tuple[Any, ...]] = [
    (0, "presence_penalty", "frequency_penalty", "mirostat", "dry_multiplier", "xtc_probability", "dynatemp_range"),
    (1, "repetition_penalty", "repeat_penalty", "typical_p"),
    (-1, "top_n_sigma"),
]
"""Options of samplers that the server does not have, which programs send for every model."""
_NEUTRAL = {name: value for value, *names in _UNSUPPORTED for name in names}
_SAMPLERS = {name: value for value, *names in _IGNORED for name in names}


def ignored_options(body: GenerationRequest) -> list[str]:
    """Return the options that would change how tokens are drawn and are left out."""
    given = body.model_extra or {}
    return [name for name, neutral in _SAMPLERS.items() if given.get(name) not in (None, neutral)]


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
        (body.guided_choice, ("guided_choice",)),
    ):
        if choice is not None:
            yield AnswerConstraint(place, choices=_choices_of(choice, sets, place))
    if outputs.json_ is not None:
        yield _by_schema(outputs.json_, ("structured_outputs", "json"))
    if outputs.json_object:
        yield AnswerConstraint(("structured_outputs", "json_object"), schema=ANY_OBJECT)
    if body.response_format is not None and body.response_format.type != "text":
        yield _by_format(body.response_format)
    if body.format == "json":
        yield AnswerConstraint(("format",), schema=ANY_OBJECT)
    elif body.format not in (None, ""):
        yield _by_schema(body.format, ("format",))


def _choices_of(given: Any, sets: Sets, place: Place) -> Callable[[Llama], AnySet]:
    if isinstance(given, dict) and "set" in given and set(given) <= {"set", "mask"}:
        found = sets.get(given["set"], (*place, "set"))
        return lambda _: sets.filtered(found, given["mask"]) if "mask" in given else found.members
    if isinstance(given, dict) and isinstance(given.get("set"), str) and given["set"] in sets:
        raise invalid("beside the name of a set, only mask is known", place)
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
        raise invalid("must be an object", place, "dict_type")
    check_schema(given, place)
    return AnswerConstraint(place, schema=given or True, strict=strict)


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


def _calling(body: ChatRequest, turns: Turns, otherwise: ConstrainedPrompt, ignored: list[str]) -> Calling | None:
    """Return the tools that may be called; None if there are none. RefusedError for an unknown tool."""
    choice, must = body.tool_choice, body.tool_choice in ("required", "any")
    if not body.tools or choice == "none":
        if isinstance(choice, dict) or must:
            raise invalid("there are no tools", ("tool_choice",))
        return None
    check_schema(body.tools, ("tools",))
    others = {i: tool["type"] for i, tool in enumerate(body.tools) if tool.get("type", "function") != "function"}
    if len(others) == len(body.tools):
        others = {}
    functions = {i: tool for i, tool in enumerate(body.tools) if i not in others}
    with refusing(("tools",)):
        tools = read_tools(list(functions.values()), list(functions))
    ignored += [f"tools[{i}]: of the type {kind!r}; functions alone are called here" for i, kind in others.items()]
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
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
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


def turns_of(messages: Sequence[shapes.Message], ignored: list[str]) -> Turns:
    """Return messages in the format of chat templates; `ignored` gets the places of what they do not show.

    The older format's calls and results of a `function` become those of a tool. RefusedError for content that is not
    text, unless it is in a turn before the user's last.
    """
    last = max((i for i, message in enumerate(messages) if message.role == "user"), default=0)
    turns = []
    call_id: str | None = None
    for i, message in enumerate(messages):
        role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
        turn: dict[str, Any] = {"role": role, "content": _content(message, i, last, ignored)}
        calls = message.tool_calls or []
        if message.function_call is not None:
            call_id = f"{i:09}"
            calls = [*calls, shapes.Call(id=call_id, function=message.function_call)]
        if calls:
            turn["tool_calls"] = [
                _call(call, ("messages", i, "tool_calls", k), ignored) for k, call in enumerate(calls)
            ]
        if message.name is not None:
            turn["name"] = message.name
        if message.tool_call_id is not None or message.role == "function":
            turn["tool_call_id"] = message.tool_call_id or call_id
        unread = {**(message.model_extra or {}), "name": message.name if role != "tool" else None}
        ignored += [f"messages[{i}].{name}" for name, given in unread.items() if given]
        turns.append(turn)
    return turns


def _call(call: shapes.Call, place: Place, ignored: list[str]) -> dict[str, Any]:
    place, given = (*place, "function", "arguments"), call.function.arguments
    with refusing(place):
        try:
            arguments = read_arguments(given)
        except ArgumentError:
            begun, note = _begun(given)
            arguments = read_arguments(begun)
            ignored.append(f"{dotted(place)}: {note}")
    check_depth(arguments, place=place)
    return {**call.model_dump(), "function": {"name": call.function.name, "arguments": arguments}}


def _begun(given: Any) -> tuple[object, str]:
    """Return the object that a text begins with, or the whole part of one, and a note; else what it was given."""
    try:
        return json.JSONDecoder().raw_decode(str(given).lstrip())[0], "the text after the object is left out"
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return from_json(given, allow_partial="trailing-strings"), "cut short; the model reads what is whole"
    except (TypeError, ValueError):
        return given, ""


def _content(message: shapes.Message, index: int, last: int, ignored: list[str]) -> str:
    if message.content is None or isinstance(message.content, str):
        return shapes.lines(message.content, message.refusal)
    texts = []
    for i, part in enumerate(message.content):
        place: Place = ("messages", index, "content", i)
        if part.type in get_args(shapes.Thought):
            ignored.append(f"{dotted(place)}: {part.type}")
        elif part.type in get_args(shapes.Unreadable) and index < last:
            texts.append(f"[{part.type}]")
            ignored.append(f"{dotted(place)}: {part.type}; the model reads that one was here")
        elif part.type == "input_json" or part.type in get_args(shapes.Unreadable):
            raise invalid(f"{part.type}: text alone is understood", place, "unsupported")
        elif part.words is None:
            raise invalid("missing", (*place, "text"), "missing")
        else:
            texts.append(part.words)
    return shapes.lines("\n".join(texts), message.refusal)


def prompt_of(llm: Llama, turns: Turns) -> Prompt:
    """Return the prompt of messages, by the model's own template or, without one, in plain text."""
    if not has_chat_template(llm):
        return plain(turns)
    return for_template(llm, turns)


# Responses


class Wire:
    """Responses of a chat or of completions, whole or in chunks."""

    def __init__(self, model: str, claim: Claim, ignored: list[str], *, is_chat: bool) -> None:
        self.is_chat = is_chat
        self._claim, self._ignored = claim, ignored
        self._model = model
        self._id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, answers: Sequence[Finished]) -> dict[str, Any]:
        """Return the response."""
        choices = []
        for i, answer in enumerate(answers):
            content: dict[str, Any] = {"text": answer.text}
            if self.is_chat:
                called = {} if answer.call is None else {"content": answer.text or None, "tool_calls": [answer.call]}
                content = {"message": {"role": "assistant", "content": answer.text, "refusal": None, **called}}
            choices.append({"index": i, **content, **self._end(answer)})
        return {**self._head("chat.completion"), "choices": choices, "usage": self._usage_of(answers)}

    def part(self, index: int, part: Part, answer: Finished | None = None) -> dict[str, Any]:
        """Return a chunk; the last one has the answer."""
        delta = {"content": part} if part and isinstance(part, str) else part or {}
        content = {"delta": delta} if self.is_chat else {"text": part}
        end = {"logprobs": None, "finish_reason": None} if answer is None else self._end(answer)
        return {**self._head("chat.completion.chunk"), "choices": [{"index": index, **content, **end}]}

    def usage(self, answers: Sequence[Finished]) -> dict[str, Any]:
        """Return the chunk with the usage."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage_of(answers)}

    def _head(self, kind: str) -> dict[str, Any]:
        kind = kind if self.is_chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _end(self, answer: Finished) -> dict[str, Any]:
        found = answer.logprobs
        logprobs = None if found is None else as_chat(found) if self.is_chat else as_completion(found)
        ignored = [*self._ignored, *answer.more.get("x_ignored", ())]
        more = {**answer.more, **({"x_ignored": ignored} if ignored else {})}
        return {"logprobs": logprobs, "finish_reason": answer.why, **more}

    def _usage_of(self, answers: Iterable[Finished]) -> dict[str, Any]:
        """Return the usage of the request, and note it for the line about it."""
        n_prompt, n_cached, n_tokens = (
            sum(each) for each in zip(*((one.n_prompt, one.n_cached, one.n_tokens) for one in answers), strict=True)
        )
        self._claim.usage = Usage(n_prompt - n_cached, n_cached, n_tokens)
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_tokens,
            "total_tokens": n_prompt + n_tokens,
            "prompt_tokens_details": {"cached_tokens": n_cached},
        }


class EventStream(Response):
    """Answers as server-sent events while they are generated, until the client leaves.

    `close` ends the generation, and is always awaited after the response.
    """

    media_type = "text/event-stream"

    def __init__(self, engine: Engine, answerings: Sequence[Answering], wire: Wire, *, with_usage: bool) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.seconds: float | None = None
        """Time for the events; a timeout error is the last one."""
        self.failure: RefusedError | None = None
        """The error that has ended the events."""
        self._wire, self._with_usage = wire, with_usage
        self._queue: asyncio.Queue[tuple[int, Part | Finished | RefusedError]] = asyncio.Queue()
        self._waiting: list[tuple[int, Part | Finished | RefusedError]] = []
        self._tasks = [asyncio.ensure_future(self._answer(engine, i, one)) for i, one in enumerate(answerings)]

    async def begin(self) -> EventStream:
        """Wait for the first text; RefusedError if there is none."""
        try:
            index, found = await self._queue.get()
            if isinstance(found, RefusedError):
                raise found
        except BaseException:
            await self.close()
            raise
        self._waiting.append((index, found))
        return self

    async def close(self) -> None:
        """Cancel the generation."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(wait_gone(receive))
        try:
            await asyncio.wait({sending, gone}, timeout=self.seconds, return_when=asyncio.FIRST_COMPLETED)
            is_late = not (sending.done() or gone.done())
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            if is_late:
                self.failure = RefusedError("timeout", "no answer in time")
                await send({"type": "http.response.body", "body": _error_event(self.failure), "more_body": False})
        finally:
            sending.cancel()
            gone.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events()) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        answers: dict[int, Finished] = {}
        for i in range(len(self._tasks) if self._wire.is_chat else 0):
            yield _event(self._wire.part(i, {"role": "assistant", "content": ""}))
        while len(answers) < len(self._tasks):
            index, found = self._waiting.pop() if self._waiting else await self._queue.get()
            if isinstance(found, RefusedError):
                self.failure = found
                yield _error_event(found)
                return
            if isinstance(found, Finished):
                answers[index] = found
                yield _event(self._wire.part(index, "", found))
            else:
                yield _event(self._wire.part(index, found))
        usage = self._wire.usage(list(answers.values()))
        if self._with_usage:
            yield _event(usage)
        yield _DONE

    async def _answer(self, engine: Engine, index: int, answering: Answering) -> None:
        try:
            found: Finished | RefusedError = await answer_of(
                engine, answering, lambda text: self._queue.put_nowait((index, text))
            )
        except RefusedError as refusal:
            found = refusal
        except TokenTrieError as error:
            found = refusal_of(error)
        except Exception:
            _log.exception("an answer failed")
            found = RefusedError("internal", "a defect of the server")
        self._queue.put_nowait((index, found))


def in_parts(send: Send) -> Send:
    """Return a `send` that splits long bodies, so that it waits for the client to read each part."""

    async def send_in_parts(message: Message) -> None:
        body = message.get("body", b"")
        if len(body) <= _PART_BYTES:
            await send(message)
            return
        for begin in range(0, len(body), _PART_BYTES):
            more = begin + _PART_BYTES < len(body) or message.get("more_body", False)
            await send({**message, "body": body[begin : begin + _PART_BYTES], "more_body": more})

    return send_in_parts


async def wait_gone(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(data: Any) -> bytes:
    """Return a server-sent event of a JSON value."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _error_event(refusal: RefusedError) -> bytes:
    return _event(openai_error(refusal)[1])
