"""``POST /v1/systemone`` and ``POST /v1/decisions``: questions about a state, in TypeSafe's and in OpenAI's format."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from operator import mul
from typing import Any, NamedTuple, TypeVar, get_args

from token_trie.llama.query import Plan
from token_trie.plan import Model
from token_trie.questions.decide import about, decide_plan, prepare
from token_trie.questions.options import DecideOptions
from token_trie.questions.question import (
    DEFAULT_INSTRUCTIONS,
    MAX_WHOLE,
    TOP,
    Answered,
    Choice,
    ChoiceAnswer,
    Predicate,
    Question,
    Score,
    Wording,
    state_text,
    text_of,
)
from token_trie.questions.searched import Prepared
from token_trie.serve import shapes
from token_trie.serve.errors import Place, invalid, refusing
from token_trie.serve.limits import Claim, Limits, Usage, check_count, check_depth, levels_of
from token_trie.serve.service import Service
from token_trie.serve.sets import AnySet, Sets
from token_trie.serve.shapes import DecisionRequest, QuestionShape, SetChoice, SystemOneRequest
from token_trie.sets.choices import Choices

T = TypeVar("T")

_READING_BYTES, _TEXT_BYTES = 8 << 10, 1 << 10
"""Memory of a reading of a question, and of a text that it scores."""
_JSON_DEPTH, _JSON_VALUES, _JSON_BYTES = 32, 10_000, 256 << 10
"""Limits of OpenAI's format for each JSON value of an input."""


async def systemone(service: Service, body: SystemOneRequest, claim: Claim) -> dict[str, Any]:
    """Answer a request in TypeSafe's format; RefusedError, with the place, if it cannot be answered."""
    answers, usage = await _answers(service, body, claim)
    return {
        "model": service.config.name,
        "answers": dict(zip(body.questions, answers, strict=True)),
        "usage": {
            "input_tokens": usage.n_input,
            "output_tokens": usage.n_answers,
            "x_cached_tokens": usage.n_cached,
        },
    }


async def decisions(service: Service, body: DecisionRequest, claim: Claim) -> dict[str, Any]:
    """Answer a request in OpenAI's format; RefusedError, with the place, if it cannot be answered."""
    answers, usage = await _answers(service, body, claim)
    return {
        "answers": answers,
        "model": service.config.name,
        "usage": {
            "input_tokens": usage.n_input,
            "input_tokens_details": {"cached_tokens": usage.n_cached, "cache_write_tokens": usage.n_read},
            "output_tokens": usage.n_answers,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.n_input + usage.n_answers,
        },
    }


class Posed(NamedTuple):
    """A question of a request, checked."""

    shape: QuestionShape
    question: Question
    members: AnySet | None
    """The members of the set that it names."""


async def _answers(
    service: Service, body: SystemOneRequest | DecisionRequest, claim: Claim
) -> tuple[list[dict[str, Any]], Usage]:
    """Return the answers to a request's questions as JSON, by the calibrations that were fitted on them."""
    engine, limits = service.engine, service.config.limits
    options = DecideOptions(
        form=body.x_form,
        calibration=body.x_calibration,
        orders=body.x_orders,
        reproducible=body.x_reproducible or engine.is_reproducible,
    )

    def plan(model: Model, body: SystemOneRequest | DecisionRequest) -> Plan[tuple[list[dict[str, Any]], Usage]]:
        claim_readings(body, limits, claim)
        posed, questions = pose(body, service.sets, limits), dict[Place, Prepared]()
        for place, one in posed.items():
            with refusing(place):
                questions[place] = service.calibrations.apply(prepare(one.question, options, model.llm), options)
        found = yield from decide_plan(model, questions, about(model, state_of(body)), refusing)
        stats = [answer.stats for answer in found.values()]
        n_read, n_answers = sum(one.n_read for one in stats), sum(one.n_evaluated for one in stats)
        shown = []
        for place, answer in found.items():
            with refusing(place):
                shown.append(answer_json(posed[place], answer))
        return shown, Usage(n_read, min(one.n_cached for one in stats), n_answers)

    answers, claim.usage = (await engine.read(body, plan, reproducible=options.reproducible)).result
    return answers, claim.usage


# Questions


def shapes_of(body: SystemOneRequest | DecisionRequest) -> dict[Place, QuestionShape]:
    """Return the questions by place; RefusedError for images, and for an empty name."""
    if isinstance(body, DecisionRequest):
        return {("questions", i): shape for i, shape in enumerate(body.questions)}
    if body.assets or body.files or body.images:
        raise invalid("images are for vision models, and this is none", ("assets",), "unsupported")
    if "" in body.questions:
        raise invalid("a name is empty", ("questions", ""), "string_too_short")
    return {("questions", name): shape for name, shape in body.questions.items()}


def claim_readings(body: SystemOneRequest | DecisionRequest, limits: Limits, claim: Claim) -> None:
    """Claim the memory of a request's readings; RefusedError if they are too many."""
    sizes = [_n_options(shape) for shape in shapes_of(body).values()]
    n_orders = [min(n, body.x_orders) for n in sizes]
    n_readings, n_texts = sum(n_orders), sum(map(mul, sizes, n_orders))
    n_max = limits.questions * limits.options
    if n_readings > limits.readings or n_texts > n_max:
        raise invalid(
            f"{len(sizes):,} questions in up to {max(n_orders)} orders are {n_readings:,} readings of {n_texts:,} "
            f"options, where {limits.readings:,} readings of {n_max:,} options are the most; ask in several requests",
            ("questions",),
            "too_long",
        )
    claim.add(_READING_BYTES * n_readings + _TEXT_BYTES * n_texts)


def _n_options(shape: QuestionShape) -> int:
    """Return the largest number of options that are scored."""
    if isinstance(shape, SetChoice) and shape.x_set is not None:
        return max(shape.x_top or TOP, MAX_WHOLE)
    return len(getattr(shape, shape.OPTIONS) or ()) if shape.OPTIONS else 2


def pose(body: SystemOneRequest | DecisionRequest, sets: Sets, limits: Limits) -> dict[Place, Posed]:
    """Return the questions of a request; RefusedError names the place of one that is invalid."""
    given = shapes_of(body)
    check_count(len(given), limits.questions, ("questions",))
    posed: dict[Place, Posed] = {}
    for place, shape in given.items():
        with refusing(place):
            members = _members_of(shape, sets, limits, place) if isinstance(shape, SetChoice) else None
            posed[place] = Posed(shape, _question_of(shape, members, limits, place), members)
    return posed


def _question_of(shape: QuestionShape, members: AnySet | None, limits: Limits, place: Place) -> Question:
    instructions = _instructions_of(shape, place)
    if members is not None and isinstance(shape, SetChoice):
        options = Choices(members.texts, members.texts) if isinstance(members, Choices) else members
        return Choice(instructions, options, top=shape.x_top or TOP)
    match shape:
        case shapes.NoulShape(criteria=criteria):
            yes, no = (_words((criteria or {}).get(name), name) or None for name in ("true", "false"))
            return Predicate(instructions, yes, no)
        case shapes.ChoiceShape(criteria=criteria):
            return Choice(instructions, {name: _words(text, repr(name)) for name, text in (criteria or {}).items()})
        case shapes.ChoiceItem(choices=choices):
            described = {option.value: option.description for option in choices or ()}
            if len(described) < len(choices or ()):
                raise invalid("two choices have the same value", (*place, "choices"))
            return Choice(instructions, described)
        case shapes.ScoreShape(criteria=levels):
            check_count(len(levels), limits.levels, (*place, "criteria"))
            return Score(instructions, [text_of(level, f"criteria[{i}]") for i, level in enumerate(levels)])
        case shapes.ScoreItem(levels=named):
            check_count(len(named), limits.levels, (*place, "levels"))
            return Score(instructions, [level.description or level.label for level in named])
    return Predicate(instructions)


def _instructions_of(shape: Any, place: Place) -> Wording:
    if isinstance(shape, (shapes.NoulShape, shapes.ChoiceShape, shapes.ScoreShape)):
        return _words(shape.instructions, "instructions") or DEFAULT_INSTRUCTIONS[shape.type]
    return _text(shape.instructions, (*place, "instructions"))


def _words(given: shapes.JsonText | None, what: str) -> str | None:
    return None if given is None else text_of(given, what)


def _members_of(shape: SetChoice, sets: Sets, limits: Limits, place: Place) -> AnySet | None:
    """Return the members of the set that a choice names; None if it has options of its own.

    RefusedError if it has both or neither, or too many of either, or if there is no such set.
    """
    named, name = getattr(shape, shape.OPTIONS), shape.OPTIONS
    if shape.x_set is None:
        for other in ("x_mask", "x_top"):
            if getattr(shape, other) is not None:
                raise invalid("goes with x_set", (*place, other))
        if named is None:
            raise invalid("Field required", (*place, name), "missing")
        check_count(len(named), limits.options, (*place, name))
        return None
    if named is not None:
        raise invalid(f"goes with no {name}: the options are those of one of them", (*place, "x_set"))
    check_count(shape.x_top or TOP, limits.options, (*place, "x_top"))
    one = sets.get(shape.x_set, (*place, "x_set"))
    with refusing((*place, "x_mask")):
        return one.members if shape.x_mask is None else sets.filtered(one, shape.x_mask)


# States


def state_of(body: SystemOneRequest | DecisionRequest) -> str:
    """Return the text of a request's state; RefusedError if it is invalid."""
    if isinstance(body, DecisionRequest):
        return body.input if isinstance(body.input, str) else _conversation(body.input)
    with refusing(("state",)):
        state = state_text(body.state)
    return f"{body.context}\n\n{state}" if body.context else state


def _conversation(items: Sequence[Any]) -> str:
    names: dict[str, str] = {}
    turns = []
    for i, item in enumerate(items):
        place = "input", i
        if isinstance(item, shapes.InputMessage):
            turns.append(f"{item.role}: {_text(item.content, (*place, 'content'))}")
        elif isinstance(item, shapes.FunctionCall):
            names[item.call_id] = item.name
            turns.append(f"assistant: {item.name}({item.arguments or item.input})")
        elif item.call_id not in names:
            raise invalid(f"no call before it has the id {item.call_id!r}", (*place, "call_id"))
        else:
            turns.append(f"{names[item.call_id]}: {_text(item.output, (*place, 'output'))}")
    return "\n\n".join(turns)


def _text(given: shapes.Content, place: Place) -> str:
    return given if isinstance(given, str) else "\n".join(_part(part, (*place, i)) for i, part in enumerate(given))


def _part(part: shapes.ContentPart, place: Place) -> str:
    if part.type in (*get_args(shapes.Unreadable), *get_args(shapes.Thought)):
        raise invalid(f"{part.type}: text alone is understood", place, "unsupported")
    if part.type != "input_json":
        if part.words is None:
            raise invalid("missing", (*place, "text"), "missing")
        return part.words
    if part.data is None:
        raise invalid("Field required", (*place, "data"), "missing")
    check_depth(part.data, _JSON_DEPTH, (*place, "data"))
    if sum(map(len, levels_of(part.data))) > _JSON_VALUES:
        raise invalid(f"more than {_JSON_VALUES:,} values", (*place, "data"), "too_long")
    text = json.dumps(part.data, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > _JSON_BYTES:
        raise invalid(f"more than {_JSON_BYTES:,} bytes", (*place, "data"), "too_long")
    return text


# Answers


def answer_json(posed: Posed, answer: Answered[Any]) -> dict[str, Any]:
    """Return an answer in the format of its question, with extra fields."""
    extras: dict[str, Any] = {}
    if posed.members is not None and isinstance(answer, ChoiceAnswer):
        gap = answer.gap if math.isfinite(answer.gap) else None
        extras = {"x_proved": answer.proved, "x_gap": gap, "x_rest": answer.rest}
        if isinstance(posed.members, Choices) and not posed.members.are_texts:
            extras["x_values"] = {one.text: posed.members.values[one.index] for one in answer.candidates}
    told = answer.to_dict()
    match posed.shape:
        case shapes.ScoreShape(criteria=levels):
            told["legend"] = {str(i): level for i, level in enumerate(levels)}
        case shapes.PredicateItem():
            told["probability"] = told.pop("noul")
        case shapes.ChoiceItem():
            told["probabilities"] = [{"value": value, "probability": p} for value, p in answer.probabilities.items()]
        case shapes.ScoreItem(levels=levels):
            del told["legend"]
            listed = zip(levels, answer.probabilities.items(), strict=True)
            told["probabilities"] = [{"label": at.label, "value": i, "probability": p} for at, (i, p) in listed]
    return told | posed.shape.model_dump(include={"type", "name"}) | extras
