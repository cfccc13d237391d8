"""``POST /v1/chat/completions`` and ``POST /v1/completions``: answers in OpenAI's format, whole or as events."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from token_trie.errors import TokenTrieError
from token_trie.native.core import Llama
from token_trie.serve.completions.answers import (
    Answering,
    ConstrainedPrompt,
    Finished,
    Part,
    answer_of,
    as_chat,
    as_completion,
    read_calling,
)
from token_trie.serve.completions.requests import (
    PLAIN_STOPS,
    ChatRequest,
    CompletionRequest,
    Constraint,
    GenerationRequest,
    constraint_of,
    prompt_of,
    refuse_unsupported,
    turns_of,
)
from token_trie.serve.decisions import together
from token_trie.serve.engine import Engine
from token_trie.serve.limits import Limits, RefusedError, openai_error, refusal_of
from token_trie.serve.sets import Sets
from token_trie.sets.prompt import Filled, Prompt, has_chat_template


@dataclass
class Wire:
    """Responses of a chat or a completion, whole or in chunks."""

    model: str
    is_chat: bool

    def __post_init__(self) -> None:
        self._id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, answers: Sequence[Finished]) -> dict[str, Any]:
        """Return the response."""
        choices = []
        for i, answer in enumerate(answers):
            content: dict[str, Any] = {"text": answer.text}
            if self.is_chat:
                called = {} if answer.call is None else {"content": answer.text or None, "tool_calls": [answer.call]}
                content = {"message": {"role": "assistant", "content": answer.text, "refusal": None, **called}}
            choices.append({"index": i, **content, **self._end(answer)})
        return {**self._head("chat.completion"), "choices": choices, "usage": usage_of(answers)}

    def part(self, index: int, part: Part, answer: Finished | None = None) -> dict[str, Any]:
        """Return a chunk; the last one has the answer."""
        delta = {"content": part} if part and isinstance(part, str) else part or {}
        content = {"delta": delta} if self.is_chat else {"text": part}
        end = {"logprobs": None, "finish_reason": None} if answer is None else self._end(answer)
        return {**self._head("chat.completion.chunk"), "choices": [{"index": index, **content, **end}]}

    def usage(self, answers: Sequence[Finished]) -> dict[str, Any]:
        """Return the chunk with the usage."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage_of(answers)}

    def _head(self, kind: str) -> dict[str, Any]:
        kind = kind if self.is_chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self.model}

    def _end(self, answer: Finished) -> dict[str, Any]:
        found = answer.logprobs
        logprobs = None if found is None else as_chat(found) if self.is_chat else as_completion(found)
        return {"logprobs": logprobs, "finish_reason": answer.why, **answer.more}


def usage_of(answers: Sequence[Finished]) -> dict[str, Any]:
    """Return the token counts of answers."""
    n_prompt = sum(answer.n_prompt for answer in answers)
    n_cached = sum(answer.n_cached for answer in answers)
    n_tokens = sum(answer.n_tokens for answer in answers)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_tokens,
        "total_tokens": n_prompt + n_tokens,
        "prompt_tokens_details": {"cached_tokens": n_cached},
    }


_PART_BYTES = 64 << 10

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    """Return a server-sent event of a JSON value."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Server-sent events, until the client leaves.

    `close` ends the generation, and is always awaited after the response. `on_late` returns the last event if the time
    is over.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        close: Callable[[], Coroutine[Any, Any, object]],
        on_late: Callable[[], bytes],
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.events = self._sent = events
        self.close = close
        self._on_late = on_late
        self._seconds: float | None = None

    def send_by(self, events: AsyncGenerator[bytes, None], seconds: float) -> None:
        """Send these events instead, for at most this time."""
        self._sent, self._seconds = events, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(wait_gone(receive))
        try:
            await asyncio.wait({sending, gone}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            is_late = not (sending.done() or gone.done())
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            if is_late:
                await send({"type": "http.response.body", "body": self._on_late(), "more_body": False})
        finally:
            sending.cancel()
            gone.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        async with aclosing(self._sent) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def in_parts(send: Send) -> Send:
    """Return a `send` that splits long bodies, so that it waits for the client to read each part."""

    async def send_in_parts(message: Message) -> None:
        body = message.get("body", b"")
        if len(body) <= _PART_BYTES:
            await send(message)
            return
        for begin in range(0, len(body), _PART_BYTES):
            more = begin + _PART_BYTES < len(body) or message.get("more_body", False)
            await send({**message, "body": body[begin : begin + _PART_BYTES], "more_body": more})

    return send_in_parts


async def wait_gone(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


_log = logging.getLogger("token_trie.serve")


async def chat_completion(engine: Engine, shape: ChatRequest, sets: Sets, limits: Limits, model: str) -> Any:
    """Answer a chat; RefusedError, with the place, if it cannot be answered."""
    refuse_unsupported(shape)
    turns = turns_of(shape.messages)
    constraint = constraint_of(shape, sets)
    stops = () if constraint != Constraint() or has_chat_template(engine.llm) else PLAIN_STOPS
    asked = ConstrainedPrompt(lambda llm: prompt_of(llm, turns), constraint, shape, shape.n_alternatives, stops)
    calling = read_calling(shape, turns, asked)
    return await _answer(engine, [calling or asked], shape, Wire(model, is_chat=True))


async def completion(engine: Engine, shape: CompletionRequest, sets: Sets, limits: Limits, model: str) -> Any:
    """Complete prompts; errors as in `chat_completion`."""
    refuse_unsupported(shape)
    constraint = constraint_of(shape, sets)

    def asked(given: str | list[int]) -> ConstrainedPrompt:
        def prompt(_: Llama) -> Prompt:
            return Filled([("", given)]) if isinstance(given, str) and not shape.parse_special else given

        return ConstrainedPrompt(prompt, constraint, shape, shape.logprobs)

    wire = Wire(model, is_chat=False)
    return await _answer(engine, [asked(given) for given in shape.prompts], shape, wire)


async def _answer(engine: Engine, asked: Sequence[Answering], shape: GenerationRequest, wire: Wire) -> Any:
    if not shape.stream:
        return wire.whole(await together(answer_of(engine, one, None) for one in asked))
    generation = _Generation(engine, asked, wire)
    try:
        await generation.begin()
    except BaseException:
        await generation.close()
        raise
    options = shape.stream_options
    events = generation.events(options is not None and options.include_usage)
    return EventStream(events, generation.close, lambda: _error_event(RefusedError("timeout", "no answer in time")))


class _Generation:
    """The answers of a stream while they are generated."""

    def __init__(self, engine: Engine, asked: Sequence[Answering], wire: Wire) -> None:
        self._queue: asyncio.Queue[tuple[int, Part | Finished | RefusedError]] = asyncio.Queue()
        self._wire = wire
        self._first: list[tuple[int, Part | Finished | RefusedError]] = []
        self._tasks = [asyncio.ensure_future(self._answer(engine, i, one)) for i, one in enumerate(asked)]

    async def begin(self) -> None:
        """Wait for the first text; RefusedError if there is none."""
        index, found = await self._queue.get()
        if isinstance(found, RefusedError):
            raise found
        self._first.append((index, found))

    async def events(self, with_usage: bool) -> AsyncGenerator[bytes, None]:
        """Yield the events."""
        answers: dict[int, Finished] = {}
        try:
            for i in range(len(self._tasks) if self._wire.is_chat else 0):
                yield event(self._wire.part(i, {"role": "assistant", "content": ""}))
            while len(answers) < len(self._tasks):
                index, found = self._first.pop() if self._first else await self._queue.get()
                if isinstance(found, RefusedError):
                    yield _error_event(found)
                    return
                if isinstance(found, Finished):
                    answers[index] = found
                    yield event(self._wire.part(index, "", found))
                else:
                    yield event(self._wire.part(index, found))
            if with_usage:
                yield event(self._wire.usage([answers[i] for i in sorted(answers)]))
            yield DONE
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel the generation."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, engine: Engine, index: int, asked: Answering) -> None:
        try:
            found: Finished | RefusedError = await answer_of(
                engine, asked, lambda text: self._queue.put_nowait((index, text))
            )
        except RefusedError as refusal:
            found = refusal
        except TokenTrieError as error:
            found = refusal_of(error)
        except Exception:
            _log.exception("an answer failed")
            found = RefusedError("internal", "a defect of the server")
        self._queue.put_nowait((index, found))


def _error_event(refusal: RefusedError) -> bytes:
    return event(openai_error(refusal)[1])
