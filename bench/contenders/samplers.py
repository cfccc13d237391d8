"""Samplers of llama.cpp, freed with the Python object."""

import weakref
from typing import Any

import llama_cpp

Pointer = Any  # a ctypes pointer to llama_sampler; false where it is NULL


class Owned:
    """A llama_sampler that is not in a chain."""

    def __init__(self, pointer: Pointer) -> None:
        if not pointer:
            raise ValueError("llama.cpp refused to make the sampler")
        self.pointer = pointer
        weakref.finalize(self, llama_cpp.llama_sampler_free, pointer)


def chain(*members: Pointer) -> Owned:
    """Return a chain of new samplers, which it owns from now on."""
    out = Owned(llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params()))
    for member in members:
        if not member:
            raise ValueError("llama.cpp refused to make the sampler")
        llama_cpp.llama_sampler_chain_add(out.pointer, member)
    return out
