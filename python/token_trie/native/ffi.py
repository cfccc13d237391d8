"""The public C ABI, spoken over cffi from the very header that is shipped, as any foreign host would speak it.

``lib`` has the functions of ``include/token_trie.h`` and its enum constants, ``ffi`` makes C data for them. Where no
llama.cpp fits, they say so when they are called.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import cffi

from token_trie.errors import LlamaVersionError, from_status

# Before the library, so that it finds the process's llama.cpp.
from token_trie.native import core, installed

HEADER = installed.BUILDS.parent / "include" / "token_trie.h"
_NAME = {"darwin": "libtoken_trie.dylib", "win32": "token_trie.dll"}.get(sys.platform, "libtoken_trie.so")


def declarations(header: str) -> str:
    """Take from a C header what cffi reads: no preprocessor, no linkage for C++, no export marks."""
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif", "", header, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*#.*$", "", text, flags=re.MULTILINE)
    return text.replace("TOKEN_TRIE_API ", "")


class _Refusing:
    """In the place of the library where no llama.cpp fits: constants are there, and functions that refuse."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        if name.isupper():
            return getattr(self._library, name)

        def refuse(*_: Any) -> Any:
            raise LlamaVersionError(installed.llama_cpp.why)

        return refuse


ffi: Any = cffi.FFI()
ffi.cdef(declarations(HEADER.read_text(encoding="utf-8")))
LIBRARY = installed.build / _NAME
lib: Any = ffi.dlopen(str(LIBRARY))
if installed.has_llama:
    # A function is bound when it is first named, under a lock of cffi's. A signal's handler that comes in between, and
    # waits for another thread that calls one, waits for ever.
    for _name in dir(lib):
        getattr(lib, _name)
else:
    lib = _Refusing(lib)


_pointed_to: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()  # as C data keeps nothing alive


def new_struct(name: str, **members: Any) -> Any:
    """Make a struct that begins with its own size, as all that cross this ABI do; what it points to lives as long."""
    struct = ffi.new(f"struct {name} *")
    struct.size = ffi.sizeof(f"struct {name}")
    for member, value in members.items():
        setattr(struct, member, value)
    if members:
        _pointed_to[struct] = members
    return struct


def c_strings(texts: Sequence[bytes]) -> Any:
    """Make a ``char *[]`` of texts, which live as long."""
    strings = [ffi.new("char[]", text) for text in texts]
    array = ffi.new("char *[]", strings)
    _pointed_to[array] = strings
    return array


def set_of(trie: core._core.Trie) -> Any:
    """Return a ``struct token_trie_set *`` of a trie, which goes with what is returned."""
    return ffi.gc(ffi.cast("struct token_trie_set *", core._core.set_of(trie)), lib.token_trie_set_free)


def last_error() -> str:
    """Message of this thread's last failure."""
    return str(ffi.string(lib.token_trie_last_error()).decode(errors="replace"))


def check(status: int) -> None:
    """Raise what a negative status stands for."""
    if status < 0:
        raise from_status(status, last_error())


def check_pointer(pointer: Any) -> Any:
    """Raise if a function returned NULL."""
    if pointer == ffi.NULL:
        raise from_status(lib.token_trie_last_status(), last_error())
    return pointer
