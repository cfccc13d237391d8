"""The engine (pybind11), loaded for the llama.cpp of this process; it takes addresses from llama-cpp-python."""

from __future__ import annotations

import logging
from typing import Any, TypeAlias

from token_trie.errors import ArgumentError
from token_trie.native.installed import llama_cpp  # which imports the engine's build
from token_trie.native.llama_facts import model_of

from token_trie import _core  # isort: skip

Llama: TypeAlias = Any
"""A ``llama_cpp.Llama``; its package has no complete type hints."""

__all__ = ["Llama", "_core", "llama_cpp", "logger", "vocab_of"]

logger = logging.getLogger("token_trie")


def vocab_of(llm: Llama) -> _core.Vocab:
    """Return the model's vocabulary, which is valid as long as the model."""
    if not isinstance(llm, llama_cpp.Llama):
        raise ArgumentError(f"llm: {type(llm).__name__} where a llama_cpp.Llama belongs")
    model: Any = model_of(llm)
    attached = llm.__dict__.get("_token_trie")
    if model.model is None or (attached is not None and attached.closed):
        raise ArgumentError("llm: this Llama is closed")
    vocab: _core.Vocab | None = model.__dict__.get("_token_trie_vocab")
    if vocab is None:
        vocab = model.__dict__["_token_trie_vocab"] = _core.Vocab(int(model.vocab))
    return vocab
