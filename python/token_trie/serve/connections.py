"""Connections of clients that neither send nor read: they are closed when the time of a request is over."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


def connections(seconds: float) -> type[asyncio.Protocol]:
    """Return the protocol of connections on which nothing may be unfinished for longer than so many seconds.

    While a request is answered, its endpoint keeps the time. This is for what comes before and after: heads that never
    end, bodies that nobody waits for, answers that stay unread.
    """

    class Connection(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.app_state: dict[str, Any] = {**self.app_state, "abort": transport.abort}
            self._seen: object = None
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def _watch(self) -> None:
            self._timer = self.loop.call_later(seconds, self._look)

        def _look(self) -> None:
            is_answered = self.cycle is None or self.cycle.response_complete
            n_unread = self.transport.get_write_buffer_size()
            is_idle = self.timeout_keep_alive_task is not None and not n_unread
            seen = (self.cycle, n_unread) if is_answered and not is_idle else None
            if seen is not None and seen == self._seen:
                self.transport.abort()
            else:
                self._seen = seen
                self._watch()

    return Connection
