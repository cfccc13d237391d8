"""Answers of completions: a text, a member of a set, a record or a call of a tool; with log-probabilities."""

from __future__ import annotations

import asyncio
import codecs
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from token_trie.arrays import Floats
from token_trie.decisions.choose import ChoiceRequest
from token_trie.decisions.decision import Decision
from token_trie.decisions.options import ChooseOptions, RecordOptions
from token_trie.decisions.request import MAX_TOKENS, TextRequest
from token_trie.llama.query import Ask, Plan, Query
from token_trie.llama.text import Text, TextOptions, text_of
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.plan import Model, PlanOf
from token_trie.records.fill import Record, read_template, record_request
from token_trie.records.tool_prompt import PLAIN, CallTemplate, ask_for_tools, tell_of_tools
from token_trie.records.tools import (
    N_BEGINNING,
    OPENINGS,
    CallOrText,
    Tool,
    ToolCall,
    beginnings_of_calls,
    text_before,
    tool_request,
)
from token_trie.records.verbatim import source_of
from token_trie.serve.engine import Engine
from token_trie.serve.errors import Place, invalid, refusing
from token_trie.serve.sets import AnySet
from token_trie.sets.prompt import Filled, Prompt, has_chat_template, tokenize_prompt
from token_trie.sets.trie import TokenTrie

Part: TypeAlias = str | dict[str, Any]
"""A piece of a text, or the delta of a chat's message."""
OnPart: TypeAlias = Callable[[Part], object]
OnText: TypeAlias = Callable[[str], object]
MakePrompt: TypeAlias = Callable[[Llama], Prompt]
Turns: TypeAlias = list[dict[str, Any]]
"""Messages in the format of chat templates."""

ANY_OBJECT = {"type": "object"}
_MIN_LOGPROB = -9999.0
"""The least log-probability in OpenAI's format, as JSON has no infinity."""
_MAX_CONCURRENT = 8
"""Positions scored at the same time: each result takes a float64 per token of the vocabulary."""


@dataclass(frozen=True)
class AnswerConstraint:
    """A member of a set, or a record of a schema; with none of these, any text."""

    place: Place = ()
    """Place of the constraint in the body."""
    choices: Callable[[Llama], AnySet] | None = None
    schema: Any = None
    strict: bool = True
    """Whether an unsupported keyword of the schema is refused; else it is ignored."""


@dataclass(frozen=True)
class AnswerOptions:
    """Options of an answer."""

    sampling: dict[str, Any]
    """Members of `token_trie.llama.query.Sampling`, without the temperature if the request has none."""
    max_tokens: int | None
    """Maximum tokens of the answer; None: not given."""
    stops: tuple[str, ...] = ()
    n_alternatives: int | None = None
    """Number of alternatives per token; None: no log-probabilities."""
    is_large: bool = False
    """Whether reading and planning the answer may take long."""

    def drawn(self, temperature: float) -> dict[str, Any]:
        """Return the sampling, by default with a temperature; at 0 without the rest, which many clients always send."""
        found = {"temperature": temperature, **self.sampling}
        return found if found["temperature"] > 0 else {"temperature": 0.0}


@dataclass
class Finished:
    """A finished answer."""

    text: str
    why: str
    """The finish reason: "stop", "length" or "tool_calls"."""
    n_prompt: int
    """Tokens of the prompt."""
    n_cached: int
    """Tokens of the prompt from the prefix cache."""
    n_tokens: int
    """Tokens of the answer."""
    logprobs: list[OfToken] | None = None
    call: dict[str, Any] | None = None
    """The call of a tool."""
    more: dict[str, Any] = field(default_factory=dict)
    """Extra fields."""


class PreparedAnswer(NamedTuple):
    """A prompt and a request to the engine, and what becomes of the result."""

    plan: PlanOf[None, Any]
    """Reads the prompt, and plans the request after it."""
    finish: Callable[[Any, list[int], int], Awaitable[Finished]]
    """Takes the result, the tokens of the prompt and how many of them were cached."""
    stream: TextStream | None = None
    """Passes a free text on as it is generated."""


@dataclass(frozen=True)
class ConstrainedPrompt:
    """A prompt and its constraint."""

    prompt: MakePrompt
    constraint: AnswerConstraint
    options: AnswerOptions
    beginnings: tuple[str, ...] = ()
    """Beginnings of calls, before which a free text ends."""
    source: str | None = None
    """The text that verbatim values are taken from."""

    async def prepare(self, engine: Engine, on_part: OnPart | None) -> PreparedAnswer:
        """Prepare the answer; `on_part` gets its parts as they are generated."""
        if self.constraint.choices is not None:
            return self._choose(engine, self.constraint.choices, on_part)
        if self.constraint.schema is not None:
            return await self._fill(engine, on_part)
        return self._write(engine, on_part)

    def _choose(self, engine: Engine, read: Callable[[Llama], AnySet], on_text: OnText | None) -> PreparedAnswer:
        def plan(model: Model, _: None) -> Plan[Decision[Any]]:
            with refusing(self.constraint.place):
                choices = read(engine.llm)
            return ChoiceRequest.read(choices, ChooseOptions()).plan(model, self.prompt(engine.llm))

        async def finish(decision: Decision[Any], prompt: list[int], n_cached: int) -> Finished:
            value = decision.value
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if on_text is not None:
                on_text(text)
            logprobs = await self._logprobs(engine, prompt, list(decision.tokens))
            return Finished(text, "stop", decision.stats.n_prompt, n_cached, len(decision.tokens), logprobs)

        return PreparedAnswer(plan, finish)

    async def _fill(self, engine: Engine, on_text: OnText | None) -> PreparedAnswer:
        of = self.constraint
        if self.options.n_alternatives is not None:
            raise invalid("goes with no schema", ("logprobs",), "unsupported")
        most = MAX_TOKENS if of.schema is ANY_OBJECT else RecordOptions.max_tokens
        options = record_options(self.options, on_text, most)
        with refusing(of.place):
            call = lambda: read_template(of.schema, strict=of.strict)  # noqa: E731
            template = await engine.on_worker(call, is_large=self.options.is_large)

        async def finish(record: Record[Any], _: list[int], n_cached: int) -> Finished:
            more, stats = notes_of(record, template.ignored), record.stats
            assert stats is not None
            why = "length" if record.truncated else "stop"
            return Finished(record.text, why, stats.n_prompt, n_cached, stats.n_tokens, more=more)

        request = record_request(template, options).of_text(self.source)
        return PreparedAnswer(lambda model, _: request.plan(model, self.prompt(engine.llm)), finish)

    @property
    def request(self) -> TextRequest:
        """The request for free text."""
        # Beside tools, greedy unless a temperature is given, as calls are: the text decides whether it is one.
        drawn = self.options.drawn(0.0 if self.beginnings else 1.0)
        return TextRequest(self.options.max_tokens, TextOptions(stop=(*self.options.stops, *self.beginnings), **drawn))

    def _write(self, engine: Engine, on_text: OnText | None) -> PreparedAnswer:
        llm, beginnings = engine.llm, self.beginnings
        request, options = self.request, self.request.options
        before = text_before if beginnings else str
        held = [*options.stop, *(OPENINGS if beginnings else ())]
        stream = None if on_text is None else TextStream(llm, held, on_text, before)

        async def finish(found: Text, prompt: list[int], n_cached: int) -> Finished:
            if stream is not None:
                stream.end(found.text)
            logprobs = await self._logprobs(engine, prompt, found.tokens)
            why = "length" if found.stop == "max_tokens" else "stop"
            return Finished(found.text, why, found.n_prompt, n_cached, len(found.tokens), logprobs)

        return PreparedAnswer(lambda model, _: request.plan(model, self.prompt(llm)), finish, stream)

    async def _logprobs(self, engine: Engine, prompt: list[int], tokens: list[int]) -> list[OfToken] | None:
        n = self.options.n_alternatives
        return None if n is None else await logprobs_of(engine, prompt, tokens, n)


@dataclass(frozen=True)
class Calling:
    """Messages and the tools that may be called."""

    turns: Turns
    tools: tuple[Tool, ...]
    otherwise: ConstrainedPrompt | None
    """Answers if the model calls no tool; None: it has to call one."""
    options: AnswerOptions

    async def prepare(self, engine: Engine, on_part: OnPart | None) -> PreparedAnswer:
        """Prepare the answer; `on_part` gets its parts as they are generated."""
        tokens, template = await engine.on_worker(lambda: self._prompt(engine))
        call_id = uuid.uuid4().hex[:9]
        on_text = None if on_part is None else call_parts(call_id, template, on_part)
        options = record_options(self.options, on_text)
        call = tool_request(self.tools, options, template).of_text(source_of(self.turns) or "")

        async def called(answer: ToolCall[Any], _: list[int], n_cached: int) -> Finished:
            more = {"x_probability": answer.probability, **notes_of(answer, answer.ignored)}
            stats, shown = answer.stats, {**answer.to_dict(), "id": call_id}
            assert stats is not None
            why = "length" if answer.truncated else "tool_calls"
            return Finished("", why, stats.n_prompt, n_cached, stats.n_tokens, call=shown, more=more)

        if self.otherwise is None:
            return PreparedAnswer(lambda model, _: call.plan(model, tokens), called)
        beginnings = beginnings_of_calls(self.tools, template)
        other = replace(self.otherwise, prompt=lambda _: tokens, beginnings=beginnings)
        otherwise = await other.prepare(engine, on_part)
        request = CallOrText(call, other.request, beginnings)
        if other.constraint != AnswerConstraint():
            text = TextRequest(N_BEGINNING, TextOptions(stop=beginnings))
            request = CallOrText(call, text, beginnings, lambda model, _: otherwise.plan(model, None))

        def plan(model: Model, _: None) -> Plan[Any]:
            return request.plan(model, tokens)

        async def finish(answer: Any, prompt: list[int], n_cached: int) -> Finished:
            finish = called if isinstance(answer, ToolCall) else otherwise.finish
            return await finish(answer, prompt, n_cached)

        return otherwise._replace(plan=plan, finish=finish)

    def _prompt(self, engine: Engine) -> tuple[list[int], CallTemplate]:
        shown, must, llm = [tool.shown for tool in self.tools], self.otherwise is None, engine.llm
        if not has_chat_template(llm):
            described = tell_of_tools(self.turns, shown, must=must)
            return tokenize_prompt(llm, plain(described), engine.n_ctx), PLAIN
        return ask_for_tools(llm, self.turns, shown, engine.n_ctx, must=must)


Answering: TypeAlias = ConstrainedPrompt | Calling
"""Makes an answer."""


async def answer_of(engine: Engine, answering: Answering, on_part: OnPart | None = None) -> Finished:
    """Return an answer; `on_part` gets its parts as they are generated."""
    prepared = await answering.prepare(engine, on_part)
    found = await engine.read(None, prepared.plan, prepared.stream, is_large=answering.options.is_large)
    return await prepared.finish(*found)


def plain(turns: Sequence[dict[str, Any]]) -> Filled:
    """Return messages in plain text, one paragraph per turn, ending with the start of the assistant's."""
    parts: list[tuple[str, str]] = []
    between = ""
    for turn in turns:
        said = str(turn["content"])
        for call in turn.get("tool_calls") or ():
            said += f"{call['function']['name']}({call['function']['arguments']})"
        parts.append((f"{between}{turn['role']}: ", said))
        between = "\n\n"
    return Filled([*parts, (f"{between}assistant:", "")])


def record_options(given: AnswerOptions, on_text: OnText | None, most: int = RecordOptions.max_tokens) -> RecordOptions:
    """Return the options of a record: greedy unless a temperature is given, `most` tokens if no limit is given."""
    send = None
    if on_text is not None:
        loop, listen = asyncio.get_running_loop(), on_text

        def send(text: str) -> None:
            loop.call_soon_threadsafe(listen, text)

    limit = most if given.max_tokens is None else max(given.max_tokens, 1)
    return RecordOptions(**given.drawn(0.0), on_text=send, max_tokens=limit)


def notes_of(record: Record[Any] | ToolCall[Any], ignored: Sequence[str]) -> dict[str, Any]:
    """Return the extra fields: truncated and verbatim values of a record, and ignored keywords of its schema."""
    verbatim = {
        pointer: {"start": start, "end": end, "probability": record.probabilities[pointer]}
        for pointer, (start, end) in record.offsets.items()
    }
    notes = {"x_truncated": list(record.truncated), "x_verbatim": verbatim, "x_ignored": list(ignored)}
    return {name: some for name, some in notes.items() if some}


def call_parts(call_id: str, template: CallTemplate, on_part: OnPart) -> OnText:
    """Return a listener to the text of a call, which passes it on as OpenAI's deltas: the name, then the arguments."""
    n_pieces = 0

    def listen(piece: str) -> None:
        nonlocal n_pieces
        n_pieces += 1
        if n_pieces == 1:
            name = json.loads(f'"{piece}"')
            own: dict[str, Any] = {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        else:
            own = {"function": {"arguments": piece.removeprefix(template.between if n_pieces == 2 else "")}}
        on_part({"tool_calls": [{"index": 0, **own}]})

    return listen


class TextStream:
    """Passes a text on as it is generated, holding back what may begin a stop string, or what `before` leaves out."""

    def __init__(self, llm: Llama, stops: list[str], on_text: OnText, before: Callable[[str], str]) -> None:
        self._llm = llm
        self._stops = stops
        self._on_text = on_text
        self._before = before
        self._tokens: list[int] = []
        self._sent = ""

    def __call__(self, tokens: list[int]) -> None:
        """Add tokens."""
        self._tokens += tokens
        text = text_of(vocab_of(self._llm), self._tokens)
        sure = text[: len(text) - _n_held_back(text, self._stops)]
        self._send(min(self._before(text), self._before(sure), key=len))

    def end(self, text: str) -> None:
        """Pass on the rest of the whole text."""
        self._send(text)

    def _send(self, text: str) -> None:
        if len(text) > len(self._sent):
            self._on_text(text[len(self._sent) :])
            self._sent = text


def _n_held_back(text: str, stops: list[str]) -> int:
    """Return the length of the longest suffix of a text that a stop string begins with."""
    return max((_n_begun(text[max(len(text) - len(stop) + 1, 0) :], stop) for stop in stops), default=0)


def _n_begun(end: str, stop: str) -> int:
    at = end.find(stop[0])
    while at >= 0:
        if stop.startswith(end[at:]):
            return len(end) - at
        at = end.find(stop[0], at + 1)
    return 0


# Log-probabilities


class OfToken(NamedTuple):
    """A token with its log-probability and alternatives."""

    piece: bytes
    logprob: float
    others: list[tuple[bytes, float]]
    """The most probable tokens of the vocabulary, best first."""
    written: bytes
    """The piece in the text; empty for control tokens."""


async def logprobs_of(engine: Engine, prompt: list[int], tokens: list[int], n_others: int) -> list[OfToken]:
    """Return the model's own log-probabilities, without a constraint, of the tokens after a prompt."""
    return (await engine.read(prompt, partial(_logprobs_plan, tokens=tokens, n_others=n_others))).result


def _logprobs_plan(model: Model, prompt: list[int], tokens: list[int], n_others: int) -> Plan[list[OfToken]]:
    every = Query("scores", _every_token(model), leaf_end="any")
    found: list[OfToken] = []
    for begin in range(0, len(tokens), _MAX_CONCURRENT):
        places = range(begin, min(begin + _MAX_CONCURRENT, len(tokens)))
        answers = yield [Ask([*prompt, *tokens[:i]], every) for i in places]
        found += [
            _of_token(model.vocab, tokens[i], one.logprobs, n_others) for i, one in zip(places, answers, strict=True)
        ]
    return found


def _of_token(vocab: _core.Vocab, token: int, logprobs: Floats, n_others: int) -> OfToken:
    scores = np.maximum(logprobs, _MIN_LOGPROB)
    best = np.argpartition(-scores, min(n_others, len(scores) - 1))[:n_others] if n_others else np.empty(0, int)
    best = best[np.argsort(-scores[best], kind="stable")]
    others = [(vocab.detokenize([token], True), float(scores[token])) for token in best.tolist()]
    piece, written = (vocab.detokenize([token], special) for special in (True, False))
    return OfToken(piece, float(scores[token]), others, written)


def _every_token(model: Model) -> TokenTrie:
    n = len(model.vocab)
    every: TokenTrie = model.known.get("every token") or model.known.setdefault(
        "every token", TokenTrie.from_arrays(np.arange(n, dtype=np.int32), np.arange(n + 1))
    )
    return every


def as_chat(found: list[OfToken]) -> dict[str, Any]:
    """Return log-probabilities in the format of chats."""

    def one(piece: bytes, logprob: float) -> dict[str, Any]:
        return {"token": _text(piece), "logprob": logprob, "bytes": list(piece)}

    content = [
        {**one(each.piece, each.logprob), "top_logprobs": [one(*other) for other in each.others]} for each in found
    ]
    return {"content": content, "refusal": None}


def as_completion(found: list[OfToken]) -> dict[str, Any]:
    """Return log-probabilities in the format of completions; pieces that are not UTF-8 are named by their bytes."""
    decoder, n, offsets = codecs.getincrementaldecoder("utf-8")("replace"), 0, []
    for each in found:
        if each.written and not 0x80 <= each.written[0] < 0xC0:
            n += len(decoder.decode(b"", final=True))  # an incomplete character before a new one
        offsets.append(n)
        n += len(decoder.decode(each.written))
    return {
        "tokens": [_name(each.piece) for each in found],
        "token_logprobs": [each.logprob for each in found],
        "top_logprobs": [_by_name(each) for each in found],
        "text_offset": offsets,
    }


def _by_name(found: OfToken) -> dict[str, float]:
    """Return the most probable tokens by name; of tokens with the same text, the chosen one wins."""
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
