"""The public C ABI over cffi, declared by the header, as for any foreign host.

``lib`` has the functions and enum constants of ``include/token_trie.h``; ``ffi`` makes C data for them. Without a
suitable llama.cpp, the functions raise LlamaVersionError.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from token_trie.errors import LlamaVersionError, from_status

# Imported before the library is opened, so that it binds to the llama.cpp of the process.
from token_trie.native import core

_NAME = {"darwin": "libtoken_trie.dylib", "win32": "token_trie.dll"}.get(sys.platform, "libtoken_trie.so")


def _refuse(*_: Any) -> Any:
    raise LlamaVersionError(core.llama_cpp.why)


ffi: Any = importlib.import_module("token_trie._abi").ffi
LIBRARY = core.build / _NAME
lib: Any = ffi.dlopen(str(LIBRARY))
if core.has_llama:
    # cffi binds a function at its first use, under a lock. A signal handler that interrupts this and waits for another
    # thread that calls one would deadlock.
    for _name in dir(lib):
        getattr(lib, _name)
else:
    lib = SimpleNamespace(**{name: getattr(lib, name) if name.isupper() else _refuse for name in dir(lib)})


def _keeping(data: Any, held: object) -> Any:
    """Return C data that keeps alive what it points to."""
    # A built-in as destructor runs no bytecode. An interrupt in a Python destructor would be lost.
    return ffi.gc(data, [held].__contains__)


def new_struct(name: str, **members: Any) -> Any:
    """Make a struct, whose first member is its size, as everywhere in this ABI; it keeps alive what it points to."""
    struct = ffi.new(f"struct {name} *")
    struct.size = ffi.sizeof(f"struct {name}")
    for member, value in members.items():
        setattr(struct, member, value)
    return _keeping(struct, members) if members else struct


def c_strings(texts: Sequence[bytes]) -> Any:
    """Make a ``char *[]``, which keeps its texts alive."""
    strings = [ffi.new("char[]", text) for text in texts]
    return _keeping(ffi.new("char *[]", strings), strings)


def set_of(trie: core._core.Trie) -> Any:
    """Return a ``struct token_trie_set *`` that holds a reference to a trie until it is collected."""
    return ffi.gc(ffi.cast("struct token_trie_set *", core._core.set_of(trie)), lib.token_trie_set_free)


def last_error() -> str:
    """Return the message of this thread's last failure."""
    return str(ffi.string(lib.token_trie_last_error()).decode(errors="replace"))


def check(status: int) -> None:
    """Raise the error of a negative status."""
    if status < 0:
        raise from_status(status, last_error())


def check_pointer(pointer: Any) -> Any:
    """Raise the last error if a function returned NULL."""
    if pointer == ffi.NULL:
        raise from_status(lib.token_trie_last_status(), last_error())
    return pointer
