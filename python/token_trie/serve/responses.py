"""Responses of completions in OpenAI's format, whole or as events while the answers are generated."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from token_trie.errors import TokenTrieError
from token_trie.serve.answers import Answering, Finished, Part, answer_of, as_chat, as_completion
from token_trie.serve.engine import Engine
from token_trie.serve.errors import RefusedError, openai_error, refusal_of

_PART_BYTES = 64 << 10
_DONE = b"data: [DONE]\n\n"
_log = logging.getLogger("token_trie.serve")


class Wire:
    """Responses of a chat or of completions, whole or in chunks."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        self.is_chat = is_chat
        self._model = model
        self._id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
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
        return {**self._head("chat.completion"), "choices": choices, "usage": _usage_of(answers)}

    def part(self, index: int, part: Part, answer: Finished | None = None) -> dict[str, Any]:
        """Return a chunk; the last one has the answer."""
        delta = {"content": part} if part and isinstance(part, str) else part or {}
        content = {"delta": delta} if self.is_chat else {"text": part}
        end = {"logprobs": None, "finish_reason": None} if answer is None else self._end(answer)
        return {**self._head("chat.completion.chunk"), "choices": [{"index": index, **content, **end}]}

    def usage(self, answers: Sequence[Finished]) -> dict[str, Any]:
        """Return the chunk with the usage."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": _usage_of(answers)}

    def _head(self, kind: str) -> dict[str, Any]:
        kind = kind if self.is_chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _end(self, answer: Finished) -> dict[str, Any]:
        found = answer.logprobs
        logprobs = None if found is None else as_chat(found) if self.is_chat else as_completion(found)
        return {"logprobs": logprobs, "finish_reason": answer.why, **answer.more}


def _usage_of(answers: Sequence[Finished]) -> dict[str, Any]:
    n_prompt = sum(answer.n_prompt for answer in answers)
    n_tokens = sum(answer.n_tokens for answer in answers)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_tokens,
        "total_tokens": n_prompt + n_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(answer.n_cached for answer in answers)},
    }


class EventStream(Response):
    """Answers as server-sent events while they are generated, until the client leaves.

    `close` ends the generation, and is always awaited after the response.
    """

    media_type = "text/event-stream"

    def __init__(self, engine: Engine, asked: Sequence[Answering], wire: Wire, *, with_usage: bool) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.seconds: float | None = None
        """Time for the events; a timeout error is the last one."""
        self._wire, self._with_usage = wire, with_usage
        self._queue: asyncio.Queue[tuple[int, Part | Finished | RefusedError]] = asyncio.Queue()
        self._waiting: list[tuple[int, Part | Finished | RefusedError]] = []
        self._tasks = [asyncio.ensure_future(self._answer(engine, i, one)) for i, one in enumerate(asked)]

    async def begin(self) -> EventStream:
        """Wait for the first text; RefusedError if there is none."""
        try:
            index, found = await self._queue.get()
            if isinstance(found, RefusedError):
                raise found
        except BaseException:
            await self.close()
            raise
        self._waiting.append((index, found))
        return self

    async def close(self) -> None:
        """Cancel the generation."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(wait_gone(receive))
        try:
            await asyncio.wait({sending, gone}, timeout=self.seconds, return_when=asyncio.FIRST_COMPLETED)
            is_late = not (sending.done() or gone.done())
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            if is_late:
                late = _error_event(RefusedError("timeout", "no answer in time"))
                await send({"type": "http.response.body", "body": late, "more_body": False})
        finally:
            sending.cancel()
            gone.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events()) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        answers: dict[int, Finished] = {}
        for i in range(len(self._tasks) if self._wire.is_chat else 0):
            yield _event(self._wire.part(i, {"role": "assistant", "content": ""}))
        while len(answers) < len(self._tasks):
            index, found = self._waiting.pop() if self._waiting else await self._queue.get()
            if isinstance(found, RefusedError):
                yield _error_event(found)
                return
            if isinstance(found, Finished):
                answers[index] = found
                yield _event(self._wire.part(index, "", found))
            else:
                yield _event(self._wire.part(index, found))
        if self._with_usage:
            yield _event(self._wire.usage([answers[i] for i in sorted(answers)]))
        yield _DONE

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


def _event(data: Any) -> bytes:
    """Return a server-sent event of a JSON value."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _error_event(refusal: RefusedError) -> bytes:
    return _event(openai_error(refusal)[1])
