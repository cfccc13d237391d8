"""Python in a process of its own, for tests of signals and of crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import commands

BEGIN = """
import asyncio, faulthandler, gc, os, signal, sys, threading, time, weakref
faulthandler.enable()
import llama_cpp
import token_trie
from token_trie import BusyError, StreamHandle, TokenTrie, TokenTrieError, choose, constrain
from token_trie.native.lifetime import attachment
# A shell's background job, as a test run may be, ignores the interrupt unless told otherwise.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = [5 + i % 200 for i in range(16_000)]  # takes seconds to evaluate

def load():
    return llama_cpp.Llama({path!r}, n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)

def is_busy(handle):
    try:
        handle.state
    except BusyError:
        return True
    return False

def wait_until(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)

def start(*targets):
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    return threads

def ends(call, log):
    def run():
        try:
            log.append(call())
        except TokenTrieError as error:
            log.append(error)
    return run
"""


# Where glibc allocates, memory that was freed is overwritten at once.
FREED_MEMORY_IS_OVERWRITTEN = {"MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}


def run(model: Path, code: str, timeout: float = 120, env: Mapping[str, str] | None = None) -> str:
    """Run code after `BEGIN`; return what it printed. It must end of its own accord, with status 0."""
    code = BEGIN.format(path=str(model)) + code
    if env:
        command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, **env}
        )
    else:
        done = commands.run("-c", "import warnings; warnings.simplefilter('error')\n" + code, timeout=timeout)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
