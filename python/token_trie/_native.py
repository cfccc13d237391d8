"""Loads the engine beside the one llama.cpp of this process, and passes it addresses from llama-cpp-python."""

from __future__ import annotations

import logging
from typing import Any, TypeAlias

# First, so that libllama is in the process before the engine asks for it: the engine then binds to that very copy.
import llama_cpp

try:
    from token_trie import _core
except ImportError as error:
    message = (
        f"token-trie was built for another llama-cpp-python than the {llama_cpp.__version__} installed now; build it "
        "again beside it: pip install --force-reinstall --no-deps --no-cache-dir token-trie"
    )
    raise ImportError(f"{message} ({error})") from error

from token_trie.errors import ArgumentError, LlamaVersionError

Llama: TypeAlias = Any
"""A ``llama_cpp.Llama``; its package has no complete type hints."""

__all__ = ["Llama", "_core", "end_of_generation", "logger", "vocab_address"]

logger = logging.getLogger("token_trie")

try:
    _core.require_same_llama()
except LlamaVersionError as error:
    logger.warning("%s. Until then, tries and samplers work and the rest is off.", error)


def vocab_address(llm: Llama) -> int:
    """Address of the model's ``llama_vocab``."""
    if not isinstance(llm, llama_cpp.Llama):
        raise ArgumentError(f"llm: {type(llm).__name__} where a llama_cpp.Llama belongs")
    if llm._model.model is None:
        raise ArgumentError("llm: this Llama is closed")
    return int(llm._model.vocab)


def end_of_generation(llm: Llama) -> list[int]:
    """Tokens that end a generation, ascending."""
    return _core.vocab_end_of_generation(vocab_address(llm))
