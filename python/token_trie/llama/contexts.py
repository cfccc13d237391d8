"""Contexts on the weights of a Llama or of a file: how they are made."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

from token_trie.errors import ArgumentError
from token_trie.llama.evaluated import Evaluated
from token_trie.llama.interrupts import interruptible
from token_trie.llama.native_stream import NativeStream
from token_trie.llama.quiet import be_quiet_with, quiet
from token_trie.native.arguments import check_counts
from token_trie.native.core import Llama, vocab_of
from token_trie.native.ffi import check_pointer, ffi, lib
from token_trie.native.gate import Gate
from token_trie.native.lease import Attachment
from token_trie.native.llama_facts import model_of
from token_trie.native.loaded import adapters_of

G = TypeVar("G", bound=Gate)


def open_on(llm: Llama, attached: Attachment, n_ctx: int | None, params: Any) -> NativeStream:
    """Open a stream on the weights of a Llama, with contexts like its own that grow up to its size."""

    def make() -> NativeStream:
        with attached.lease():
            pointer = make_on(lib.token_trie_stream_open_model, llm, attached, n_ctx, params)
            attached.make(Evaluated, lambda: Evaluated(llm))
            return NativeStream(pointer, attached)

    return opened(make)


def make_on(make: Callable[..., Any], llm: Llama, attached: Attachment, n_ctx: int | None, params: Any) -> Any:
    """Let a function of the ABI make something on the weights of a Llama, by its context's params and adapter."""
    if attached.forked:
        raise ArgumentError(
            "llm: at work when this process was forked, and llama.cpp's threads are not in it; load the model here, or "
            'begin processes with multiprocessing\'s "spawn"'
        )
    vocab_of(llm)
    if llm.model_params.vocab_only:
        raise ArgumentError("llm: loaded with vocab_only=True, without weights to generate by")
    be_quiet_with(llm)
    like = type(llm.context_params).from_buffer_copy(llm.context_params)
    if n_ctx is not None:
        check_counts(n_ctx=n_ctx)
        like.n_ctx = int(n_ctx)
    applied = adapters_of(llm)
    adapters = ffi.new("struct llama_adapter_lora *[]", [_pointer_to("llama_adapter_lora", one) for one, _ in applied])
    scales = ffi.new("float[]", [scale for _, scale in applied])
    params.adapters, params.adapter_scales, params.n_adapters = adapters, scales, len(applied)
    model = _pointer_to("llama_model", model_of(llm).model)
    own = ffi.cast("struct llama_context_params *", ctypes.addressof(like))
    return check_pointer(make(model, own, params))


def _pointer_to(struct: str, pointer: Any) -> Any:
    return ffi.cast(f"struct {struct} *", ctypes.cast(pointer, ctypes.c_void_p).value)


def open_file(path: bytes, params: Any) -> NativeStream:
    """Open a stream on a GGUF file, which it has for itself."""

    def make() -> NativeStream:
        with quiet():
            return NativeStream(check_pointer(lib.token_trie_stream_open_file(path, params)))

    return opened(make)


def opened(make: Callable[[], G]) -> G:
    """Make what has a context, on a thread that no interrupt comes to, as it would be lost in what llama.cpp logs."""
    made: list[G] = []
    try:
        interruptible(lambda: made.append(make()), lambda: None)
    except BaseException:
        for gate in made:
            gate.close()
        raise
    return made[0]
