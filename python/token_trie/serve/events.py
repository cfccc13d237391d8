"""Responses whose parts are sent as they come to be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

_PART = 64 << 10

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    """Return a server-sent event of a JSON value."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Server-sent events, as long as the client is there.

    Parameters
    ----------
    events
        What is sent.
    close
        Ends their making; awaited after the response, in any case.
    on_late
        Returns what is sent last where the time is over.
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
        """Take the events from elsewhere, and send for so many seconds at most."""
        self._sent, self._seconds = events, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
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
    """Return a send that waits, within a long body too, for the client to read what was sent."""

    async def send_in_parts(message: Message) -> None:
        body = message.get("body", b"")
        if len(body) <= _PART:
            await send(message)
            return
        for begin in range(0, len(body), _PART):
            more = begin + _PART < len(body) or message.get("more_body", False)
            await send({**message, "body": body[begin : begin + _PART], "more_body": more})

    return send_in_parts


async def wait_gone(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
