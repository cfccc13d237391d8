"""Requests of completions: their bodies, prompts and constraints, within limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from token_trie.native.core import Llama
from token_trie.records.tools import for_template, read_arguments
from token_trie.serve.limits import Claim, Limits, Place, Shape, check_depth, invalid, levels_of, refusing
from token_trie.serve.sets import KEYS, AnySet, Sets, read_set
from token_trie.sets.prompt import Filled, Prompt, has_chat_template

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


_MAX_PROMPTS = 128
_ANSWER_BYTES = 16 << 10
"""Memory of an answer while it is generated."""

Number: TypeAlias = StrictFloat
Stop: TypeAlias = Annotated[StrictStr, Field(max_length=1000)]
Count: TypeAlias = Annotated[StrictInt, Field(ge=0, lt=2**31)]


class StructuredOutputs(Shape):
    """Constraints in vLLM's format."""

    model_config = ConfigDict(extra="allow")

    choice: Any = None
    """Texts, texts with values, or ``{"set": name}`` with an optional "mask" or "indices"."""
    json_: Any = Field(None, alias="json")
    json_object: StrictBool | None = None


class JSONSchema(Shape):
    """A named schema."""

    name: StrictStr = ""
    schema_: Any = Field(None, alias="schema")
    strict: StrictBool | None = None


class ResponseFormat(Shape):
    """Constraints in OpenAI's format."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None
    schema_: Any = Field(None, alias="schema")
    """The schema in the format of llama.cpp's server."""


class StreamOptions(Shape):
    """Options of a stream."""

    include_usage: StrictBool = False


class GenerationRequest(Shape):
    """Fields that chats and completions share."""

    model_config = ConfigDict(extra="allow")

    model: StrictStr | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    seed: StrictInt | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[StrictInt, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16, fail_fast=True)] | None = None
    max_tokens: Count | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_choice: Any = None
    guided_json: Any = None
    json_schema: Any = None
    token_trie: Any = None
    x_distribution: StrictBool = False
    """Whether to score the whole set, for each member's probability; else the best is searched, which is cheaper."""

    def claim(self, limits: Limits, claim: Claim) -> None:
        """Claim the memory of the answers."""
        claim.add(_ANSWER_BYTES * len(self.prompts))

    @property
    def prompts(self) -> Sequence[Any]:
        """The prompts, at least one."""
        return [None]

    @property
    def token_limit(self) -> int | None:
        """Maximum tokens of an answer; None: not given."""
        return self.max_tokens

    @property
    def sampling(self) -> dict[str, Any]:
        """The members of `token_trie.llama.query.Sampling`; seed -1 is a random one, as in llama.cpp."""
        return {
            "temperature": self.effective_temperature,
            "top_p": float(self.top_p or 1.0),
            "top_k": max(self.top_k or 0, 0),
            "min_p": float(self.min_p or 0.0),
            "seed": None if self.seed in (None, -1) else self.seed % (2**32 - 1),
        }

    @property
    def effective_temperature(self) -> float:
        """The sampling temperature; default: OpenAI's."""
        if self.top_p == 0:
            return 0.0
        return 1.0 if self.temperature is None else float(self.temperature)

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in given if text]


_Unreadable: TypeAlias = Literal[
    "image_url", "input_image", "input_audio", "file", "input_file", "video_url", "audio_url"
]


class MessagePart(BaseModel):
    """A part of a message: a text, or an image or audio, which no model here can read."""

    type: Literal["text", "input_text", "output_text", "refusal", _Unreadable]
    text: StrictStr = ""
    refusal: StrictStr = ""


class Function(BaseModel):
    """A function's name and arguments."""

    name: StrictStr
    arguments: StrictStr | dict[str, Any] = ""


class Call(BaseModel):
    """A call in a message."""

    id: StrictStr = ""
    type: Literal["function"] = "function"
    function: Function


class Message(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: StrictStr | Annotated[list[MessagePart], Field(fail_fast=True)] | None = None
    name: StrictStr | None = None
    tool_calls: Annotated[list[Call], Field(fail_fast=True)] | None = None
    tool_call_id: StrictStr | None = None


class Named(BaseModel):
    """A tool by its name."""

    type: Literal["function"]
    function: Function


class Allowed(BaseModel):
    """Some of the tools."""

    class Some(BaseModel):
        """These."""

        mode: Literal["auto", "required"]
        tools: Annotated[list[Named], Field(min_length=1, fail_fast=True)]

    type: Literal["allowed_tools"]
    allowed_tools: Some


class ChatRequest(GenerationRequest):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: (
        Literal["none", "auto", "required"] | Annotated[Named | Allowed, Field(discriminator="type")] | None
    ) = None

    @property
    def token_limit(self) -> int | None:
        """Maximum tokens of an answer; None: not given."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def n_alternatives(self) -> int | None:
        """Number of alternatives per token; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationRequest):
    """``POST /v1/completions``."""

    prompt: (
        StrictStr
        | Annotated[list[StrictStr], Field(fail_fast=True)]
        | Annotated[list[Count], Field(fail_fast=True)]
        | Annotated[list[Annotated[list[Count], Field(fail_fast=True)]], Field(fail_fast=True)]
    )
    logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    parse_special: StrictBool = False
    """Whether names of control tokens in the prompt are read as control tokens."""

    @property
    def token_limit(self) -> int | None:
        """Maximum tokens of an answer; default: OpenAI's."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, at least one."""
        given: Any = self.prompt
        one = isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))
        prompts: list[str | list[int]] = [given] if one else given
        if not 1 <= len(prompts) <= _MAX_PROMPTS:
            raise invalid(f"{len(prompts):,} prompts; 1 to {_MAX_PROMPTS} are answered at once", ("prompt",))
        return prompts


_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "grammar": ("",),
    "guided_grammar": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "typical_p": (1,),
    "mirostat": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "ignore_eos": (False,),
    "allowed_token_ids": (),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "n_predict": (-1,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "top_n_sigma": (-1, 0),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "web_search_options": (),
    "guided_regex": (),
    "regex": (),
    "ebnf": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "prompt_logprobs": (),
}
"""Unsupported fields, and their values that change nothing."""


def refuse_unsupported(shape: GenerationRequest) -> None:
    """Refuse a field that would change the answer but is not supported."""
    for name, given in (shape.model_extra or {}).items():
        if name in _UNSUPPORTED and given is not None and given not in _UNSUPPORTED[name]:
            raise invalid("is not supported here", (name,), "unsupported")
    outputs = shape.structured_outputs
    for name, given in ((outputs.model_extra if outputs is not None else None) or {}).items():
        if name in ("grammar", "regex", "structural_tag") and given is not None:
            raise invalid("is not supported here", ("structured_outputs", name), "unsupported")


@dataclass(frozen=True)
class Constraint:
    """A member of a set, or a record of a schema; with none of these, any text."""

    place: Place = ()
    """Place of the constraint in the body."""
    choices: Callable[[Llama], AnySet] | None = None
    schema: Any = None
    strict: bool = True
    """Whether an unsupported keyword of the schema is refused; else it is ignored."""


def constraint_of(shape: GenerationRequest, sets: Sets) -> Constraint:
    """Return the constraint of a request; RefusedError for two constraints, or an unknown set."""
    found = list(_constraints(shape, sets))
    if len(found) > 1:
        raise invalid(
            f"goes with no {'.'.join(map(str, found[0].place))}: an answer has one constraint", found[1].place
        )
    if not found and shape.structured_outputs is not None and shape.structured_outputs.model_extra:
        raise invalid("has none of choice, json and json_object", ("structured_outputs",), "unsupported")
    return found[0] if found else Constraint()


def _constraints(shape: GenerationRequest, sets: Sets) -> Iterator[Constraint]:
    outputs = shape.structured_outputs or StructuredOutputs(json=None)
    for choice, place in (
        (outputs.choice, ("structured_outputs", "choice")),
        (shape.token_trie, ("token_trie",)),
        (shape.guided_choice, ("guided_choice",)),
    ):
        if choice is not None:
            yield Constraint(place, choices=_choices_of(choice, sets, place))
    for schema, place in (
        (outputs.json_, ("structured_outputs", "json")),
        (ANY_OBJECT if outputs.json_object else None, ("structured_outputs", "json_object")),
        (shape.guided_json, ("guided_json",)),
        (shape.json_schema, ("json_schema",)),
    ):
        if schema is not None:
            yield _by_schema(schema, place)
    if shape.response_format is not None and shape.response_format.type != "text":
        yield _by_format(shape.response_format)


def _choices_of(given: Any, sets: Sets, place: Place) -> Callable[[Llama], AnySet]:
    if isinstance(given, dict) and "set" in given and set(given) <= {"set", *KEYS} and len(given) <= 2:
        found = sets.get(given["set"], (*place, "set"))
        return lambda _: sets.filtered(found, given) if len(given) == 2 else found.members
    if isinstance(given, dict) and isinstance(given.get("set"), str) and given["set"] in sets:
        raise invalid("beside the name of a set, one of mask and indices is known", place)
    return lambda llm: read_set(llm, given)


def _by_format(given: ResponseFormat) -> Constraint:
    place: Place = ("response_format",)
    if given.schema_ is not None:
        return _by_schema(given.schema_, (*place, "schema"))
    if given.type == "json_object" and given.json_schema is None:
        return Constraint(place, schema=ANY_OBJECT)
    if given.json_schema is None or given.json_schema.schema_ is None:
        raise invalid("missing", (*place, "json_schema", "schema"), "missing")
    strict = given.json_schema.strict is not False
    return _by_schema(given.json_schema.schema_, (*place, "json_schema", "schema"), strict=strict)


def _by_schema(given: Any, place: Place, *, strict: bool = True) -> Constraint:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise invalid(f"no JSON: {error}", place, "json_invalid") from None
        check_depth(given, Limits.depth, place)
    if not isinstance(given, dict):
        raise invalid("an object belongs here", place, "dict_type")
    check_schema(given, place)
    return Constraint(place, schema=given, strict=strict)


ANY_OBJECT = {"type": "object"}


PLAIN_STOPS = ("\nuser:", "\nsystem:", "\nassistant:")
"""Stop strings in plain text: another turn begins."""


def turns_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
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


def _call(call: Call, place: Place) -> dict[str, Any]:
    place = (*place, "function", "arguments")
    with refusing(place):
        arguments = read_arguments(call.function.arguments)
    check_depth(arguments, Limits.depth, place)
    return {**call.model_dump(), "function": {"name": call.function.name, "arguments": arguments}}


def _content(message: Message, index: int) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for i, part in enumerate(message.content):
        if part.type in get_args(_Unreadable):
            raise invalid(f"{part.type}: text alone is understood", ("messages", index, "content", i), "unsupported")
    return "\n".join(part.text or part.refusal for part in message.content)


def prompt_of(llm: Llama, turns: list[dict[str, Any]]) -> Prompt:
    """Return the prompt of messages, by the model's own template or, without one, in plain text."""
    if not has_chat_template(llm):
        return plain(turns)
    return for_template(llm, turns)


def plain(turns: Sequence[dict[str, Any]]) -> Filled:
    """Return messages in plain text, one paragraph per turn, ending with the start of the assistant's."""
    parts: list[tuple[str, str]] = []
    between = ""
    for turn in turns:
        said = str(turn["content"])
        for call in turn.get("tool_calls") or ():
            said += f"{call['function']['name']}({call['function']['arguments']})"
        parts.append((f"{between}{turn['role']}: ", said))
        between = "\n\n"
    return Filled([*parts, (f"{between}assistant:", "")])
