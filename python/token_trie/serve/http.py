"""A server on a port: uvicorn, with time limits of connections and interrupts that finish what is in progress."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from token_trie.errors import ArgumentError
from token_trie.serve.app import Server, application
from token_trie.serve.service import ServerConfig


def run(config: ServerConfig, say: Callable[[str], object]) -> None:
    """Serve until a signal ends it.

    Parameters
    ----------
    config : ServerConfig
        The options of the server.
    say : callable
        Takes lines for whoever has started the server.

    Raises
    ------
    ArgumentError
        No server can listen on the port, or a file of the configuration cannot be used.
    CalibrationError
        A calibration belongs to another model.
    OSError
        A file cannot be read.
    """
    server, seconds = Server(config), config.limits.seconds

    class Http(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            """First interrupt: finish requests in progress; second: cancel them; third: exit at once."""
            if sig != signal.SIGINT or not self.should_exit:
                if sig == signal.SIGINT and self.server_state.tasks:
                    say("finishing the requests in progress; a second interrupt cancels them")
                super().handle_exit(sig, frame)
                return
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def started() -> None:
        if server.failure is None:
            say(f"{config.name} is ready")
        else:
            http.should_exit = True

    options = uvicorn.Config(
        application(server, started),
        host=config.host,
        port=config.port,
        access_log=False,
        log_level="error",  # what is not HTTP would be a line each
        http=connections(seconds),
        ws="none",
        timeout_graceful_shutdown=math.ceil(seconds) + 1,  # after the last request has reached its limit
        # Longer than clients keep idle connections: a request on a connection that just closed gets no answer.
        timeout_keep_alive=75,
    )
    try:
        bound = options.bind_socket()
    except SystemExit as error:  # it has logged why
        where = f"{config.host}:{config.port}"
        raise ArgumentError(f"--port: no server can listen on {where}; use another port or --host") from error
    # Name the TCP protocol: only then does asyncio send small parts at once.
    listening = socket.socket(bound.family, bound.type, socket.IPPROTO_TCP, bound.detach())
    host = f"[{config.host}]" if ":" in config.host else config.host
    say(f"loading {config.name}, to be served at http://{host}:{listening.getsockname()[1]}")
    http = Http(options)
    http.run(sockets=[listening])
    if server.failure is not None:
        raise server.failure


def connections(seconds: float) -> type[asyncio.Protocol]:
    """Return a protocol that closes connections on which something is unfinished for too long.

    While a request is answered, its endpoint enforces the limit. This one covers the rest: heads that never end,
    bodies that nobody waits for, answers that stay unread. It is uvicorn's protocol on h11, which limits the size of
    heads; the one on httptools, which uvicorn takes where that is installed, keeps whatever is sent.
    """

    class Connection(H11Protocol):
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
