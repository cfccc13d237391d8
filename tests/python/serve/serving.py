"""The server's command, run as a process of its own."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from commands import Command


class Serving:
    """Runs until the end of a with statement, which begins when it has said that, and where it listens."""

    def __init__(self, model: Path | None = None, *options: str, until: str = "is ready") -> None:
        command = ["serve", "--port", "0", *options]
        if model is not None:
            command += ["--model", str(model)]
        self._process = Command(command, stderr=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self.url, self._until = "", until
        self._lines: list[str] = []
        self._reader = Thread(target=self._read, daemon=True)  # else its lines fill the pipe
        self._changed = Condition()

    @property
    def told(self) -> str:
        """Standard error so far."""
        return "".join(self._lines)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()

    def __enter__(self) -> Serving:
        self._reader.start()
        with self._changed:
            while self._until not in self.told and self._reader.is_alive():
                self._changed.wait(0.1)
        if found := re.search(r"http://\S+", self.told):
            self.url = found[0]
        if self._until not in self.told:
            self.__exit__()
            raise AssertionError(self.told)
        return self

    def connected(self, data: bytes) -> socket.socket:
        """Return a connection with little room for answers, on which data was sent."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall(data)
        return connection

    def __exit__(self, *raised: Any) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=60)
        self._reader.join()
