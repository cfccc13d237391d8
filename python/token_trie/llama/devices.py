"""What llama.cpp can compute on."""

from __future__ import annotations

from dataclasses import dataclass

from token_trie.llama.quiet import quiet
from token_trie.native.core import _core


@dataclass(frozen=True)
class Device:
    """A processor, as llama.cpp sees it."""

    backend: str
    """What drives it: "CPU", "Vulkan", "CUDA", "Metal" and so on; "BLAS" and the like help the CPU."""
    name: str
    description: str
    """Its own name, as its driver tells it."""
    kind: str
    """"cpu", "gpu", "integrated gpu" or "accelerator"."""
    free_bytes: int
    total_bytes: int


def devices() -> list[Device]:
    """List the devices of the backends that llama.cpp was built with, in its order."""
    with quiet():
        return [Device(*each) for each in _core.devices()]
