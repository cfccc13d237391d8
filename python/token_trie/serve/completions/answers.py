"""Answers of completions: a text, a member of a set, a record or a call of a tool; with log-probabilities."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from token_trie.decisions.bound_choices import Reader
from token_trie.decisions.choose import ChoiceRequest
from token_trie.decisions.decision import Decision
from token_trie.decisions.options import ChooseOptions, RecordOptions, ScoreOptions
from token_trie.decisions.run import Bound, Prefix, Request, run
from token_trie.decisions.score import ScoreRequest
from token_trie.decisions.text import FreeText, TextRequest, text_of
from token_trie.errors import GrammarError, TokenTrieError
from token_trie.llama.text import TextOptions
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lifetime import lease
from token_trie.records.fill import read_template, record_request
from token_trie.records.tools import PLAIN, CallTemplate, Tool, ask_for_tools, read_tools, tell_of_tools, tool_request
from token_trie.serve.completions.requests import (
    Allowed,
    ByGrammar,
    BySchema,
    ChatRequest,
    Constraint,
    Named,
    OneOf,
    Sampling,
    check_schema,
    plain,
    require_parsed,
)
from token_trie.serve.decisions import together
from token_trie.serve.engine import Engine
from token_trie.serve.limits import Place, invalid, refusal_of
from token_trie.sets.prompt import Prompt, has_chat_template, tokenize_prompt
from token_trie.sets.trie import TokenTrie

_LEAST = -9999.0
"""Where OpenAI has no less, as JSON has no infinity."""
_AT_ONCE = 8
"""Places asked about at the same time: each answer is a float64 a token of the vocabulary."""


class OfToken(NamedTuple):
    """One token."""

    piece: bytes
    logprob: float
    others: list[tuple[bytes, float]]
    """The most probable ones of the whole vocabulary, best first."""
    written: bytes
    """The piece as it is in the text, which control tokens are not."""


async def logprobs_of(engine: Engine, prompt: list[int], tokens: list[int], n_others: int) -> list[OfToken]:
    """Return the model's own probabilities, without any constraint, of the tokens behind a prompt."""
    every = await engine.remembered(("every token",), lambda: engine.on_worker(lambda: _every_token(engine.llm)))
    room = asyncio.Semaphore(_AT_ONCE)

    async def at(i: int) -> OfToken:
        async with room:
            request = ScoreRequest(every, ScoreOptions())
            scores = np.maximum(await engine.read(lambda: ([*prompt, *tokens[:i]], request)), _LEAST)
        best = np.argpartition(-scores, min(n_others, len(scores) - 1))[:n_others] if n_others else np.empty(0, int)
        best = best[np.argsort(-scores[best], kind="stable")]
        with lease(engine.llm):
            vocab = vocab_of(engine.llm)
            others = [(vocab.detokenize([token], True), float(scores[token])) for token in best.tolist()]
            piece, written = (vocab.detokenize([tokens[i]], special) for special in (True, False))
            return OfToken(piece, float(scores[tokens[i]]), others, written)

    return await together(at(i) for i in range(len(tokens)))


def _every_token(llm: Llama) -> TokenTrie:
    with lease(llm):
        n = len(vocab_of(llm))
    return TokenTrie.from_arrays(np.arange(n, dtype=np.int32), np.arange(n + 1))


def as_chat(found: list[OfToken]) -> dict[str, Any]:
    """Return them in a chat's shape."""

    def one(piece: bytes, logprob: float) -> dict[str, Any]:
        return {"token": _text(piece), "logprob": logprob, "bytes": list(piece)}

    told = [{**one(each.piece, each.logprob), "top_logprobs": [one(*other) for other in each.others]} for each in found]
    return {"content": told, "refusal": None}


def as_completion(found: list[OfToken]) -> dict[str, Any]:
    """Return them in a completion's shape, where pieces that are no text are named by their bytes, as OpenAI's are."""
    begins = itertools.accumulate((len(each.written) for each in found), initial=0)
    chars = _chars_of(b"".join(each.written for each in found))
    return {
        "tokens": [_name(each.piece) for each in found],
        "token_logprobs": [each.logprob for each in found],
        "top_logprobs": [_by_name(each) for each in found],
        "text_offset": [chars[begin] for _, begin in zip(found, begins, strict=False)],
    }


def _chars_of(text: bytes) -> list[int]:
    """Return the index of the character that each byte of a text is part of, and of the one after it.

    Bytes that are no text are characters as Python replaces them.
    """
    indices: list[int] = []
    n = 0
    while len(indices) < len(text):
        rest = text[len(indices) :]
        try:
            good, n_bad = rest.decode(), 0
        except UnicodeDecodeError as error:
            good, n_bad = rest[: error.start].decode(), error.end - error.start
        for n_bytes in (*(len(char.encode()) for char in good), *([n_bad] if n_bad else [])):
            indices += [n] * n_bytes
            n += 1
    return [*indices, n]


def _by_name(found: OfToken) -> dict[str, float]:
    """Return the most probable tokens by their names; of those with the same text, the one that was taken has it."""
    named: dict[str, float] = {}
    for piece, logprob in sorted(found.others, key=lambda other: other != (found.piece, found.logprob)):
        name = _name(piece)
        named.setdefault(_bytes_name(piece) if name in named else name, logprob)
    return dict(sorted(named.items(), key=lambda item: -item[1]))


def _name(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return _bytes_name(piece)


def _bytes_name(piece: bytes) -> str:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")


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


_PROBED = 4
"""Tokens by which a call is told from a text."""


@dataclass(frozen=True)
class Calling:
    """Messages, and the tools that may be called."""

    turns: list[dict[str, Any]]
    tools: tuple[Tool, ...]
    otherwise: Asked | None
    """What answers where the model calls nothing; None: it is to call."""
    shape: ChatRequest

    async def __call__(self, engine: Engine, place: int, on_text: OnText | None) -> Finished:
        """Answer it."""
        tokens, template = await engine.on_worker(lambda: self._prompt(engine.llm, engine.n_ctx, thinks=True))
        if self.otherwise is not None and not await self._begins_a_call(engine, tokens, template):
            asked = self.otherwise
            behind = Asked(lambda _: tokens, asked.constraint, asked.place, asked.sampling, None, asked.stops)
            return await behind(engine, place, on_text)
        options = record_options(self.shape, place, None)

        def call() -> Any:
            tokens, template = self._prompt(engine.llm, engine.n_ctx, thinks=False)
            return run(engine.llm, tokens, tool_request(self.tools, options, template))

        made = await engine.alone(call)
        more = {"x_probability": made.probability, **notes_of(made.truncated, made.ignored)}
        return Finished("", "tool_calls", made.stats.n_prompt, 0, made.stats.n_tokens, call=made.to_dict(), more=more)

    def _prompt(self, llm: Llama, n_ctx: int, *, thinks: bool) -> tuple[list[int], CallTemplate]:
        shown = [tool.shown for tool in self.tools]
        with lease(llm):
            if not has_chat_template(llm):
                return tokenize_prompt(llm, plain(tell_of_tools(self.turns, shown)), n_ctx), PLAIN
            tokens, template = ask_for_tools(llm, self.turns, shown, n_ctx, thinks=thinks)
            return tokens, template or PLAIN

    async def _begins_a_call(self, engine: Engine, tokens: list[int], template: CallTemplate) -> bool:
        request = TextRequest(engine.llm, _PROBED, TextOptions(temperature=0.0))
        found = await engine.read(lambda: (tokens, request))
        with lease(engine.llm):
            begin = vocab_of(engine.llm).detokenize(found.tokens, True).decode(errors="ignore").strip()
        call = template.before.strip()
        return bool(begin) and (call.startswith(begin) or begin.startswith(call))


def read_calling(shape: ChatRequest, turns: list[dict[str, Any]], otherwise: Asked) -> Calling | None:
    """Return what may be called; None where nothing may. RefusedError for tools that there are not."""
    choice = shape.tool_choice
    if not shape.tools or choice == "none":
        if isinstance(choice, (Named, Allowed)) or choice == "required":
            raise invalid("there are no tools", ("tool_choice",))
        return None
    check_schema(shape.tools, ("tools",))
    try:
        tools = read_tools(shape.tools)
    except TokenTrieError as error:
        raise refusal_of(error, ("tools",)) from error
    must = choice == "required"
    if isinstance(choice, Named):
        tools, must = _only(tools, {choice.function.name}), True
    elif isinstance(choice, Allowed):
        some = choice.allowed_tools
        tools, must = _only(tools, {tool.function.name for tool in some.tools}), some.mode == "required"
    if must and otherwise.place:
        raise invalid("goes with no tool that is to be called: an answer has one constraint", otherwise.place)
    if shape.logprobs:
        raise invalid("goes with no tools", ("logprobs",), "unsupported")
    return Calling(turns, tools, None if must else otherwise, shape)


def _only(tools: tuple[Tool, ...], names: set[str]) -> tuple[Tool, ...]:
    missing = names - {tool.name for tool in tools}
    if missing:
        raise invalid(f"there is no tool {min(missing)!r}", ("tool_choice",))
    return tuple(tool for tool in tools if tool.name in names)
