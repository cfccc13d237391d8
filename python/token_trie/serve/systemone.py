"""``POST /v1/systemone``: TypeSafe's format of decisions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field, StrictStr

from token_trie.questions.question import (
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
from token_trie.serve.decisions import QuestionShape, QuestionsRequest, SetChoice
from token_trie.serve.engine import Engine
from token_trie.serve.limits import IN_PIECES, Limits, Place, Shape, check_count, invalid, refusing
from token_trie.serve.sets import Sets

JsonText: TypeAlias = StrictStr | dict[str, Any] | list[Any]
"""A text, or a value whose JSON text the model gets."""


class Noul(QuestionShape):
    """A question answered by yes or no."""

    class Criteria(Shape):
        """Descriptions of yes and no."""

        model_config = ConfigDict(extra="forbid")

        true: JsonText | None = None
        false: JsonText | None = None

    type: Literal["noul"]
    instructions: JsonText | None = None
    criteria: Criteria | None = None

    def question(self, limits: Limits, sets: Sets, place: Place) -> Question:
        """Return the question; TokenTrieError if it is invalid."""
        criteria = self.criteria or Noul.Criteria()
        yes, no = _words(criteria.true, "true"), _words(criteria.false, "false")
        return Predicate(_words(self.instructions, "instructions") or "Is it so?", yes or None, no or None)

    def figures(self, answer: PredicateAnswer) -> dict[str, Any]:
        """Return the fields of an answer."""
        return {"noul": answer.probability}


class ChoiceShape(SetChoice):
    """A question answered by one of its options."""

    OPTIONS: ClassVar = "criteria"
    model_config = ConfigDict(title="Choice")

    type: Literal["choice"]
    instructions: JsonText | None = None
    criteria: Annotated[dict[str, JsonText | None], Field(min_length=2), IN_PIECES] | None = None

    def question(self, limits: Limits, sets: Sets, place: Place) -> Question:
        """Return the question; RefusedError or TokenTrieError if it is invalid."""
        instructions = _words(self.instructions, "instructions") or "Which one is it?"
        if (of_set := self.of_set(instructions, limits, sets, place)) is not None:
            return of_set
        return Choice(instructions, {name: _words(text, repr(name)) for name, text in (self.criteria or {}).items()})

    def figures(self, answer: ChoiceAnswer[Any]) -> dict[str, Any]:
        """Return the fields of an answer."""
        return {"choice": answer.value, "probabilities": answer.probabilities, "confidence": answer.confidence}


class ScoreShape(QuestionShape):
    """A question answered by a level."""

    OPTIONS: ClassVar = "criteria"
    model_config = ConfigDict(title="Score")

    type: Literal["score"]
    instructions: JsonText | None = None
    criteria: Annotated[list[JsonText], Field(min_length=2, fail_fast=True)]

    def question(self, limits: Limits, sets: Sets, place: Place) -> Question:
        """Return the question; RefusedError or TokenTrieError if it is invalid."""
        instructions = _words(self.instructions, "instructions") or "How much is it?"
        check_count(len(self.criteria), limits.levels, (*place, "criteria"))
        return Score(instructions, [text_of(level, f"criteria[{i}]") for i, level in enumerate(self.criteria)])

    def figures(self, answer: ScoreAnswer) -> dict[str, Any]:
        """Return the fields of an answer."""
        return {
            "score": answer.score,
            "legend": {str(i): level for i, level in enumerate(self.criteria)},
            "probabilities": {str(level): p for level, p in answer.probabilities.items()},
            "confidence": answer.confidence,
        }


class SystemOneRequest(QuestionsRequest):
    """Questions about a state."""

    model: StrictStr | None = None
    context: StrictStr | None = None
    """Text before the state, the same for many requests."""
    state: JsonText
    questions: Annotated[
        dict[str, Annotated[Noul | ChoiceShape | ScoreShape, Field(discriminator="type")]],
        Field(min_length=1),
        IN_PIECES,
    ]
    assets: Any = None
    files: Any = None
    images: Any = None

    def shapes(self) -> dict[Place, QuestionShape]:
        """Return the questions by place; RefusedError for images, and for an empty name."""
        if self.assets or self.files or self.images:
            raise invalid("images are for vision models, and this is none", ("assets",), "unsupported")
        if "" in self.questions:
            raise invalid("a name is empty", ("questions", ""), "string_too_short")
        return {("questions", name): shape for name, shape in self.questions.items()}

    def about(self) -> str:
        """Return the state, after the context, as text; RefusedError if it is invalid."""
        with refusing(("state",)):
            state = state_text(self.state)
        return f"{self.context}\n\n{state}" if self.context else state


def _words(given: JsonText | None, what: str) -> str | None:
    return None if given is None else text_of(given, what)


async def systemone(engine: Engine, body: SystemOneRequest, sets: Sets, limits: Limits, model: str) -> dict[str, Any]:
    """Answer a request; RefusedError, with the place, if it cannot be answered."""
    reader = await body.reader(engine, sets, limits)
    shapes = zip(body.questions.items(), (await reader.answers()).values(), strict=True)
    return {
        "model": model,
        "answers": {name: shape.answer_json(answer) for (name, shape), answer in shapes},
        "usage": {
            "input_tokens": reader.n_input,
            "output_tokens": reader.n_answers,
            "x_cached_tokens": reader.n_cached or 0,
        },
    }
