"""``POST /v1/chat/completions`` and ``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from token_trie.errors import TokenTrieError
from token_trie.native.core import Llama
from token_trie.serve.body import Limits
from token_trie.serve.completions.answers import Answering, Asked, Finished
from token_trie.serve.completions.calls import read_calling
from token_trie.serve.completions.constraints import ByGrammar, constraint_of
from token_trie.serve.completions.prompts import PLAIN_STOPS, prompt_of, turns_of
from token_trie.serve.completions.shapes import ChatRequest, CompletionRequest, Sampling, refuse_unsupported
from token_trie.serve.completions.wire import Chat, Completion
from token_trie.serve.decisions import together
from token_trie.serve.engine import Engine
from token_trie.serve.events import DONE, EventStream, event
from token_trie.serve.refusal import OPENAI, RefusedError, refusal_of
from token_trie.serve.sets import Sets
from token_trie.sets.chat_form import has_chat_template
from token_trie.sets.prompt import Filled, Prompt

_log = logging.getLogger("token_trie.serve")


async def chat_completion(engine: Engine, shape: ChatRequest, sets: Sets, limits: Limits, model: str) -> Any:
    """Answer messages.

    Raises
    ------
    RefusedError
        It cannot be answered; with the place.
    """
    refuse_unsupported(shape)
    turns = turns_of(shape.messages)
    constraint, place = constraint_of(shape, sets, limits)
    stops = () if constraint != ByGrammar() or has_chat_template(engine.llm) else PLAIN_STOPS
    asked = Asked(lambda llm: prompt_of(llm, turns), constraint, place, shape, shape.n_alternatives, stops)
    answering: Answering = read_calling(shape, turns, asked) or asked
    return await _answer(engine, [answering], shape, Chat(model, shape.n_each))


async def completion(engine: Engine, shape: CompletionRequest, sets: Sets, limits: Limits, model: str) -> Any:
    """Go on behind prompts; errors as of `chat_completion`."""
    refuse_unsupported(shape)
    constraint, place = constraint_of(shape, sets, limits)

    def asked(given: str | list[int]) -> Asked:
        def prompt(_: Llama) -> Prompt:
            return Filled([("", given)]) if isinstance(given, str) and not shape.parse_special else given

        return Asked(prompt, constraint, place, shape, shape.logprobs)

    return await _answer(engine, [asked(given) for given in shape.prompts], shape, Completion(model, shape.n_each))


async def _answer(engine: Engine, asked: Sequence[Answering], shape: Sampling, wire: Chat | Completion) -> Any:
    every = [one for one in asked for _ in range(shape.n_each)]
    if not shape.stream:
        return wire.whole(await together(one(engine, i, None) for i, one in enumerate(every)))
    under_way = _UnderWay(engine, every, wire)
    try:
        await under_way.begin()
    except BaseException:
        await under_way.close()
        raise
    options = shape.stream_options
    events = under_way.events(options is not None and options.include_usage)
    return EventStream(events, under_way.close, lambda: _told(RefusedError("timeout", "no answer in time")))


class _UnderWay:
    """Answers of a stream."""

    def __init__(self, engine: Engine, asked: Sequence[Answering], wire: Chat | Completion) -> None:
        self._queue: asyncio.Queue[tuple[int, str | Finished | RefusedError]] = asyncio.Queue()
        self._wire = wire
        self._first: list[tuple[int, str | Finished | RefusedError]] = []
        self._tasks = [asyncio.ensure_future(self._answer(engine, i, one)) for i, one in enumerate(asked)]

    async def begin(self) -> None:
        """Wait for the first text; RefusedError where there is none."""
        place, found = await self._queue.get()
        if isinstance(found, RefusedError):
            raise found
        self._first.append((place, found))

    async def events(self, with_usage: bool) -> AsyncGenerator[bytes, None]:
        """Return all that is told, to its end."""
        answers: dict[int, Finished] = {}
        try:
            for i in range(len(self._tasks)):
                if (chunk := self._wire.begin(i)) is not None:
                    yield event(chunk)
            while len(answers) < len(self._tasks):
                place, found = self._first.pop() if self._first else await self._queue.get()
                if isinstance(found, RefusedError):
                    yield _told(found)
                    return
                if isinstance(found, str):
                    yield event(self._wire.text(place, found))
                else:
                    answers[place] = found
                    yield event(self._wire.end(place, found))
            if with_usage:
                yield event(self._wire.usage([answers[i] for i in sorted(answers)]))
            yield DONE
        finally:
            await self.close()

    async def close(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, engine: Engine, place: int, asked: Answering) -> None:
        try:
            found: Finished | RefusedError = await asked(
                engine, place, lambda text: self._queue.put_nowait((place, text))
            )
        except RefusedError as refusal:
            found = refusal
        except TokenTrieError as error:
            found = refusal_of(error)
        except Exception:
            _log.exception("an answer failed")
            found = RefusedError("internal", "a defect of the server")
        self._queue.put_nowait((place, found))


def _told(refusal: RefusedError) -> bytes:
    return event(OPENAI.tell(refusal)[1])
