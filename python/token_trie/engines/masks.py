"""Bit masks of a host, as arrays, and what is said where logits contradict a mask."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError

Bitmask: TypeAlias = Any
"""A numpy array, or a tensor that speaks DLPack such as torch's: int32, in main memory, one row a sequence."""

PUT_BACK = "every token that the set allows had a logit of -inf, by what ran before or by the model; %s"
"""Warning of all that mask logits, with what was done."""

_HOST_DEVICES = {1, 3, 11}  # of DLPack: main memory, and main memory pinned for CUDA or ROCm


def host_array(mask: Bitmask) -> npt.NDArray[Any]:
    """View a mask as an array of its memory; ArgumentError where that is not main memory. C++ checks its shape."""
    if isinstance(mask, np.ndarray):
        return mask
    if not hasattr(mask, "__dlpack__"):
        raise ArgumentError(f"bitmask: {type(mask).__name__} where a numpy array or a tensor belongs")
    try:
        device = int(mask.__dlpack_device__()[0])
        if device in _HOST_DEVICES:
            return np.from_dlpack(mask)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise ArgumentError(f"bitmask: {error}") from error
    where = getattr(mask, "device", f"device type {device}")
    raise ArgumentError(f"bitmask: on {where}; it is filled in main memory and copied from there")
