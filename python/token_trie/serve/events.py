"""Responses whose parts are sent as they come to be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    """Return a server-sent event of a JSON value."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Server-sent events, as long as the client is there.

    Parameters
    ----------
    events
        Closed in any case.
    on_late
        Returns what is sent last where the time is over.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], on_late: Callable[[], bytes]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._on_late = on_late
        self._seconds: float | None = None
        self._turn = ExitStack()

    def go_on(self, turn: ExitStack, seconds: float) -> None:
        """Take over what the request holds, and send for so many seconds at most."""
        self._turn, self._seconds = turn, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
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
            self._turn.close()

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in events:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
