"""The server's command, run as a process of its own."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from pathlib import Path
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
        self.told = ""
        """On standard error, once it has ended."""

    def __enter__(self) -> Serving:
        assert self._process.stderr is not None
        told = []
        for line in self._process.stderr:
            told.append(line)
            if found := re.search(r"http://\S+", line):
                self.url = found[0]
            if self._until in line:
                return self
        self.__exit__()
        raise AssertionError("".join(told))

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
        self.told = self._process.communicate(timeout=60)[1]
