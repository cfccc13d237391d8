"""Files that models and adapters were loaded from, and the adapters that a context computes with.

llama.cpp reports neither. So from the import of token_trie on, calls of llama_cpp's functions are recorded by the
`errcheck` of ctypes, which is called however a function was imported:

    llama_model_load_from_file, llama_adapter_lora_init    ->  the file at that time
    llama_set_adapters_lora                                ->  the adapters of a context, with their scales
    llama_set_adapter_cvec                                 ->  whether it has a control vector

Earlier calls, and those from other languages, are not recorded.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from token_trie.errors import ArgumentError
from token_trie.native.files import write_whole
from token_trie.native.installed import llama_cpp
from token_trie.native.llama_facts import adapter_of, context_of, model_of

_N_STABLE = 4
"""Members of an identity that renaming and chmod do not change."""
_CHUNK = 64 << 20
_MAX_UNSTORED = 64 << 20
"""Digests of files up to this size are not stored in the user's cache."""
_MAX_REMEMBERED = 256
_SETTLED_S = 2.0
"""A file that changed less than this time ago may change again without a new time of change."""


class File(NamedTuple):
    """A file at the time it was read."""

    path: str
    identity: tuple[int, ...]

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> File:
        """Return the file at a path; OSError if there is none."""
        found = os.stat(path)
        identity = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        return cls(os.path.abspath(path), identity)

    def digest(self) -> str:
        """Return the SHA-256 of its content; the first time takes about a second for each gigabyte.

        ArgumentError if the file is missing, or was changed.
        """
        try:
            now = File.at(self.path)
            if now.identity[:_N_STABLE] != self.identity[:_N_STABLE]:
                raise ArgumentError(f"{self.path!r} was changed after it was loaded")
            key, is_large = str(now.identity), now.identity[2] > _MAX_UNSTORED
            if key not in _digests and is_large:
                _digests.update(_stored_digests())
            found = _digests.get(key)
            if found is None:
                found = _digest(self.path, now.identity[2])
                if File.at(self.path) != now:
                    raise ArgumentError(f"{self.path!r} is being changed")
                if time.time() - max(now.identity[3:]) / 1e9 >= _SETTLED_S:
                    _digests[key] = found
                    if is_large:
                        _store_digest(key, found)
        except OSError as error:
            raise ArgumentError(f"cannot read {self.path!r}: {error}") from error
        return found


def _digest(path: str, size: int) -> str:
    """Return the digest of the digests of pieces, which several threads compute."""

    def of_piece(begin: int) -> bytes:
        digest, left = hashlib.sha256(), _CHUNK
        with open(path, "rb") as file:
            file.seek(begin)
            while left and (read := file.read(min(left, 1 << 20))):
                digest.update(read)
                left -= len(read)
        return digest.digest()

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        pieces = pool.map(of_piece, range(0, size, _CHUNK))
        return "sha256:" + hashlib.sha256(b"".join(pieces)).hexdigest()


def users_cache() -> Path:
    """Return token-trie's folder in the user's cache, by the conventions of the platform."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "token-trie"


_digests: dict[str, str] = {}
"""By the identity of files; those of large files are also stored in the user's cache."""


def _digests_path() -> Path:
    return users_cache() / "digests.json"


def _stored_digests() -> dict[str, str]:
    with suppress(OSError, ValueError, RuntimeError, RecursionError):
        found = json.loads(_digests_path().read_bytes())
        if isinstance(found, dict) and all(isinstance(one, str) for one in found.values()):
            return found
    return {}


def _store_digest(key: str, digest: str) -> None:
    stored = [*(_stored_digests() | {key: digest}).items()][-_MAX_REMEMBERED:]
    with suppress(OSError, RuntimeError):  # no home, or the folder is not writable: computed again next time
        path = _digests_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(dict(stored), indent=0).encode())


class Applied(NamedTuple):
    """Settings that change the results of a context, besides its model and params."""

    adapters: tuple[tuple[int, float], ...] = ()
    """Addresses and scales of adapters."""
    vector: int = 0
    """Number of the control vector; 0 if there is none."""


NOTHING = Applied()
SETTINGS: dict[int, Applied] = {}
"""Settings of contexts, by their addresses; `NOTHING` for all others."""
_models: dict[int, File] = {}
_adapter_files: dict[int, File] = {}
_varied: set[int] = set()  # contexts that had cells when their settings changed
_mixed: set[int] = set()  # contexts that may still have cells of other settings
_n_vectors = itertools.count(1)


def model_file(llm: Any) -> File:
    """Return the file that a Llama's model was loaded from; OSError if it is missing."""
    return _models.get(_address(model_of(llm).model)) or File.at(llm.model_path)


def digest_of_model(first: File | str | os.PathLike[str]) -> str:
    """Return the digests of a model's files: of one file, or of all parts if the first is ``…-00001-of-00003.gguf``.

    ArgumentError as of `File.digest`; OSError if there is no file.
    """
    first = first if isinstance(first, File) else File.at(first)
    split = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", first.path)
    names = [f"{split[1]}-{i:05}-of-{split[2]}.gguf" for i in range(2, int(split[2]) + 1)] if split else []
    return " ".join([first.digest(), *(File.at(name).digest() for name in names if os.path.exists(name))])


def adapter_file(llm: Any, adapter: int) -> File | None:
    """Return the file of an adapter, or None if unknown; OSError if it is missing."""
    found = _adapter_files.get(adapter)
    if found is None and adapter == _address(adapter_of(llm)):
        found = File.at(llm.lora_path)
    return found


def applied_to(context: int) -> Applied:
    """Return the settings of a context; the same object as long as they do not change."""
    return SETTINGS.get(context, NOTHING)


def context_address(llm: Any) -> int:
    """Return the address of a Llama's context, after recording the adapter that it was made with."""
    context, own = _address(context_of(llm).ctx), _address(adapter_of(llm))
    if own and context not in SETTINGS:  # made before this module was imported
        SETTINGS[context] = Applied(((own, float(llm.lora_scale)),))
    return context


def adapters_of(llm: Any) -> tuple[tuple[int, float], ...]:
    """Return the adapters of a Llama's own context, as addresses and scales.

    ArgumentError if the context has a control vector, which other contexts would not have.
    """
    applied = applied_to(context_address(llm))
    if applied.vector:
        raise ArgumentError(
            "llm: has a control vector (llama_set_adapter_cvec), and token-trie's own contexts would be without it; "
            "clear it, or generate with constrain, which uses the Llama's context"
        )
    return applied.adapters


def is_mixed(llm: Any) -> bool:
    """Whether cells of a Llama's context may have been computed with other adapters than now."""
    if not _mixed:
        return False
    context = context_address(llm)
    if context in _mixed and _is_empty(context):
        _mixed.discard(context)
    return context in _mixed


def note_loaded_state(llm: Any) -> None:
    """Record that a context has loaded cells of an earlier state."""
    if (context := context_address(llm)) in _varied:
        _mixed.add(context)


def _is_empty(context: int) -> bool:
    return bool(llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(context), 0) < 0)


def _address(pointer: Any) -> int:
    return pointer if isinstance(pointer, int) else ctypes.cast(pointer, ctypes.c_void_p).value or 0


def _record(files: dict[int, File], pointer: Any, path: Any = None) -> None:
    """Record the file that an object was loaded from, None if unknown."""
    if pointer:
        files.pop(_address(pointer), None)
        if path is not None:
            files[_address(pointer)] = File.at(os.fsdecode(path))


def _on_context(result: Any, _: Sequence[Any]) -> None:
    if result:  # perhaps at the address of a freed context
        context = _address(result)
        SETTINGS.pop(context, None)
        _varied.discard(context)
        _mixed.discard(context)


def _apply(context: int, applied: Applied) -> None:
    if applied != applied_to(context):
        SETTINGS[context] = applied
        if not _is_empty(context):
            _varied.add(context)
            _mixed.add(context)


def _on_adapters(result: Any, arguments: Sequence[Any]) -> None:
    context, adapters, n, scales = arguments
    if result == 0:
        found = tuple((_address(adapters[i]), float(scales[i])) for i in range(n))
        _apply(_address(context), applied_to(_address(context))._replace(adapters=found))


def _on_control_vector(result: Any, arguments: Sequence[Any]) -> None:
    context, data = _address(arguments[0]), arguments[1]
    if result == 0:
        _apply(context, applied_to(context)._replace(vector=next(_n_vectors) if data else 0))


_NOTES: dict[str, Callable[[Any, Sequence[Any]], None]] = {
    "llama_model_load_from_file": lambda model, given: _record(_models, model, given[0]),
    "llama_load_model_from_file": lambda model, given: _record(_models, model, given[0]),
    "llama_init_from_model": _on_context,
    "llama_new_context_with_model": _on_context,
    "llama_adapter_lora_init": lambda adapter, given: _record(_adapter_files, adapter, given[1]),
    "llama_adapter_lora_init_from_file_ptr": lambda adapter, _: _record(_adapter_files, adapter),
    "llama_set_adapters_lora": _on_adapters,
    "llama_apply_adapter_cvec": _on_control_vector,  # its earlier name
    "llama_set_adapter_cvec": _on_control_vector,
}


def _note(function: Any, note: Callable[[Any, Sequence[Any]], None]) -> None:
    before = function.errcheck

    def noted(result: Any, called: Any, arguments: Sequence[Any]) -> Any:
        with suppress(Exception):  # the caller must not get this error
            note(result, arguments)
        return result if before is None else before(result, called, arguments)

    function.errcheck = noted


if isinstance(llama_cpp, type(sys)):
    for _name, _noted in _NOTES.items():
        _function = getattr(llama_cpp, _name, None)
        if hasattr(_function, "errcheck"):
            _note(_function, _noted)
