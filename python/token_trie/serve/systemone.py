"""``POST /v1/systemone``: TypeSafe's format of decisions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, StrictStr

from token_trie.questions.question import (
    Answered,
    Choice,
    ChoiceAnswer,
    Predicate,
    PredicateAnswer,
    Question,
    Score,
    ScoreAnswer,
    state_text,
    text_of,
)
from token_trie.serve.decisions import Extras, SetChoice, StateReader, extras, state_reader
from token_trie.serve.engine import Engine
from token_trie.serve.limits import IN_PIECES, Claim, Limits, Place, Shape, check_count, invalid, refusing
from token_trie.serve.sets import Sets

JsonText: TypeAlias = StrictStr | dict[str, Any] | list[Any]
"""A text, or a value whose JSON text the model gets."""

_DEFAULT_INSTRUCTIONS = {"noul": "Is it so?", "choice": "Which one is it?", "score": "How much is it?"}
"""Default instructions."""


class Noul(Shape):
    """A question answered by yes or no."""

    class Criteria(Shape):
        """Descriptions of yes and no."""

        true: JsonText | None = None
        false: JsonText | None = None

    type: Literal["noul"]
    instructions: JsonText | None = None
    criteria: Criteria | None = None


class ChoiceShape(SetChoice):
    """A question answered by one of its options."""

    model_config = ConfigDict(title="Choice")

    type: Literal["choice"]
    instructions: JsonText | None = None
    criteria: Annotated[dict[str, JsonText | None], Field(min_length=2), IN_PIECES] | None = None


class ScoreShape(Shape):
    """A question answered by a level."""

    model_config = ConfigDict(title="Score")

    type: Literal["score"]
    instructions: JsonText | None = None
    criteria: Annotated[list[JsonText], Field(min_length=2, fail_fast=True)]


QuestionShape: TypeAlias = Annotated[Noul | ChoiceShape | ScoreShape, Field(discriminator="type")]


class SystemOneRequest(Extras):
    """Questions about a state."""

    model: StrictStr | None = None
    context: StrictStr | None = None
    """Text before the state, the same for many requests."""
    state: JsonText
    questions: Annotated[dict[str, QuestionShape], Field(min_length=1), IN_PIECES]
    assets: Any = None
    files: Any = None
    images: Any = None

    def claim(self, limits: Limits, claim: Claim) -> None:
        """Claim the memory of the answer; RefusedError if it is too much."""
        limits.claim_readings([_n_options(one) for one in self.questions.values()], self.x_orders, claim)


def _n_options(shape: Noul | ChoiceShape | ScoreShape) -> int:
    if isinstance(shape, Noul):
        return 2
    return shape.n_options(shape.criteria) if isinstance(shape, ChoiceShape) else len(shape.criteria)


def _words(given: JsonText | None, what: str) -> str | None:
    return None if given is None else text_of(given, what)


def question_of(shape: Noul | ChoiceShape | ScoreShape, limits: Limits, sets: Sets, place: Place) -> Question:
    """Return the question of a shape; RefusedError or TokenTrieError if it is invalid."""
    instructions = _words(shape.instructions, "instructions") or _DEFAULT_INSTRUCTIONS[shape.type]
    if isinstance(shape, Noul):
        criteria = shape.criteria or Noul.Criteria()
        return Predicate(instructions, _words(criteria.true, "true") or None, _words(criteria.false, "false") or None)
    if isinstance(shape, ChoiceShape):
        shape.check(shape.criteria, "criteria", limits, place)
        if shape.criteria is None:
            return shape.of_set(instructions, sets, place)
        return Choice(instructions, {name: _words(text, repr(name)) for name, text in shape.criteria.items()})
    check_count(len(shape.criteria), limits.levels, (*place, "criteria"))
    return Score(instructions, [text_of(level, f"criteria[{i}]") for i, level in enumerate(shape.criteria)])


async def systemone(engine: Engine, body: SystemOneRequest, sets: Sets, limits: Limits, model: str) -> dict[str, Any]:
    """Answer a request; RefusedError, with the place, if it cannot be answered."""
    reader = await read_request(engine, body, sets, limits)
    answers, usage = (await reader.answers()).values(), reader.usage
    return {
        "model": model,
        "answers": {
            name: answer_json(shape, a) for (name, shape), a in zip(body.questions.items(), answers, strict=True)
        },
        "usage": {
            "input_tokens": usage.input,
            "output_tokens": usage.answers,
            "x_cached_tokens": usage.cached or 0,
        },
    }


async def read_request(engine: Engine, body: SystemOneRequest, sets: Sets, limits: Limits) -> StateReader:
    """Return a reader of the questions of a request; RefusedError names the place."""

    def questions() -> dict[Place, Question]:
        return {("questions", name): one for name, one in questions_of(body, limits, sets).items()}

    return await state_reader(engine, body, lambda: state_of(body), questions)


def questions_of(body: SystemOneRequest, limits: Limits, sets: Sets) -> dict[str, Question]:
    """Return the questions of a request by name; RefusedError names the place."""
    if body.assets or body.files or body.images:
        raise invalid("images are for vision models, and this is none", ("assets",), "unsupported")
    if len(body.questions) > limits.questions:
        raise invalid(f"more than {limits.questions} questions", ("questions",), "too_long")
    questions = {}
    for name, shape in body.questions.items():
        place = "questions", name
        if not name:
            raise invalid("a name is empty", place, "string_too_short")
        with refusing(place):
            questions[name] = question_of(shape, limits, sets, place)
    return questions


def state_of(body: SystemOneRequest) -> str:
    """Return the state of a request as text; RefusedError if it is invalid."""
    with refusing(("state",)):
        state = state_text(body.state)
    return f"{body.context}\n\n{state}" if body.context else state


def answer_json(shape: Noul | ChoiceShape | ScoreShape, answer: Answered[Any]) -> dict[str, Any]:
    """Return an answer in the wire format."""
    body: dict[str, Any] = {"type": shape.type}
    if isinstance(answer, PredicateAnswer):
        body["noul"] = answer.probability
    elif isinstance(answer, ChoiceAnswer) and isinstance(shape, ChoiceShape):
        body |= {"choice": answer.value, "probabilities": answer.probabilities, "confidence": answer.confidence}
        return body | shape.extras(answer)
    elif isinstance(answer, ScoreAnswer) and isinstance(shape, ScoreShape):
        body |= {
            "score": answer.score,
            "legend": {str(i): level for i, level in enumerate(shape.criteria)},
            "probabilities": {str(level): p for level, p in answer.probabilities.items()},
            "confidence": answer.confidence,
        }
    return body | extras(answer)
