"""The engine (pybind11), loaded for the llama.cpp of this process; it takes addresses from llama-cpp-python."""

from __future__ import annotations

import logging
import weakref
from typing import Any, TypeAlias

from token_trie.errors import ArgumentError
from token_trie.native.installed import llama_cpp  # which imports the engine's build
from token_trie.native.llama_facts import model_of

from token_trie import _core  # isort: skip

Llama: TypeAlias = Any
"""A ``llama_cpp.Llama``; its package has no complete type hints."""

__all__ = ["Llama", "_core", "llama_cpp", "logger", "vocab_of"]

logger = logging.getLogger("token_trie")

_vocabs: weakref.WeakKeyDictionary[Any, _core.Vocab] = weakref.WeakKeyDictionary()


def vocab_of(llm: Llama) -> _core.Vocab:
    """Return the model's vocabulary, which is valid as long as the model."""
    if not isinstance(llm, llama_cpp.Llama):
        raise ArgumentError(f"llm: {type(llm).__name__} where a llama_cpp.Llama belongs")
    model = model_of(llm)
    if model.model is None:
        raise ArgumentError("llm: this Llama is closed")
    vocab = _vocabs.get(model)
    if vocab is None:
        vocab = _vocabs[model] = _core.Vocab(int(model.vocab))
    return vocab
