"""The llama_cpp of this process, and the engine's build for it.

token_trie/builds/0.3.36/   the engine for llama-cpp-python 0.3.36
token_trie/builds/none/     sets, matchers, masks and tensors, without a suitable llama.cpp
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
    """Replaces llama_cpp if there is no suitable one: every attribute raises an error that says what to do."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        raise LlamaVersionError(self.why)


def releases() -> list[str]:
    """Return the releases of llama-cpp-python that this installation has a build for, oldest first."""
    found = [path.name for path in BUILDS.iterdir() if path.name != NO_LLAMA]
    return sorted(found, key=lambda name: [int(part) if part.isdigit() else 0 for part in name.split(".")])


def _release(package: Any) -> str:
    return str(getattr(package, "__version__", "")).partition("+")[0]  # a private build may add a local version


def _find() -> Any:
    # Imported before the engine, which then binds to the libllama of the process.
    try:
        import llama_cpp
    except Exception as error:  # also of its libraries, such as a missing libcuda
        if isinstance(error, ModuleNotFoundError) and error.name == "llama_cpp":
            return Absent(f"no llama-cpp-python is installed: pip install llama-cpp-python=={releases()[-1]}")
        return Absent(
            f"the llama-cpp-python that is installed cannot be imported ({type(error).__name__}: {error}); mend it, or "
            f"pip install --force-reinstall llama-cpp-python=={releases()[-1]}"
        )
    if _release(llama_cpp) in releases():
        return llama_cpp
    version = getattr(llama_cpp, "__version__", None) or "of no version"
    return Absent(
        f"llama-cpp-python {version} is installed, and this token-trie has builds for {', '.join(releases())}; compile "
        f"one beside it: {COMPILE}"
    )


llama_cpp: Any = _find()
has_llama = not isinstance(llama_cpp, Absent)
build = BUILDS / (_release(llama_cpp) if has_llama else NO_LLAMA)

# So that `import token_trie._core` finds it.
sys.modules["token_trie"].__path__.append(str(build))
