"""The shapes of requests, as TypeSafe, OpenAI, vLLM and llama.cpp's server name them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)

from token_trie.decisions.calibration import AloneName
from token_trie.questions.options import FormName
from token_trie.serve.bodies import IN_PIECES, Shape

JsonText: TypeAlias = StrictStr | dict[str, Any] | list[Any]
"""A text, or a value whose JSON text the model gets."""
Number: TypeAlias = StrictFloat


def _whole(given: Any) -> Any:
    """Return 20.0 as 20: clients written in JavaScript or Lua do not tell them apart."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


Whole: TypeAlias = Annotated[StrictInt, BeforeValidator(_whole)]
Stop: TypeAlias = Annotated[StrictStr, Field(max_length=1000)]
Count: TypeAlias = Annotated[StrictInt, Field(ge=0, lt=2**31)]
MaxTokens: TypeAlias = Annotated[Whole, Field(ge=-1, lt=2**31), AfterValidator(lambda n: None if n < 0 else n)]
"""-1: no limit, as in llama.cpp."""


Unreadable: TypeAlias = Literal[
    "image_url", "input_image", "input_audio", "file", "input_file", "video_url", "audio_url"
]
Thought: TypeAlias = Literal["reasoning", "thinking", "redacted_thinking"]


def lines(*texts: str | None) -> str:
    """Join the texts that are there."""
    return "\n".join(filter(None, texts))


class ContentPart(BaseModel):
    """A part of a message: a text, a JSON value, a thought, or an image or audio, which no model here reads."""

    type: Literal["text", "input_text", "output_text", "refusal", "input_json", Thought, Unreadable]
    text: StrictStr = ""
    refusal: StrictStr = ""
    data: dict[str, Any] | list[dict[str, Any]] | None = None

    @property
    def words(self) -> str | None:
        """The text; None if there is none."""
        return lines(self.text, self.refusal) if self.model_fields_set & {"text", "refusal"} else None


Content: TypeAlias = StrictStr | Annotated[list[ContentPart], Field(fail_fast=True)]


class QuestionShape(Shape):
    """A question in one of the formats."""

    OPTIONS: ClassVar[str] = ""
    """The field with the options; empty for yes and no."""


class SetChoice(QuestionShape):
    """A choice that names its options, or a set whose members are its options."""

    x_set: StrictStr | None = None
    x_mask: StrictStr | None = None
    """Members of the set that are left: one bit for each, in base64."""
    x_top: Annotated[StrictInt, Field(ge=1)] | None = None
    """Number of members in the answer; see `Choice`."""


class QuestionsRequest(Shape):
    """Questions, with extra options; see `DecideOptions`."""

    x_form: FormName | None = None
    x_calibration: AloneName | None = "contextual"
    x_orders: Annotated[int, Field(ge=1, le=64)] = 1
    x_reproducible: StrictBool = False


# POST /v1/systemone


class NoulShape(QuestionShape):
    """A question answered by yes or no."""

    type: Literal["noul"]
    instructions: JsonText | None = None
    criteria: dict[Literal["true", "false"], JsonText | None] | None = None
    """Descriptions of yes and no."""


class ChoiceShape(SetChoice):
    """A question answered by one of its options."""

    OPTIONS: ClassVar = "criteria"

    type: Literal["choice"]
    instructions: JsonText | None = None
    criteria: Annotated[dict[str, JsonText | None], Field(min_length=2), IN_PIECES] | None = None


class ScoreShape(QuestionShape):
    """A question answered by a level."""

    OPTIONS: ClassVar = "criteria"

    type: Literal["score"]
    instructions: JsonText | None = None
    criteria: Annotated[list[JsonText], Field(min_length=2, fail_fast=True)]


class SystemOneRequest(QuestionsRequest):
    """Questions about a state."""

    model: StrictStr | None = None
    context: StrictStr | None = None
    """Text before the state, the same for many requests."""
    state: JsonText
    questions: Annotated[
        dict[str, Annotated[NoulShape | ChoiceShape | ScoreShape, Field(discriminator="type")]],
        Field(min_length=1),
        IN_PIECES,
    ]
    assets: Any = None
    files: Any = None
    images: Any = None


# POST /v1/decisions


class InputMessage(BaseModel):
    """A message of a conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "developer", "system", "assistant"]
    content: Content


class FunctionCall(BaseModel):
    """A call of a tool."""

    type: Literal["function_call", "custom_tool_call"]
    call_id: StrictStr
    name: StrictStr
    arguments: StrictStr = ""
    input: StrictStr = ""


class FunctionCallOutput(BaseModel):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: StrictStr
    output: Content


class PredicateItem(QuestionShape):
    """A question answered by yes or no."""

    type: Literal["predicate"]
    name: StrictStr | None = None
    instructions: Content


class OptionItem(Shape):
    """An option."""

    value: StrictStr | StrictBool
    description: StrictStr | None = None


class ChoiceItem(SetChoice):
    """A question answered by one of its options."""

    OPTIONS: ClassVar = "choices"

    type: Literal["choice"]
    name: StrictStr | None = None
    instructions: Content
    choices: Annotated[list[OptionItem], Field(min_length=2, fail_fast=True)] | None = None


class LevelItem(Shape):
    """A level; the lowest is first."""

    label: StrictStr
    description: StrictStr | None = None


class ScoreItem(QuestionShape):
    """A question answered by a level."""

    OPTIONS: ClassVar = "levels"

    type: Literal["score"]
    name: StrictStr | None = None
    instructions: Content
    levels: Annotated[list[LevelItem], Field(min_length=2, fail_fast=True)]


class DecisionRequest(QuestionsRequest):
    """Questions about an input."""

    model: StrictStr
    input: StrictStr | Annotated[list[InputMessage | FunctionCall | FunctionCallOutput], Field(fail_fast=True)] = Field(
        union_mode="left_to_right"
    )
    questions: Annotated[
        list[Annotated[PredicateItem | ChoiceItem | ScoreItem, Field(discriminator="type")]],
        Field(min_length=1, fail_fast=True),
    ]


# POST /v1/chat/completions, POST /v1/completions


class StructuredOutputs(Shape):
    """Constraints in vLLM's format."""

    model_config = ConfigDict(extra="allow")

    choice: Any = None
    """Texts, texts with values, a payload, or ``{"set": name}`` with an optional "mask"."""
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
    seed: Whole | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16, fail_fast=True)] | None = None
    max_tokens: MaxTokens | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_choice: Any = None
    format: Any = None
    """Ollama's: a schema, or "json" for any object."""


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

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: StrictStr | None = None
    refusal: StrictStr | None = None
    tool_calls: Annotated[list[Call], Field(fail_fast=True)] | None = None
    function_call: Function | None = None
    tool_call_id: StrictStr | None = None


class ChatRequest(GenerationRequest):
    """A chat."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: MaxTokens | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | dict[str, Any] | None = None
    """A dict names one tool, or some tools of which one may or must be called."""


class CompletionRequest(GenerationRequest):
    """Prompts."""

    prompt: (
        StrictStr
        | Annotated[list[StrictStr], Field(fail_fast=True)]
        | Annotated[list[Count], Field(fail_fast=True)]
        | Annotated[list[Annotated[list[Count], Field(fail_fast=True)]], Field(fail_fast=True)]
    )
    logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    parse_special: StrictBool = False
    """Whether names of control tokens in the prompt are read as control tokens."""
