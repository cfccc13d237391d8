"""token-trie, through its C function as any host would call it."""

import ctypes
import hashlib
from functools import cache
from itertools import count
from typing import Any

import llama_cpp
from token_trie.native.ffi import LIBRARY, ffi, lib, new_struct, set_of

from bench import native
from bench.contenders.base import Measure, samples, timed
from bench.contenders.samplers import Owned, Pointer, chain
from bench.models import Model
from bench.sets import Answers

GREEDY = 0
SAMPLED = 1


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    library.llama_sampler_init_token_trie.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    library.llama_sampler_init_token_trie.restype = llama_cpp.llama_sampler_p_ctypes
    library.token_trie_last_error.restype = ctypes.c_char_p
    library.token_trie_cache_clear.restype = None
    return library


def greedy(trie: Any) -> Pointer:
    """Return a sampler of a set that Python has, without a vocabulary."""
    params = new_struct("token_trie_params", mode=GREEDY)
    made = lib.llama_sampler_init_token_trie_ext(ffi.NULL, set_of(trie.core), params)  # which keeps the set
    return ctypes.cast(int(ffi.cast("uintptr_t", made)), llama_cpp.llama_sampler_p_ctypes)


class TokenTrie:
    """llama_sampler_init_token_trie, in one of its modes, with a set of tokens or of texts in any tokenization."""

    def __init__(self, model: Model, mode: int, *, any_spelling: bool = False) -> None:
        self._model = model
        self._mode = mode
        self._library = _library()
        self._nonces = count(1)
        self._payload = Answers.payload_of_texts if any_spelling else Answers.payload
        self._timed_init(self._payload(Answers("", ["a"], [[1]])))  # prepares the vocabulary

    def measures(self, answers: Answers) -> dict[str, Measure]:
        """Return all but `fill`: there is no mask."""
        payload = self._payload(answers)
        sampler = Owned(self._init(payload))
        last = llama_cpp.llama_sampler_init_greedy() if self._mode == GREEDY else llama_cpp.llama_sampler_init_dist(0)
        steps = chain(self._init(payload), last)

        def build(n: int) -> dict[str, native.Samples]:
            return {"build": samples([self._cold(self._payload(answers, next(self._nonces))) for _ in range(n)])}

        def hit(n: int) -> dict[str, native.Samples]:
            self._timed_init(payload)
            hits, hashes = [], []
            for _ in range(n):
                hits.append(self._timed_init(payload))
                hashes.append(timed(lambda: hashlib.sha256(payload).digest())[0])
            return {"hit": samples(hits), "hash": samples(hashes)}

        def apply(n: int) -> dict[str, native.Samples]:
            out = native.apply(sampler.pointer, self._model, n, answers.paths)
            return {"apply": out, "mask": out}

        def cold(n: int) -> dict[str, native.Samples]:
            return {"cold": native.apply(sampler.pointer, self._model, n, answers.paths, cold=True)}

        def step(n: int) -> dict[str, native.Samples]:
            return {"step": native.step(steps.pointer, self._model, n)}

        return {"build": build, "hit": hit, "apply": apply, "cold": cold, "step": step}

    def _init(self, payload: bytes) -> Pointer:
        sampler = self._library.llama_sampler_init_token_trie(self._model.vocab, payload, self._mode)
        if not sampler:
            raise ValueError(self._library.token_trie_last_error().decode())
        return sampler

    def _cold(self, payload: bytes) -> int:
        self._library.token_trie_cache_clear()
        return self._timed_init(payload)

    def _timed_init(self, payload: bytes) -> int:
        elapsed, sampler = timed(lambda: self._init(payload))
        llama_cpp.llama_sampler_free(sampler)
        return elapsed
