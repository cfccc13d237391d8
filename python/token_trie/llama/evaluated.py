"""What a `Llama` has evaluated of a prompt, which a stream may copy while nobody changes it."""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.native.core import Llama, _core
from token_trie.native.ffi import ffi, lib
from token_trie.native.llama_facts import context_of
from token_trie.native.loaded import is_mixed, note_loaded_state

Tokens = npt.NDArray[np.int32]

# What changes the memory of a context. All else that a Llama does goes through these.
_OF_CONTEXT = (
    "decode",
    "encode",
    "kv_cache_clear",
    "kv_cache_seq_cp",
    "kv_cache_seq_keep",
    "kv_cache_seq_rm",
    "kv_cache_seq_shift",
)
_LOAD = "load_state"
_OF_LLAMA = ("reset", _LOAD)


class Evaluated:
    """Reads one Llama, whose own calls wait that long; without a reference to it."""

    def __init__(self, llm: Llama) -> None:
        self._lock = threading.RLock()  # whoever changes the memory, or reads it
        self._n_inside = 0  # calls that have it
        self._is_guarded = False
        for name in _OF_CONTEXT:
            self._guard(context_of(llm), name)
        for name in _OF_LLAMA:
            self._guard(llm, name)

    def _guard(self, owner: Any, name: str) -> None:
        function = getattr(type(owner), name)
        whose = weakref.ref(owner)

        @functools.wraps(function)
        def guarded(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._n_inside += 1
                try:
                    if name == _LOAD:
                        note_loaded_state(whose())
                    return function(whose(), *arguments, **options)
                finally:
                    self._n_inside -= 1

        owner.__dict__[name] = guarded

    def copy_to(self, stream: Any, llm: Llama, tokens: Tokens, n_there: int) -> None:
        """Let a stream have what the Llama's cache holds of a prompt, where that is more than n_there tokens.

        Nothing happens where another thread is at work in the Llama, or its cache cannot be copied; that costs time.
        """
        # A handler of images evaluates what input_ids know nothing of, and past these guards.
        if llm.chat_handler is not None or llm.context_params.embeddings or is_mixed(llm):
            return
        if self._n_inside:  # another thread, or this very one, which a log callback has led here
            return
        with self._lock:
            self._n_inside += 1
            try:
                n = n_evaluated(llm, tokens)
                if n > n_there and context_of(llm).ctx and self._is_at_rest(llm):
                    context = ffi.cast(
                        "struct llama_context *", ctypes.cast(context_of(llm).ctx, ctypes.c_void_p).value
                    )
                    lib.token_trie_stream_import_prefix(stream, context, 0, ffi.from_buffer("llama_token[]", tokens), n)
            finally:
                self._n_inside -= 1

    def _is_at_rest(self, llm: Llama) -> bool:
        """Whether no call is under way that began before calls were guarded."""
        if not self._is_guarded:
            self._is_guarded = not _core.is_thread_inside("llama_cpp", [(context_of(llm), ()), (llm, _OF_LLAMA)])
        return self._is_guarded

    def close(self) -> None:
        """Have nothing to free."""

    def disown(self) -> bool:
        """Start anew in a forked process: threads that held the lock are not in it."""
        self._lock = threading.RLock()
        self._n_inside = 0
        return True


def n_evaluated(llm: Llama, tokens: Tokens) -> int:
    """Count the tokens of a prompt that the Llama's cache begins with; 0 where more than as many others follow there.

    The cache is copied whole.
    """
    there = int(llm.n_tokens)
    n = common_prefix(llm.input_ids[:there], tokens)
    return n if there <= 2 * n else 0


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Count the tokens that both begin with."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
