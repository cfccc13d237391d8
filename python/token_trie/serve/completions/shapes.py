"""Bodies of OpenAI's completions, with the constraints that vLLM's, llama.cpp's and this server's clients send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from token_trie.serve.body import Body, Claim, Limits
from token_trie.serve.refusal import invalid

_MOST = 128
_ANSWER_BYTES = 16 << 10
"""Memory of an answer while it is written."""

Number: TypeAlias = StrictFloat
Stop: TypeAlias = Annotated[StrictStr, Field(max_length=1000)]
Count: TypeAlias = Annotated[StrictInt, Field(ge=0, lt=2**31)]


class StructuredOutputs(BaseModel):
    """What vLLM calls constraints."""

    model_config = ConfigDict(extra="allow")

    choice: Any = None
    """Texts, texts with what they stand for, or ``{"set": name}``, with "mask" or "indices" of what is left of it."""
    json_: Any = Field(None, alias="json")
    json_object: StrictBool | None = None
    grammar: StrictStr | None = None


class JSONSchema(BaseModel):
    """A schema with its name."""

    name: StrictStr = ""
    schema_: Any = Field(None, alias="schema")
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    """What OpenAI calls constraints."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None
    schema_: Any = Field(None, alias="schema")
    """Where llama.cpp's server has it."""


class StreamOptions(BaseModel):
    """What a stream has besides."""

    include_usage: StrictBool = False


class Sampling(Body):
    """What both kinds have."""

    model_config = ConfigDict(extra="allow")

    model: StrictStr | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[StrictInt, Field(ge=1, le=_MOST)] | None = None
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
    guided_grammar: StrictStr | None = None
    grammar: StrictStr | None = None
    json_schema: Any = None
    token_trie: Any = None
    x_distribution: StrictBool = True
    """Whether to score a whole set, for each member's probability; else the best is searched for, which is cheaper."""

    @property
    def n_each(self) -> int:
        """Answers to a prompt."""
        return 1 if self.n is None else self.n

    def claim(self, limits: Limits, claim: Claim) -> None:
        """Claim the memory of its answers."""
        claim.add(_ANSWER_BYTES * self.n_each * len(self.prompts))

    @property
    def prompts(self) -> Sequence[Any]:
        """The prompts, one at least."""
        return [None]

    @property
    def most_tokens(self) -> int | None:
        """Tokens of an answer at most; None: not said."""
        return self.max_tokens

    def drawn_by(self, place: int) -> dict[str, Any]:
        """Return the members of `token_trie.llama.sampling.Sampling` for answer number `place` of a prompt."""
        return {
            "temperature": self.effective_temperature,
            "top_p": float(self.top_p or 1.0),
            "top_k": max(self.top_k or 0, 0),
            "min_p": float(self.min_p or 0.0),
            "seed": self.seed_of(place),
        }

    @property
    def effective_temperature(self) -> float:
        """The temperature of what is drawn: where none is given, OpenAI's."""
        if self.top_p == 0:
            return 0.0
        return 1.0 if self.temperature is None else float(self.temperature)

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in given if text]

    def seed_of(self, place: int) -> int | None:
        """Return the seed of the so-and-so-many-th answer, as draws take it; -1 is a random one, as in llama.cpp."""
        return None if self.seed in (None, -1) else (self.seed + place) % (2**32 - 1)


class TextPart(BaseModel):
    """A text."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: StrictStr = ""
    refusal: StrictStr = ""


class OtherPart(BaseModel):
    """What no model here can look at or listen to."""

    type: Literal["image_url", "input_image", "input_audio", "file", "input_file", "video_url", "audio_url"]


class Function(BaseModel):
    """What is called, and with what."""

    name: StrictStr
    arguments: StrictStr | dict[str, Any] = ""


class Call(BaseModel):
    """A call that was made."""

    id: StrictStr = ""
    type: Literal["function"] = "function"
    function: Function


class Message(BaseModel):
    """What somebody said."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: (
        StrictStr
        | Annotated[list[Annotated[TextPart | OtherPart, Field(discriminator="type")]], Field(fail_fast=True)]
        | None
    ) = None
    name: StrictStr | None = None
    tool_calls: Annotated[list[Call], Field(fail_fast=True)] | None = None
    tool_call_id: StrictStr | None = None


class Named(BaseModel):
    """A tool by its name."""

    class ByName(BaseModel):
        """The name."""

        name: StrictStr

    type: Literal["function"]
    function: ByName


class Allowed(BaseModel):
    """Some of the tools."""

    class Some(BaseModel):
        """These."""

        mode: Literal["auto", "required"]
        tools: Annotated[list[Named], Field(min_length=1, fail_fast=True)]

    type: Literal["allowed_tools"]
    allowed_tools: Some


class ChatRequest(Sampling):
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
    def most_tokens(self) -> int | None:
        """Tokens of an answer at most; None: not said."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def n_alternatives(self) -> int | None:
        """Tokens to be told beside each that was taken; None: nothing of tokens."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Sampling):
    """``POST /v1/completions``."""

    prompt: (
        StrictStr
        | Annotated[list[StrictStr], Field(fail_fast=True)]
        | Annotated[list[Count], Field(fail_fast=True)]
        | Annotated[list[Annotated[list[Count], Field(fail_fast=True)]], Field(fail_fast=True)]
    )
    logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    parse_special: StrictBool = False
    """Whether names of control tokens in the prompt become these, as in a template of one's own."""

    @property
    def most_tokens(self) -> int | None:
        """Tokens of an answer at most: where it is not said, OpenAI's."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one at least."""
        given: Any = self.prompt
        one = isinstance(given, str) or (len(given) > 0 and isinstance(given[0], int))
        prompts: list[str | list[int]] = [given] if one else given
        if not prompts or len(prompts) * self.n_each > _MOST:
            raise invalid(f"{len(prompts):,} prompts; 1 to {_MOST} answers are given at once", ("prompt",))
        return prompts


_HARMLESS: dict[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    "mirostat": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "ignore_eos": (False,),
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
"""Fields without which an answer would be another than asked for, and the values that change nothing."""


def refuse_unsupported(shape: Sampling) -> None:
    """Refuse what would be answered wrongly if it were passed over."""
    for name, given in (shape.model_extra or {}).items():
        if name in _HARMLESS and given is not None and given not in _HARMLESS[name]:
            raise invalid("is not supported here", (name,), "unsupported")
    outputs = shape.structured_outputs
    for name, given in ((outputs.model_extra if outputs is not None else None) or {}).items():
        if name in ("regex", "structural_tag") and given is not None:
            raise invalid("is not supported here", ("structured_outputs", name), "unsupported")
