"""``POST /v1/decisions``: OpenAI's format of decisions."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from token_trie.questions.question import (
    Choice,
    ChoiceAnswer,
    Predicate,
    PredicateAnswer,
    Question,
    Score,
    ScoreAnswer,
)
from token_trie.serve.decisions import QuestionShape, QuestionsRequest, SetChoice
from token_trie.serve.engine import Engine
from token_trie.serve.limits import (
    Limits,
    Place,
    Shape,
    check_count,
    check_depth,
    invalid,
    levels_of,
)
from token_trie.serve.sets import Sets

_JSON_DEPTH, _JSON_VALUES, _JSON_BYTES = 32, 10_000, 256 << 10


class InputText(BaseModel):
    """A text."""

    type: Literal["input_text", "output_text", "text"]
    text: StrictStr


class InputJSON(BaseModel):
    """A JSON value; the model gets its text."""

    type: Literal["input_json"]
    data: dict[str, Any] | list[dict[str, Any]]


class InputRefusal(BaseModel):
    """The refusal of an assistant."""

    type: Literal["refusal"]
    refusal: StrictStr


class InputImage(BaseModel):
    """An image; no model here can read it."""

    type: Literal["input_image"]


Part: TypeAlias = Annotated[InputText | InputJSON | InputRefusal | InputImage, Field(discriminator="type")]
Parts: TypeAlias = StrictStr | Annotated[list[Part], Field(fail_fast=True)]


class Message(BaseModel):
    """A message of a conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "developer", "system", "assistant"]
    content: Parts


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
    output: Parts


class PredicateShape(QuestionShape):
    """A question answered by yes or no."""

    model_config = ConfigDict(title="Predicate")

    type: Literal["predicate"]
    name: StrictStr | None = None
    instructions: Parts

    def question(self, limits: Limits, sets: Sets, place: Place) -> Question:
        """Return the question; RefusedError or TokenTrieError if it is invalid."""
        return Predicate(_text(self.instructions, (*place, "instructions")))

    def figures(self, answer: PredicateAnswer) -> dict[str, Any]:
        """Return the fields of an answer."""
        return {"probability": answer.probability}


class ChoiceShape(SetChoice):
    """A question answered by one of its options."""

    class Option(Shape):
        """An option."""

        value: StrictStr | StrictBool
        description: StrictStr | None = None

    OPTIONS: ClassVar = "choices"
    model_config = ConfigDict(title="Choice")

    type: Literal["choice"]
    name: StrictStr | None = None
    instructions: Parts
    choices: Annotated[list[Option], Field(min_length=2, fail_fast=True)] | None = None

    def question(self, limits: Limits, sets: Sets, place: Place) -> Question:
        """Return the question; RefusedError or TokenTrieError if it is invalid."""
        instructions = _text(self.instructions, (*place, "instructions"))
        if (of_set := self.of_set(instructions, limits, sets, place)) is not None:
            return of_set
        choices = self.choices or []
        described = {option.value: option.description for option in choices}
        if len(described) < len(choices):
            raise invalid("two choices have the same value", (*place, "choices"))
        return Choice(instructions, described)

    def figures(self, answer: ChoiceAnswer[Any]) -> dict[str, Any]:
        """Return the fields of an answer."""
        probabilities = [{"value": value, "probability": p} for value, p in answer.probabilities.items()]
        return {"choice": answer.value, "probabilities": probabilities, "confidence": answer.confidence}


class ScoreShape(QuestionShape):
    """A question answered by a level."""

    class Level(Shape):
        """A level; the lowest is first."""

        label: StrictStr
        description: StrictStr | None = None

    OPTIONS: ClassVar = "levels"
    model_config = ConfigDict(title="Score")

    type: Literal["score"]
    name: StrictStr | None = None
    instructions: Parts
    levels: Annotated[list[Level], Field(min_length=2, fail_fast=True)]

    def question(self, limits: Limits, sets: Sets, place: Place) -> Question:
        """Return the question; RefusedError or TokenTrieError if it is invalid."""
        instructions = _text(self.instructions, (*place, "instructions"))
        check_count(len(self.levels), limits.levels, (*place, "levels"))
        return Score(instructions, [level.description or level.label for level in self.levels])

    def figures(self, answer: ScoreAnswer) -> dict[str, Any]:
        """Return the fields of an answer."""
        levels = zip(self.levels, answer.probabilities.items(), strict=True)
        probabilities = [{"label": at.label, "value": i, "probability": p} for at, (i, p) in levels]
        return {"score": answer.score, "probabilities": probabilities, "confidence": answer.confidence}


class DecisionRequest(QuestionsRequest):
    """Questions about an input."""

    model: StrictStr
    input: StrictStr | Annotated[list[Message | FunctionCall | FunctionCallOutput], Field(fail_fast=True)] = Field(
        union_mode="left_to_right"
    )
    questions: Annotated[
        list[Annotated[PredicateShape | ChoiceShape | ScoreShape, Field(discriminator="type")]],
        Field(min_length=1, fail_fast=True),
    ]

    def shapes(self) -> dict[Place, QuestionShape]:
        """Return the questions by place."""
        return {("questions", i): shape for i, shape in enumerate(self.questions)}

    def about(self) -> str:
        """Return the input as text; RefusedError if it is invalid."""
        return _state(self.input)


async def decisions(engine: Engine, body: DecisionRequest, sets: Sets, limits: Limits, model: str) -> dict[str, Any]:
    """Answer a request; RefusedError, with the place, if it cannot be answered."""
    reader = await body.reader(engine, sets, limits)
    answers = (await reader.answers()).values()
    return {
        "answers": [shape.answer_json(answer) for shape, answer in zip(body.questions, answers, strict=True)],
        "model": model,
        "usage": {
            "input_tokens": reader.n_input,
            "input_tokens_details": {"cached_tokens": reader.n_cached or 0, "cache_write_tokens": reader.n_read},
            "output_tokens": reader.n_answers,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reader.n_input + reader.n_answers,
        },
    }


def _state(given: str | list[Message | FunctionCall | FunctionCallOutput]) -> str:
    if isinstance(given, str):
        return given
    names: dict[str, str] = {}
    turns = []
    for i, item in enumerate(given):
        place = "input", i
        if isinstance(item, Message):
            turns.append(f"{item.role}: {_text(item.content, (*place, 'content'))}")
        elif isinstance(item, FunctionCall):
            names[item.call_id] = item.name
            turns.append(f"assistant: {item.name}({item.arguments or item.input})")
        elif item.call_id not in names:
            raise invalid(f"no call before it has the id {item.call_id!r}", (*place, "call_id"))
        else:
            turns.append(f"{names[item.call_id]}: {_text(item.output, (*place, 'output'))}")
    return "\n\n".join(turns)


def _text(parts: str | list[Part], place: Place) -> str:
    if isinstance(parts, str):
        return parts
    return "\n".join(_part(part, (*place, i)) for i, part in enumerate(parts))


def _part(part: InputText | InputJSON | InputRefusal | InputImage, place: Place) -> str:
    if isinstance(part, InputText):
        return part.text
    if isinstance(part, InputRefusal):
        return part.refusal
    if isinstance(part, InputImage):
        raise invalid("images are for vision models, and this is none", place, "unsupported")
    check_depth(part.data, _JSON_DEPTH, (*place, "data"))
    if sum(map(len, levels_of(part.data))) > _JSON_VALUES:
        raise invalid(f"more than {_JSON_VALUES:,} values", (*place, "data"), "too_long")
    text = json.dumps(part.data, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > _JSON_BYTES:
        raise invalid(f"more than {_JSON_BYTES:,} bytes", (*place, "data"), "too_long")
    return text
