"""Answers questions about a state with an engine; all readings of all questions run at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StrictBool, StrictInt, StrictStr

from token_trie.decisions.calibration import AloneName
from token_trie.native.lifetime import attachment
from token_trie.questions.decide import ReadStep, asked_of, own_steps, prior_reading, prior_steps, scores_of
from token_trie.questions.options import DecideOptions, FormName
from token_trie.questions.question import TOP, Answered, Choice, ChoiceAnswer, Question, Wording
from token_trie.questions.scores import Reading, Scored, prompted
from token_trie.questions.searched import MAX_WHOLE, Asked
from token_trie.serve.engine import Engine, Outcome
from token_trie.serve.limits import Claim, Limits, Place, Shape, check_count, invalid, refusing
from token_trie.serve.sets import AnySet, Sets
from token_trie.sets.choices import Choices

T = TypeVar("T")


@dataclass
class StateReader:
    """Reads questions about a state in the engine's batch, all at once."""

    engine: Engine
    state: str
    asked: Mapping[Place, Asked]
    options: DecideOptions
    n_read: int = 0
    """Tokens evaluated for the request."""
    n_cached: int | None = None
    """Tokens reused from the prefix cache; None before the first reading."""
    n_answers: int = 0
    """Tokens of the answers."""

    @property
    def n_input(self) -> int:
        """Input tokens, with the state that questions share counted once."""
        return self.n_read + (self.n_cached or 0)

    async def answers(self) -> dict[Place, Answered[Any]]:
        """Return the answers by place; RefusedError names the place of a question that cannot be answered."""
        prior, own = prior_steps(self.asked), own_steps(self.asked)
        results = await together(map(self.read, [*prior, *own]))
        priors, scores = scores_of(prior, results[: len(prior)]), scores_of(own, results[len(prior) :])
        return {place: self._answer(place, scores[place], priors.get(place, ())) for place in self.asked}

    async def read(self, step: ReadStep) -> Scored:
        """Return the scores of a step."""
        engine, llm, options = self.engine, self.engine.llm, self.options
        with refusing(step.name):
            if step.is_prior:
                reading = await engine.on_worker(lambda: prior_reading(llm, attachment(llm).known, step.view))
                key = "prior", reading.digest, options.reproducible
                return (await engine.cached(key, lambda: _score(engine, lambda: reading, options))).result
            outcome = await _score(engine, lambda: step.reading(llm, self.state), options)
            scored, n_cached = outcome.result, outcome.n_cached
            self.n_read += scored.n_prompt - n_cached
            self.n_cached = n_cached if self.n_cached is None else min(self.n_cached, n_cached)
            self.n_answers += scored.n_evaluated
            return scored

    def _answer(self, place: Place, scored: Sequence[Scored], priors: Sequence[Scored]) -> Answered[Any]:
        with refusing(place):
            return self.asked[place].answer(scored, priors)


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all; if one fails, cancel the others before raising."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _score(engine: Engine, make: Callable[[], Reading], options: DecideOptions) -> Outcome[Scored]:
    if options.reproducible:
        return Outcome(await engine.alone(lambda: make().alone(engine.llm)), [], 0)
    return await engine.read(lambda: prompted(make))


class SetFilter(BaseModel):
    """Members of a set that are left: one bit for each member, in base64, or their indices."""

    model_config = ConfigDict(extra="forbid")

    mask: StrictStr | None = None
    indices: Annotated[list[StrictInt], Field(fail_fast=True)] | None = None


class QuestionShape(Shape):
    """A question in one of the formats."""

    OPTIONS: ClassVar[str] = ""
    """The field with the options; empty for yes and no."""

    def n_options(self) -> int:
        """Return the largest number of options that are scored."""
        return len(getattr(self, self.OPTIONS) or ()) if self.OPTIONS else 2

    def question(self, limits: Limits, sets: Sets, place: Place) -> Question:
        """Return the question; RefusedError or TokenTrieError if it is invalid."""
        raise NotImplementedError

    def figures(self, answer: Any) -> dict[str, Any]:
        """Return the fields of an answer."""
        raise NotImplementedError

    def extras(self, answer: Answered[Any]) -> dict[str, Any]:
        """Return the extra fields of an answer."""
        more = {"x_other": getattr(answer, "other", None), "x_profile": answer.profile}
        given = {name: value for name, value in more.items() if value is not None}
        return {"x_mass": answer.mass, "x_calibration": answer.calibration, **given}

    def answer_json(self, answer: Answered[Any]) -> dict[str, Any]:
        """Return an answer in the format."""
        return self.model_dump(include={"type", "name"}) | self.figures(answer) | self.extras(answer)


class SetChoice(QuestionShape):
    """A choice that names its options, or a set whose members are its options."""

    x_set: StrictStr | None = None
    x_filter: SetFilter | None = None
    x_top: Annotated[StrictInt, Field(ge=1)] | None = None
    """Number of members in the answer; see `Choice`."""
    _made: AnySet | None = PrivateAttr(None)

    def n_options(self) -> int:
        """Return the largest number of options that are scored."""
        return super().n_options() if self.x_set is None else max(self.x_top or TOP, MAX_WHOLE)

    def of_set(self, instructions: Wording, limits: Limits, sets: Sets, place: Place) -> Choice[Any] | None:
        """Return the question whose options are the members of the set; None if it has options of its own.

        RefusedError if it has both or neither, or too many of either, or if there is no such set.
        """
        named, name = getattr(self, self.OPTIONS), self.OPTIONS
        if self.x_set is None:
            for other in ("x_filter", "x_top"):
                if getattr(self, other) is not None:
                    raise invalid("goes with x_set", (*place, other))
            if named is None:
                raise invalid("Field required", (*place, name), "missing")
        elif named is not None:
            raise invalid(f"goes with no {name}: the options are those of one of them", (*place, "x_set"))
        n, at = (len(named), name) if named is not None else (self.x_top or TOP, "x_top")
        check_count(n, limits.options, (*place, at))
        if self.x_set is None:
            return None
        named_set = sets.get(self.x_set, (*place, "x_set"))
        given = {} if self.x_filter is None else self.x_filter.model_dump(exclude_none=True)
        with refusing((*place, "x_filter")):
            if self.x_filter is not None and len(given) != 1:
                raise invalid("one of mask and indices belongs here", (*place, "x_filter"))
            made = self._made = sets.filtered(named_set, given) if given else named_set.members
        members = Choices(made.texts, made.texts) if isinstance(made, Choices) else made
        return Choice(instructions, members, top=self.x_top or TOP)

    def extras(self, answer: Answered[Any]) -> dict[str, Any]:
        """Return the extra fields of an answer: those of a set, and those of all answers."""
        if self.x_set is None or not isinstance(answer, ChoiceAnswer):
            return super().extras(answer)
        gap = answer.gap if math.isfinite(answer.gap) else None
        more: dict[str, Any] = {"x_proved": answer.proved, "x_gap": gap, "x_rest": answer.rest}
        if isinstance(self._made, Choices) and not self._made.are_texts:
            more["x_values"] = {one.text: self._made.values[one.index] for one in answer.candidates}
        return more | super().extras(answer)


_MAX_ORDERS = 64


class QuestionsRequest(Shape):
    """Questions about a state, with extra options; see `DecideOptions`."""

    x_form: FormName | None = None
    x_calibration: AloneName | None = "contextual"
    x_orders: Annotated[int, Field(ge=1, le=_MAX_ORDERS)] = 1
    x_reproducible: StrictBool = False

    def options(self, engine: Engine) -> DecideOptions:
        """Return the options; ArgumentError if they exclude each other."""
        return DecideOptions(
            form=self.x_form,
            calibration=self.x_calibration,
            orders=self.x_orders,
            reproducible=self.x_reproducible or engine.is_reproducible,
        )

    def shapes(self) -> Mapping[Place, QuestionShape]:
        """Return the questions by place; RefusedError if there can be none."""
        raise NotImplementedError

    def about(self) -> str:
        """Return the state as text; RefusedError if it is invalid."""
        raise NotImplementedError

    def claim(self, limits: Limits, claim: Claim) -> None:
        """Claim the memory of the answer; RefusedError if it is too much."""
        limits.claim_readings([one.n_options() for one in self.shapes().values()], self.x_orders, claim)

    def asked(self, sets: Sets, limits: Limits) -> dict[Place, Question]:
        """Return the questions; RefusedError names the place of one that is invalid."""
        shapes = self.shapes()
        check_count(len(shapes), limits.questions, ("questions",))
        questions: dict[Place, Question] = {}
        for place, shape in shapes.items():
            with refusing(place):
                questions[place] = shape.question(limits, sets, place)
        return questions

    async def reader(self, engine: Engine, sets: Sets, limits: Limits) -> StateReader:
        """Return a reader of the questions, with the calibrations that were fitted on them.

        RefusedError, with its place, for a question that cannot be asked.
        """
        options, asked = self.options(engine), dict[Place, Asked]()
        for place, question in (await engine.on_worker(lambda: self.asked(sets, limits))).items():
            with refusing(place):
                asked[place] = engine.calibrations.apply(asked_of(question, options, engine.llm), options)
            await asyncio.sleep(0)  # lets other requests run
        return StateReader(engine, self.about(), asked, options)
