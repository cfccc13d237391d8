"""The llama.cpp of this process: the engine's build for it, the vocabularies of its models, its log.

token_trie/builds/0.25.3-0c1e570/   the engine for the llama.cpp whose ggml has this version and commit
token_trie/builds/none/             sets, matchers, masks and tensors, without a suitable llama.cpp
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import logging
import os
import re
import struct
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from token_trie.errors import ArgumentError, LlamaVersionError
from token_trie.native.llama_facts import library_of, model_of

BUILDS = Path(__file__).parents[1] / "builds"
NO_LLAMA = BUILDS / "none"
COMPILE = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary token-trie token-trie"


class Absent:
    """Replaces llama_cpp if there is no suitable one: every attribute raises an error that says what to do."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        raise LlamaVersionError(self.why)


def _call(library: ctypes.CDLL, name: str, restype: Any, *arguments: int) -> Any:
    function = library[name]  # an object of its own, which llama_cpp does not see
    function.restype = restype
    return function(*arguments)


def _import(folder: Path) -> Any:
    paths = sys.modules["token_trie"].__path__
    paths.append(str(folder))
    try:
        return importlib.import_module("token_trie._core")
    except ImportError:
        paths.remove(str(folder))
        raise


def _difference(core: Any, package: Any, library: ctypes.CDLL) -> str | None:
    """Say how the structs of a llama_cpp and its libllama differ from those that the engine was compiled with."""
    try:
        core.require_same_llama()
    except LlamaVersionError as error:
        return str(error).partition(";")[0]  # without the command, which follows
    if _call(library, "llama_flash_attn_type_name", ctypes.c_void_p, -1) != core.llama_constant():
        return "the engine would use another libllama"
    for name, n_bytes in core.llama_layout():
        struct, _, member = name.partition(".")
        declared = getattr(getattr(package, struct, None), member, None) if member else getattr(package, struct, None)
        found = None if declared is None else declared.offset if member else ctypes.sizeof(declared)
        if found != n_bytes:
            return f"{name} is {found} bytes in llama_cpp and {n_bytes} in the engine's build"
    return None


def _require_whole_libraries() -> None:
    """Raise OSError if a library of a llama_cpp that is not imported yet is cut short: loading it kills the process."""
    spec = None if "llama_cpp" in sys.modules else importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return
    folder = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(spec.origin).with_name("lib"))
    for path in filter(Path.is_file, sorted(folder.glob("*.so*"))):
        n_bytes, n_there = _elf_size(path), path.stat().st_size
        if n_there < n_bytes:
            raise OSError(f"{path} is cut short: it has {n_there:,} of {n_bytes:,} bytes")


def _elf_size(path: Path) -> int:
    """Return the size that a library for Linux must have; 0 for a file that the loader refuses by itself."""
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or not head.startswith(b"\x7fELF\x02"):
            return 0
        (begin,), (n_each, n) = struct.unpack_from("=Q", head, 32), struct.unpack_from("=HH", head, 54)
        file.seek(begin)
        table = file.read(n_each * n)
    ends = [begin + n_each * n]
    for at in range(0, len(table) // n_each * n_each, n_each):
        ends.append(sum(struct.unpack_from("=Q16xQ", table, at + 8)))
    return int(max(ends))


def _find() -> tuple[Any, Path]:
    """Return llama_cpp and the folder of the build that fits it, which is imported; or why there is none."""
    # Imported before the engine, which then binds to the libllama of the process.
    try:
        _require_whole_libraries()
        import llama_cpp

        library, path = library_of(llama_cpp)
        # Elsewhere a symbol is also found in what a library is linked with.
        ggml = ctypes.CDLL(path.replace("llama.dll", "ggml-base.dll")) if sys.platform == "win32" else library
        version, commit = (_call(ggml, f"ggml_{name}", ctypes.c_char_p).decode() for name in ("version", "commit"))
    except Exception as error:  # also of its libraries, such as a missing libcuda
        why = (
            "no llama-cpp-python is installed: pip install llama-cpp-python"
            if isinstance(error, ModuleNotFoundError) and error.name == "llama_cpp"
            else f"the llama-cpp-python that is installed cannot be used ({type(error).__name__}: {error}); mend "
            "it, or pip install --force-reinstall llama-cpp-python"
        )
        return Absent(why), NO_LLAMA
    # llama-cpp-python's version says less: forks number their releases alike.
    digits = (re.match("[0-9a-f]{7,}", commit) or [""])[0]
    builds = [folder for folder in sorted(BUILDS.iterdir()) if folder != NO_LLAMA]
    names = ", ".join(folder.name for folder in builds)
    what: str | None = f"no build for ggml {version} ({commit}); there are builds for ggml {names}"
    for folder in builds:
        of_version, _, of_commit = folder.name.partition("-")
        if of_version != version or (digits and not digits.startswith(of_commit)):
            continue
        try:
            what = _difference(_import(folder), llama_cpp, library)
        except ImportError as error:
            what = f"the build for ggml {folder.name} does not load: {error}"
            continue
        if what is None:
            return llama_cpp, folder
        return _absent(path, what), folder
    return _absent(path, what), NO_LLAMA


def _absent(path: str, what: str | None) -> Absent:
    return Absent(f"token-trie does not fit {path}: {what}; compile it beside that: {COMPILE}")


llama_cpp: Any
llama_cpp, build = _find()
has_llama = not isinstance(llama_cpp, Absent)
if build == NO_LLAMA:
    _import(build)

from token_trie import _core as _core  # noqa: E402  # the build that is imported now

Llama: TypeAlias = Any
"""A ``llama_cpp.Llama``; its package has no complete type hints."""

logger = logging.getLogger("token_trie")

_vocabs: weakref.WeakKeyDictionary[Any, _core.Vocab] = weakref.WeakKeyDictionary()


def vocab_of(llm: Llama) -> _core.Vocab:
    """Return the model's vocabulary, which is valid as long as the model."""
    if not isinstance(llm, llama_cpp.Llama):
        raise ArgumentError(f"llm must be a llama_cpp.Llama, not {type(llm).__name__}")
    model = model_of(llm)
    if model.model is None:
        raise ArgumentError("llm: this Llama is closed")
    vocab = _vocabs.get(model)
    if vocab is None:
        vocab = _vocabs[model] = _core.Vocab(int(model.vocab))
    return vocab


# Level of llama-cpp-python's logger. Its levels are one off: it takes llama.cpp's warnings for errors, shows them even
# if a Llama is not verbose, and never shows errors.
_QUIET = logging.CRITICAL
_llama_logger = logging.getLogger("llama-cpp-python")
_quiet_lock = threading.RLock()
_n_quiet = 0
_loud = logging.NOTSET


@contextmanager
def quiet() -> Iterator[None]:
    """Keep llama.cpp's lines about loading a model off the terminal, as `Llama(verbose=False)` does."""
    global _n_quiet, _loud
    with _quiet_lock:
        if _n_quiet == 0:
            _loud = _llama_logger.level
            _llama_logger.setLevel(_QUIET)
        _n_quiet += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _n_quiet -= 1
            if _n_quiet == 0 and _llama_logger.level == _QUIET:  # unless a new Llama has set another level
                _llama_logger.setLevel(_loud)


def be_quiet_with(llm: Llama) -> None:
    """Keep warnings about further contexts of a Llama that is not verbose off the terminal, permanently."""
    if not llm.verbose and _llama_logger.level == logging.ERROR:
        _llama_logger.setLevel(_QUIET)
