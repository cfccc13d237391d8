"""Answers questions about a state with an engine; all readings of all questions run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, StrictBool

from token_trie.decisions.calibration import AloneName
from token_trie.decisions.think import Think
from token_trie.errors import TokenTrieError
from token_trie.native.lifetime import attachment
from token_trie.questions.answer import Answered
from token_trie.questions.decide import to_think_about
from token_trie.questions.options import DecideOptions, Effort, FormName
from token_trie.questions.scores import (
    Asked,
    QuestionView,
    Reading,
    Scored,
    ScoredRequest,
    mean_of,
    score_alone,
    written,
)
from token_trie.serve.engine import Engine
from token_trie.serve.limits import Body, Place, refusal_of
from token_trie.sets.prompt import Prompt

T = TypeVar("T")


@dataclass
class Usage:
    """Tokens of a request."""

    read: int = 0
    """Tokens evaluated for it."""
    cached: int | None = None
    """Tokens reused from the prefix cache; None before the first reading."""
    answers: int = 0
    """Tokens of the answers."""

    @property
    def input(self) -> int:
        """Input tokens, with the state that questions share counted once."""
        return self.read + (self.cached or 0)

    def count(self, scored: Scored, n_cached: int) -> None:
        """Add one reading."""
        self.read += scored.n_prompt - n_cached
        self.cached = n_cached if self.cached is None else min(self.cached, n_cached)
        self.answers += scored.n_evaluated


async def decide(
    engine: Engine, state: str, asked: Mapping[Place, Asked], options: DecideOptions
) -> tuple[list[Answered[Any]], Usage]:
    """Answer questions about a state, keyed by their place in the body.

    Raises
    ------
    RefusedError
        A question cannot be answered; names its place.
    """
    usage = Usage()

    async def answer_all(places: Iterable[Place], think: Think | None = None) -> dict[Place, Answered[Any]]:
        made = (_answer(engine, state, place, asked[place], options, think, usage) for place in places)
        return dict(zip(places, await together(made), strict=True))

    answers = await answer_all(list(asked))
    if options.think is not None:
        known = attachment(engine.llm).known
        answers |= await answer_all(to_think_about(known, options.think, answers), options.think)
    if options.instead:
        lines = await together(_instead(engine, state, one.views[0]) for one in asked.values())
        answers = {place: replace(answers[place], instead=line) for place, line in zip(asked, lines, strict=True)}
    return list(answers.values()), usage


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


async def _answer(
    engine: Engine,
    state: str,
    place: Place,
    asked: Asked,
    options: DecideOptions,
    think: Think | None,
    usage: Usage,
) -> Answered[Any]:
    async def read(view: QuestionView) -> Scored:
        scored, n_cached = await score(engine, view, state, options, think, asked.wanting)
        usage.count(scored, n_cached)
        return scored

    try:
        return await answer_by(read, engine, asked, options)
    except TokenTrieError as error:
        raise refusal_of(error, place) from error


async def answer_by(
    read: Callable[[QuestionView], Coroutine[Any, Any, Scored]],
    engine: Engine,
    asked: Asked,
    options: DecideOptions,
    *,
    counts: bool = True,
) -> Answered[Any]:
    """Answer a question with as many readings as it needs; `counts`: this state enters the running priors."""

    async def read_all() -> list[Scored]:
        if options.orders != "auto":
            return await together(read(view) for view in asked.views)
        scored = list[Scored]()
        for view in asked.views:
            scored.append(await read(view))
            if asked.is_sure(scored, await priors):
                break
        return scored

    without = asyncio.ensure_future(without_state(engine, asked))

    async def read_priors() -> Sequence[Scored | None]:
        return await together(prior(engine, of_view, options) for of_view in await without)

    priors = asyncio.ensure_future(read_priors())
    try:
        scored = await read_all()
        running, found = engine.calibrations.running, None
        if running is not None:
            digests = [of_view[0].digest if of_view else None for of_view in await without]
            found = running.answer(asked, scored, digests, options, counts=counts)
        return asked.answer(scored, await priors) if found is None else found
    finally:
        priors.cancel()
        await asyncio.gather(priors, return_exceptions=True)


async def _instead(engine: Engine, state: str, view: QuestionView) -> str:
    return await engine.alone(lambda: written(engine.llm, view.reading(engine.llm, state).prompt))


async def without_state(engine: Engine, asked: Asked) -> list[list[Reading]]:
    """Return for each view of a question its tokenized readings of states without content, if it has a prior."""
    llm, absent = engine.llm, [(view, asked.absent(view)) for view in asked.views]
    if not any(states for _, states in absent):
        return [[] for _ in absent]
    return await engine.on_worker(
        lambda: [[view.reading(llm, state).tokenized(llm) for state in states] for view, states in absent]
    )


async def prior(engine: Engine, readings: Sequence[Reading], options: DecideOptions) -> Scored | None:
    """Return the mean scores of a question's options in the readings of a view without a state; None without any."""

    async def scored(reading: Reading) -> Scored:
        key = "prior", reading.digest, options.reproducible
        return (await engine.cached(key, lambda: _score(engine, lambda: reading, options)))[0]

    return mean_of(await together(scored(reading) for reading in readings))


async def score(
    engine: Engine,
    view: QuestionView,
    state: str | None,
    options: DecideOptions,
    think: Think | None = None,
    wanting: Callable[[Reading], Reading] = lambda reading: reading,
) -> tuple[Scored, int]:
    """Return the scores of a question's options about a state, and the number of cached tokens."""
    return await _score(engine, lambda: wanting(view.reading(engine.llm, state))._replace(think=think), options)


async def _score(engine: Engine, make: Callable[[], Reading], options: DecideOptions) -> tuple[Scored, int]:
    if options.reproducible:
        return await engine.alone(lambda: score_alone(engine.llm, make())), 0

    def read() -> tuple[Prompt, ScoredRequest]:
        reading = make()
        return reading.prompt, reading.request

    return await engine.read_counted(read)


_MAX_ORDERS = 64


class ThoughtText(BaseModel):
    """Options of thinking, for answers that are close."""

    max_tokens: int = Field(256, ge=0, le=4096)
    margin: float = Field(0.5, ge=0, le=1)
    share: float = Field(0.2, ge=0, le=1)


class Extras(Body):
    """Extra options of questions; see `DecideOptions`."""

    x_form: FormName | None = None
    x_effort: Effort = "default"
    x_calibration: AloneName | None = "contextual"
    x_orders: Annotated[int, Field(ge=1, le=_MAX_ORDERS)] | Literal["auto"] = 1
    x_instead: StrictBool = False
    x_think: ThoughtText | None = None
    x_reproducible: StrictBool = False

    def options(self, engine: Engine) -> DecideOptions:
        """Return the options; ArgumentError if they exclude each other."""
        think = self.x_think
        return DecideOptions(
            form=self.x_form,
            effort=self.x_effort,
            calibration=self.x_calibration,
            orders=self.x_orders,
            instead=self.x_instead,
            think=None if think is None else Think(max_tokens=think.max_tokens, margin=think.margin, share=think.share),
            reproducible=self.x_reproducible or engine.is_reproducible,
        )


def extras(answer: Answered[Any]) -> dict[str, Any]:
    """Return the extra fields of an answer."""
    more = {"x_instead": answer.instead, "x_thought": answer.thought, "x_other": getattr(answer, "other", None)}
    more["x_profile"] = answer.profile
    given = {name: value for name, value in more.items() if value is not None}
    return {"x_mass": answer.mass, "x_calibration": answer.calibration, **given}
