from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """Run the server's command; yield where it listens, once the model is there."""
    command = [str(Path(sys.executable).with_name("token-trie")), "serve", "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stderr is not None
        url = ""
        for line in process.stderr:
            if found := re.search(r"http://\S+", line):
                url = found[0]
            if "ready" in line:
                break
        assert url, "the server has ended"
        try:
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            assert process.wait(30) in (0, -signal.SIGTERM)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Where a server with SmolLM2 listens."""
    with serving() as url:
        yield url
