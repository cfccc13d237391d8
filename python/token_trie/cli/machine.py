"""What `token-trie doctor` finds about a machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from token_trie.cli.findings import Finding, found
from token_trie.cli.options import SERVED_N_CTX
from token_trie.errors import TokenTrieError
from token_trie.llama.devices import devices
from token_trie.native.core import Llama, _core, llama_cpp
from token_trie.native.llama_facts import context_of, model_of

# What llama.cpp calls a feature of a processor, by what Linux calls it.
_FEATURES = {
    "avx": "AVX",
    "avx_vnni": "AVX_VNNI",
    "avx2": "AVX2",
    "f16c": "F16C",
    "fma": "FMA",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
    "asimd": "NEON",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
}
_N_EVALUATED = 64
_BUSY = 1.5  # processes a processor, this one among them


def examine_machine(llm: Llama, computes: bool) -> Iterator[Finding]:
    """Yield what there is to say of the machine, for a model that computes, or one that better not."""
    yield _versions()
    yield _processor()
    yield _devices(llm)
    yield from _threads(llm)
    if computes:
        yield _memory(llm)


def _versions() -> Finding:
    told = f"llama-cpp-python {llama_cpp.__version__}, ggml {_core.llama_loaded()}"
    try:
        _core.require_same_llama()
    except TokenTrieError as error:
        return found("llama.cpp", told, poor=str(error))
    return found("llama.cpp", told)


def _processor() -> Finding:
    built = {name: value for name, value in re.findall(r"(\w+) = (\d+)", _system_info()) if value != "0"}
    used = [name for name in _FEATURES.values() if name in built]
    told = f"llama.cpp computes with {', '.join(used)}" if used else "llama.cpp computes without vector instructions"
    missing = [name for flag, name in _FEATURES.items() if flag in _flags() and name not in built]
    change = None
    if missing:
        change = (
            f"this processor has {', '.join(missing)}, which llama.cpp was compiled without: compile it here, by "
            "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
        )
    return found("processor", told, fair=change)


def _system_info() -> str:
    return str(llama_cpp.llama_print_system_info().decode(errors="replace"))


def _flags() -> set[str]:
    """Return what Linux says that the processor can do; nothing elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return set()
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return set(line[1].split()) if line else set()


def _devices(llm: Llama) -> Finding:
    gpus = [device for device in devices() if "gpu" in device.kind]
    if not gpus:
        return found("GPU", "none that llama.cpp was built for")
    told = ", ".join(f"{gpu.description} by {gpu.backend}" for gpu in gpus)
    if llm.model_params.n_gpu_layers:
        return found("GPU", told)
    return found(
        "GPU",
        f"{told}, not used here",
        fair="--n-gpu-layers -1 puts the model on it, as Llama(…, n_gpu_layers=-1) does",
    )


def _threads(llm: Llama) -> Iterator[Finding]:
    n_cores, n_threads = _n_cores(), max(llm.n_threads, llm.n_threads_batch)
    told = f"{llm.n_threads} for single tokens, {llm.n_threads_batch} for batches, on {n_cores} processors"
    too_many = (
        f"more threads than processors wait for one another: --threads {n_cores}" if n_threads > n_cores else None
    )
    yield found("threads", told, fair=too_many)
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
        busy = (
            "other processes compute: what is timed here is slower than it need be" if load > _BUSY * n_cores else None
        )
        yield found("load", f"{load:.1f} processes at work in the last minute", fair=busy)
    if "OPENMP = 1" in _system_info():
        yield _spinning()


def _n_cores() -> int:
    """Return how many processors this process may use at once."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(n, int(quota) // int(period)))
    except (OSError, ValueError):
        return n


def _spinning() -> Finding:
    given = {name: os.environ[name] for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY") if name in os.environ}
    told = ", ".join(f"{name}={value}" for name, value in given.items())
    told = f"{told or 'threads spin'}; a program of your own sets GOMP_SPINCOUNT=1000 before it imports llama_cpp"
    is_active = given.get("OMP_WAIT_POLICY", "").lower() == "active"
    return found("waiting", told, fair="OMP_WAIT_POLICY=active lets threads spin: unset it" if is_active else None)


def _memory(llm: Llama) -> Finding:
    weights = llama_cpp.llama_model_size(model_of(llm).model)
    cell = _cell_bytes(llm)
    told = f"{_size(weights)} of weights, {_size(cell * SERVED_N_CTX)} for {SERVED_N_CTX:,} tokens"
    free = _free_bytes()
    if free is None:
        return found("memory", told)
    told += f"; {_size(free)} free"
    if weights > free:
        return found(
            "memory", told, poor="the weights are read from disk at each pass: a smaller model or quantization"
        )
    too_long = free < weights + cell * SERVED_N_CTX
    return found("memory", told, fair="--n-ctx with fewer tokens, or a smaller model" if too_long else None)


def _cell_bytes(llm: Llama) -> float:
    """Return what a token takes in the cache, as it is saved."""
    llm.reset()
    n = min(_N_EVALUATED, llm.n_ctx())
    llm.eval([0] * n)
    size = llama_cpp.llama_state_seq_get_size(context_of(llm).ctx, 0) / n
    llm.reset()
    return float(size)


def _free_bytes() -> int | None:
    """Return what is free of the memory, the pages of files included; None where that is not told."""
    try:
        text = Path("/proc/meminfo").read_text()
        free = int(re.search(r"MemAvailable:\s+(\d+)", text)[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        return min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        return free


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"
