"""The llama_cpp of this process, and the build of the engine that goes with it.

token_trie/builds/0.3.36/   the engine for llama-cpp-python 0.3.36
token_trie/builds/none/     sets, matchers, masks and tensors, where no llama.cpp fits or none is installed
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from token_trie.errors import LlamaVersionError

BUILDS = Path(__file__).parents[1] / "builds"
NO_LLAMA = "none"
COMPILE = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary token-trie token-trie"


class Absent:
    """In the place of what only a llama.cpp that fits can give: whatever is asked of it says what to do."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        raise LlamaVersionError(self.why)


def releases() -> list[str]:
    """Return the releases of llama-cpp-python that this installation has a build for, the oldest first."""
    found = [path.name for path in BUILDS.iterdir() if path.name != NO_LLAMA]
    return sorted(found, key=lambda name: [int(part) if part.isdigit() else 0 for part in name.split(".")])


def _release(package: Any) -> str:
    return str(package.__version__).partition("+")[0]  # a build of one's own may say more behind a plus


def _find() -> Any:
    # Before the engine, which then binds to the very libllama that is in the process.
    try:
        import llama_cpp
    except ModuleNotFoundError as error:
        if error.name != "llama_cpp":
            raise
        return Absent(f"no llama-cpp-python is installed: pip install llama-cpp-python=={releases()[-1]}")
    if (BUILDS / _release(llama_cpp)).is_dir():
        return llama_cpp
    return Absent(
        f"llama-cpp-python {llama_cpp.__version__} is installed, and this token-trie has builds for "
        f"{', '.join(releases())}; compile one beside it: {COMPILE}"
    )


llama_cpp: Any = _find()
has_llama = not isinstance(llama_cpp, Absent)
build = BUILDS / (_release(llama_cpp) if has_llama else NO_LLAMA)

# Where `import token_trie._core` finds it.
sys.modules["token_trie"].__path__.append(str(build))
