"""The inner loops and the counts in bench/native, built on first use."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp  # noqa: F401  the one llama.cpp of this process, which the loops link to
import numpy as np
from numpy.typing import NDArray

from bench.models import Model
from bench.timing import Samples

_ROOT = Path(__file__).resolve().parents[1]
_SOURCE = _ROOT / "bench" / "native"
_BUILD = _ROOT / "build" / "bench"
_COUNTS = "libtoken_trie_bench_counts.so"
_COUNTED = ("calls", "rows", "passes", "copied")  # in the library's order


def _build() -> None:
    # llama.cpp's folder is found anew each time, as another interpreter may run this.
    (_BUILD / "CMakeCache.txt").unlink(missing_ok=True)
    configure: list[str | Path] = ["cmake", "-S", _SOURCE, "-B", _BUILD, f"-DLlama_PYTHON={sys.executable}"]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", _BUILD], check=True, stdout=sys.stderr)


@cache
def _loops() -> ctypes.CDLL:
    _build()
    loops = ctypes.CDLL(str(next(_BUILD.glob("libtoken_trie_bench.*"))))
    pointer, i32 = ctypes.c_void_p, ctypes.c_int32
    loops.token_trie_bench_clock.argtypes = [i32, pointer]
    loops.token_trie_bench_apply.argtypes = [pointer, pointer, i32, pointer, i32, ctypes.c_bool, i32, pointer]
    loops.token_trie_bench_step.argtypes = [pointer, pointer, i32, pointer]
    return loops


def start_counting() -> None:
    """Begin the process again with the counts loaded before llama.cpp, if they are not; on Linux alone."""
    if _COUNTS not in os.environ.get("LD_PRELOAD", "") and sys.platform == "linux":
        _build()
        loaded = [str(_BUILD / _COUNTS), *os.environ.get("LD_PRELOAD", "").split()]
        command = [sys.executable, "-m", "bench", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"LD_PRELOAD": " ".join(loaded)})


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Count what a `with` statement asks of llama.cpp; all are zero where nothing is counted.

    These are the calls of llama_decode and their rows, the passes that llama.cpp made of them, and bytes of states
    copied to and from the host.
    """
    counts: dict[str, int] = {}
    before = _counts()
    try:
        yield counts
    finally:
        counts.update(zip(_COUNTED, (after - was for after, was in zip(_counts(), before, strict=True)), strict=True))


def _counts() -> list[int]:
    out = (ctypes.c_int64 * len(_COUNTED))()
    if _COUNTS in os.environ.get("LD_PRELOAD", ""):
        ctypes.CDLL(None).token_trie_bench_counts(out)
    return list(out)


@cache
def clock_ns() -> int:
    """Nanoseconds that two readings of the clock take; the results of apply and step are without them."""
    out = np.empty(100_000, dtype=np.int64)
    _loops().token_trie_bench_clock(len(out), out.ctypes.data)
    return int(np.median(out))


def apply(
    sampler: Any, logits: NDArray[np.float32], n: int, paths: NDArray[np.int32] | None = None, *, cold: bool = False
) -> Samples:
    """Time llama_sampler_apply n times on a full candidate array.

    paths: one of them, a random one, is accepted first. cold: caches are emptied before the array is filled.
    """
    out = np.empty(n, dtype=np.int64)
    where, depth = None, 0
    if paths is not None:
        chosen = np.ascontiguousarray(paths[np.random.default_rng().integers(len(paths), size=n)])
        where, depth = chosen.ctypes.data, chosen.shape[1]
    _loops().token_trie_bench_apply(sampler, logits.ctypes.data, len(logits), where, depth, cold, n, out.ctypes.data)
    return out - clock_ns()


def evict() -> None:
    """Empty the processor's caches, as a forward pass does between two samplings."""
    _loops().token_trie_bench_evict()


def step(chain: Any, model: Model, n: int) -> Samples:
    """Time llama_sampler_sample n times."""
    out = np.empty(n, dtype=np.int64)
    _loops().token_trie_bench_step(chain, model.llm.ctx, n, out.ctypes.data)
    return out - clock_ns()
