"""Answers of completions, one a call: whatever the constraint, a text, or a call of a tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from token_trie.decisions.bound import Reader
from token_trie.decisions.choice import ChoiceRequest
from token_trie.decisions.decision import Decision
from token_trie.decisions.free_text import FreeText, TextRequest, text_of
from token_trie.decisions.options import ChooseOptions, RecordOptions
from token_trie.decisions.records.filling import record_request
from token_trie.decisions.records.types import read_template
from token_trie.decisions.request import Bound, Prefix, Request
from token_trie.decisions.runner import run
from token_trie.errors import GrammarError, TokenTrieError
from token_trie.llama.text import TextOptions
from token_trie.native.core import Llama
from token_trie.native.lease import lease
from token_trie.serve.completions.constraints import ByGrammar, BySchema, Constraint, OneOf
from token_trie.serve.completions.grammars import require_parsed
from token_trie.serve.completions.logprobs import OfToken, logprobs_of
from token_trie.serve.completions.shapes import Sampling
from token_trie.serve.engine import Engine
from token_trie.serve.refusal import Place, invalid, refusal_of
from token_trie.sets.prompt import Prompt

OnText: TypeAlias = Callable[[str], object]
MakePrompt: TypeAlias = Callable[[Llama], Prompt]

R = TypeVar("R")

_SCORED_WHOLE = 1000
"""Members up to which a set's whole distribution is told."""


@dataclass
class Finished:
    """An answer."""

    text: str
    why: str
    """Why it ended: "stop", "length" or "tool_calls"."""
    n_prompt: int
    """Tokens of the prompt,"""
    n_cached: int
    """of which so many were evaluated for another,"""
    n_tokens: int
    """and of the answer."""
    logprobs: list[OfToken] | None = None
    call: dict[str, Any] | None = None
    """Of a tool."""
    more: dict[str, Any] = field(default_factory=dict)
    """What nobody else tells."""


class Answering(Protocol):
    """Answers a request for the so-and-so-many-th time; the text is told as it comes to be, where somebody listens."""

    async def __call__(self, engine: Engine, place: int, on_text: OnText | None) -> Finished:
        """Answer."""


@dataclass(frozen=True)
class Asked:
    """A prompt, and what may answer it."""

    prompt: MakePrompt
    constraint: Constraint
    place: Place
    """Where the constraint stands in the body."""
    sampling: Sampling
    n_alternatives: int | None = None
    """Tokens to be told beside each that was taken; None: nothing of tokens."""
    stops: tuple[str, ...] = ()
    """More texts that end it."""

    async def __call__(self, engine: Engine, place: int, on_text: OnText | None) -> Finished:
        """Answer it."""
        if isinstance(self.constraint, OneOf):
            return await self._choose(engine, self.constraint, place, on_text)
        if isinstance(self.constraint, BySchema):
            return await self._fill(engine, self.constraint, place, on_text)
        return await self._write(engine, self.constraint, place, on_text)

    async def _choose(self, engine: Engine, of: OneOf, place: int, on_text: OnText | None) -> Finished:
        noted: list[Noted[Decision[Any]]] = []
        sampling = self.sampling

        def made() -> tuple[Prompt, Request[Decision[Any]]]:
            choices = self._read(lambda: of.read(engine.llm))
            options = ChooseOptions(probabilities=sampling.x_distribution and len(choices) <= _SCORED_WHOLE)
            if sampling.n_each > 1 and sampling.effective_temperature > 0:
                options = ChooseOptions(mode="aligned", seed=sampling.seed_of(place))
            noted.append(Noted(ChoiceRequest.read(choices, options)))
            return self.prompt(engine.llm), noted[0]

        decision, n_cached = await engine.read_told(made)
        text = as_text(decision.value)
        if on_text is not None:
            on_text(text)
        told = await self._logprobs(engine, noted[0].tokens, list(decision.tokens))
        more = distribution_of(decision)
        return Finished(text, "stop", decision.stats.n_prompt, n_cached, len(decision.tokens), told, more=more)

    async def _fill(self, engine: Engine, of: BySchema, place: int, on_text: OnText | None) -> Finished:
        if self.n_alternatives is not None:
            raise invalid("goes with no schema", ("logprobs",), "unsupported")
        options = record_options(self.sampling, place, on_text)

        def call() -> Any:
            template = self._read(lambda: read_template(of.schema, strict=of.strict))
            return template, run(engine.llm, self.prompt(engine.llm), record_request(template, options))

        template, record = await engine.alone(call)
        more = notes_of(record.truncated, template.ignored)
        stats = record.stats
        return Finished(record.text, "stop", stats.n_prompt, 0, stats.n_tokens, more=more)

    async def _write(self, engine: Engine, of: ByGrammar, place: int, on_text: OnText | None) -> Finished:
        sampling = self.sampling
        stops = [*sampling.stops, *self.stops]

        noted: list[Noted[FreeText]] = []

        def made() -> tuple[Prompt, Request[FreeText]]:
            if of.gbnf is not None:
                require_parsed(engine.llm, of.gbnf)
            options = TextOptions(stop=stops, **sampling.drawn_by(place))
            noted.append(Noted(TextRequest(engine.llm, sampling.most_tokens, options, of.gbnf)))
            return self.prompt(engine.llm), noted[0]

        so_far = None if on_text is None else TextSoFar(engine.llm, stops, on_text)
        try:
            found, n_cached = await engine.read_told(made, so_far)
        except GrammarError as error:
            raise refusal_of(error, self.place) from error
        if so_far is not None:
            so_far.end(found.text)
        told = await self._logprobs(engine, noted[0].tokens, found.tokens)
        why = "length" if found.stop == "max_tokens" else "stop"
        return Finished(found.text, why, found.n_prompt, n_cached, len(found.tokens), told)

    async def _logprobs(self, engine: Engine, prompt: list[int], tokens: list[int]) -> list[OfToken] | None:
        if self.n_alternatives is None:
            return None
        return await logprobs_of(engine, prompt, tokens, self.n_alternatives)

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except TokenTrieError as error:
            raise refusal_of(error, self.place) from error


def record_options(sampling: Sampling, place: int, on_text: OnText | None) -> RecordOptions:
    """Return the options of a record: the best one, unless a temperature is given."""
    tell = None
    if on_text is not None:
        loop, listen = asyncio.get_running_loop(), on_text

        def tell(text: str) -> None:
            loop.call_soon_threadsafe(listen, text)

    most = sampling.most_tokens
    drawn = sampling.drawn_by(place) | ({"temperature": 0.0} if sampling.temperature is None else {})
    return RecordOptions(
        **drawn,
        on_text=tell,
        max_tokens=RecordOptions.max_tokens if most is None else max(most, 1),
    )


def notes_of(truncated: Sequence[str], ignored: Sequence[str]) -> dict[str, Any]:
    """Return the extra fields that say what of a record ended early, and what of its schema was ignored."""
    told = {"x_truncated": list(truncated), "x_ignored": list(ignored)}
    return {name: some for name, some in told.items() if some}


def as_text(value: Any) -> str:
    """Return what a choice stands for, as an answer has it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def distribution_of(decision: Decision[Any]) -> dict[str, Any]:
    """Return how probable each choice is, the best first, as extra fields."""
    if decision.probabilities is None:
        return {"x_mass": None, "x_distribution": None}
    ranked = decision.top(len(decision.probabilities))
    told = [{"value": value, "probability": probability} for value, probability in ranked]
    return {"x_mass": decision.mass, "x_distribution": told}


class Noted(Request[R]):
    """A request that notes the tokens of its prompt."""

    def __init__(self, request: Request[R]) -> None:
        self._request = request
        self.tokens: list[int] = []

    @property
    def seed(self) -> int | None:
        """Of what is drawn."""
        return self._request.seed

    @property
    def draws(self) -> bool:
        """Whether something is."""
        return self._request.draws

    def bind(self, reader: Reader, prefix: Prefix) -> Bound[R]:
        """Bind it to what it stands behind."""
        bound = self._request.bind(reader, prefix)
        self.tokens = bound.tokens
        return bound


class TextSoFar:
    """Tells a text as it is written, but for what may turn out to be the beginning of a stop string."""

    def __init__(self, llm: Llama, stops: list[str], on_text: OnText) -> None:
        self._llm = llm
        self._stops = stops
        self._on_text = on_text
        self._tokens: list[int] = []
        self._told = ""

    def __call__(self, tokens: list[int]) -> None:
        """Go on by tokens."""
        self._tokens += tokens
        with lease(self._llm):
            text = text_of(self._llm, self._tokens)
        self._tell(text[: len(text) - _n_held_back(text, self._stops)])

    def end(self, text: str) -> None:
        """Tell what is left of the whole text."""
        self._tell(text)

    def _tell(self, text: str) -> None:
        if len(text) > len(self._told):
            self._on_text(text[len(self._told) :])
            self._told = text


def _n_held_back(text: str, stops: list[str]) -> int:
    """Return the length of the longest end of a text that a stop string begins with."""
    return max(
        (_n_begun(text[len(text) - len(stop) + 1 :] if len(text) >= len(stop) else text, stop) for stop in stops),
        default=0,
    )


def _n_begun(end: str, stop: str) -> int:
    at = end.find(stop[0])
    while at >= 0:
        if stop.startswith(end[at:]):
            return len(end) - at
        at = end.find(stop[0], at + 1)
    return 0
