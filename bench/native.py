"""The inner loops in bench/native, built on first use."""

import ctypes
import subprocess
import sys
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


@cache
def _loops() -> ctypes.CDLL:
    # llama.cpp's folder is found anew each time, as another interpreter may run this.
    (_BUILD / "CMakeCache.txt").unlink(missing_ok=True)
    configure: list[str | Path] = ["cmake", "-S", _SOURCE, "-B", _BUILD, f"-DLlama_PYTHON={sys.executable}"]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", _BUILD], check=True, stdout=sys.stderr)
    loops = ctypes.CDLL(str(next(_BUILD.glob("libtoken_trie_bench.*"))))
    pointer, i32 = ctypes.c_void_p, ctypes.c_int32
    loops.token_trie_bench_clock.argtypes = [i32, pointer]
    loops.token_trie_bench_apply.argtypes = [pointer, pointer, i32, pointer, i32, ctypes.c_bool, i32, pointer]
    loops.token_trie_bench_step.argtypes = [pointer, pointer, i32, pointer]
    return loops


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
