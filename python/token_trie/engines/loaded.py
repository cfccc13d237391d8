"""Models that a process loads once, whoever asks."""

from __future__ import annotations

import os
import threading
from typing import Any

from token_trie.errors import ArgumentError
from token_trie.native.core import Llama, llama_cpp

_llamas: dict[tuple[Any, ...], Llama] = {}
_opening = threading.Lock()


def loaded(path: str, n_ctx: int, n_gpu_layers: int, n_threads: int | None) -> Llama:
    """Return this process's Llama of a file and of these parameters; ArgumentError if there is none to be had."""
    try:
        stat = os.stat(path)
        file = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
        key = *file, n_ctx, n_gpu_layers, n_threads, os.getpid()
        with _opening:
            if key not in _llamas:
                threads = {} if n_threads is None else {"n_threads": n_threads, "n_threads_batch": n_threads}
                options: dict[str, Any] = {"n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, "verbose": False, **threads}
                _llamas[key] = llama_cpp.Llama(path, **options)
            return _llamas[key]
    except (OSError, ValueError) as error:
        raise ArgumentError(f"model: {error}") from error
