"""Options of a handle, checked, as the C ABI takes them."""

from __future__ import annotations

from typing import Any, Literal

from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_counts, check_flags, check_integers, check_numbers, native_seed
from token_trie.native.ffi import lib, new_struct


def stream_params(
    *,
    n_ctx: int | None,
    seed: int | None,
    top_k: int,
    min_p: float,
    penalty_last_n: int,
    penalty_repeat: float,
    penalty_freq: float,
    penalty_present: float,
    jump_forward: bool,
    n_threads: int,
    n_gpu_layers: int,
    device_sampling: Literal["auto"] | bool,
) -> Any:
    """Make a struct token_trie_stream_params of the options of `StreamHandle`.

    Raises
    ------
    ArgumentError
        One is of another type or out of range; the message begins with its name.
    """
    if n_ctx is not None:
        check_counts(n_ctx=n_ctx)
    check_flags(jump_forward=jump_forward)
    integers = {
        "top_k": top_k,
        "penalty_last_n": penalty_last_n,
        "n_threads": n_threads,
        "n_gpu_layers": n_gpu_layers,
    }
    numbers = {
        "min_p": min_p,
        "penalty_repeat": penalty_repeat,
        "penalty_freq": penalty_freq,
        "penalty_present": penalty_present,
    }
    check_integers(**integers)
    check_numbers(**numbers)
    return new_struct(
        "token_trie_stream_params",
        n_ctx=n_ctx or 0,
        seed=native_seed(seed),
        step_by_step=int(not jump_forward),
        device_sampling=_device_of(device_sampling),
        **integers,
        **numbers,
    )


def _device_of(sampling: object) -> int:
    if isinstance(sampling, str) and sampling == "auto":
        return int(lib.TOKEN_TRIE_DEVICE_AUTO)
    if not isinstance(sampling, bool):
        raise ArgumentError(f"device_sampling: {sampling!r} is none of 'auto', True, False")
    return int(lib.TOKEN_TRIE_DEVICE_ON if sampling else lib.TOKEN_TRIE_DEVICE_OFF)
