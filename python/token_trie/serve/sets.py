"""Registered sets, which requests name, and filters of their members."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.core import Llama
from token_trie.native.files import UNFINISHED, sync_folder, write_whole
from token_trie.native.options import encode_names
from token_trie.serve.engine import Engine
from token_trie.serve.limits import Place, RefusedError, invalid, refusing
from token_trie.sets.choices import Choices, read_choices
from token_trie.sets.lru import Memory
from token_trie.sets.trie import TokenTrie

KEYS = ("mask", "indices")
"""Filters that a request may give beside a set's name; only one of them."""


def filtered(made: TokenTrie | Choices[Any], given: dict[str, Any]) -> TokenTrie | Choices[Any]:
    """Return the set of the members that a request's filter keeps; ArgumentError if it is invalid, or keeps none.

    ``mask`` is base64 of one bit per member, the lowest of a byte first, padded with zeros; ``indices`` are indices of
    members.
    """
    n = made.core.n_leaves if isinstance(made, TokenTrie) else len(made)
    keep = _bits(given["mask"], n) if "mask" in given else _indices(given["indices"], n)
    if isinstance(made, TokenTrie):
        return made.filtered(keep)
    kept = np.unique(keep).tolist() if keep.dtype != np.bool_ else np.flatnonzero(keep).tolist()
    if not kept:
        raise ArgumentError("mask: no member of the set is left")
    texts = tuple(made.texts[i] for i in kept)
    return Choices(texts, texts if made.are_texts else tuple(made.values[i] for i in kept))


def _bits(given: Any, n: int) -> npt.NDArray[np.bool_]:
    if not isinstance(given, str):
        raise ArgumentError(f"mask: {type(given).__name__} where base64 of bits belongs")
    try:
        data = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ArgumentError(f"mask: no base64: {error}") from error
    if len(data) != (n + 7) // 8:
        raise ArgumentError(f"mask: {len(data):,} bytes, where {n:,} members take {(n + 7) // 8:,}")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").astype(np.bool_)
    if bits[n:].any():
        raise ArgumentError(f"mask: has bits after the last of {n:,} members")
    return bits[:n]


def _indices(given: Any, n: int) -> npt.NDArray[np.int64]:
    if not isinstance(given, list):
        raise ArgumentError(f"indices: {type(given).__name__} where a list belongs")
    for at, i in enumerate(given):
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < n:
            raise ArgumentError(f"indices[{at}]: no index of {n:,} members")
    return np.array(given, np.int64)


_log = logging.getLogger("token_trie.serve")

AnySet: TypeAlias = TokenTrie | Choices[Any]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SUFFIX, _FILE = ".json", ".trie"
_UNFINISHED = re.compile(rf"{_NAME.pattern}{re.escape(_SUFFIX)}\.[0-9a-f]{{8}}{re.escape(UNFINISHED)}")
"""Names of unfinished files of `put` from a killed process."""
_MEMBER_BYTES = 64
"""Memory per member of a set, besides its JSON."""
_MAX_FILTERS, _MAX_FILTER_BYTES = 64, 256 << 20


def read_set(llm: Llama, given: Any) -> AnySet:
    """Read a set from JSON: a payload, ``{"choices": …}``, texts, texts with values; TokenTrieError if it is none."""
    if isinstance(given, dict) and "descriptors" in given:
        return TokenTrie.from_payload(given, llm=llm)
    if isinstance(given, dict) and list(given) == ["choices"]:
        given = given["choices"]
    if not isinstance(given, (list, dict)):
        raise ArgumentError(f"{type(given).__name__} where a list, an object of choices or a payload belongs")
    choices = read_choices(given)
    if not all(encode_names(choices.texts, "choices")):
        raise ArgumentError("choices: one is empty")
    return choices


@dataclass(frozen=True)
class Registered:
    """A set and the JSON text that registered it."""

    data: bytes
    made: AnySet
    has_collapsed: bool
    """Whether leaves were merged or dropped, so that the indices after them have shifted."""

    @classmethod
    def read(cls, llm: Llama, given: Any, data: bytes) -> Registered:
        """Read a set from a JSON value and its text; TokenTrieError if it is none."""
        made = read_set(llm, given)
        if not isinstance(made, TokenTrie):
            return cls(data, made, False)
        return cls(data, made, made.core.n_leaves < sum(len(each.get("leaves", ())) for each in given["descriptors"]))

    @property
    def n_bytes(self) -> int:
        """Memory that the limit counts."""
        return len(self.data) + _MEMBER_BYTES * len(self.made)

    def summary(self, name: str) -> dict[str, Any]:
        """Return a summary as JSON."""
        return {"object": "set", "name": name, "choices": len(self.made), "bytes": len(self.data)}


class Filed:
    """A set in a file that others write: opened again when the file is replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._trie: TokenTrie | None = None

    @property
    def made(self) -> TokenTrie:
        """The current set; if the file is gone or broken, the last one."""
        try:
            stat = self._path.stat()
            seen = stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
            if seen != self._seen:
                self._trie, self._seen = TokenTrie.open(self._path), seen
        except (OSError, TokenTrieError) as error:
            if self._trie is None:
                raise
            _log.warning("the set %r stays as it was: %s", self._path.stem, error)
        assert self._trie is not None
        return self._trie

    @property
    def data(self) -> bytes:
        """JSON text of `summary`; the members may be millions."""
        return json.dumps(self.summary(self._path.stem)).encode()

    n_bytes = 0
    """Memory that the limit counts: none, as the file is mapped."""
    has_collapsed = False
    """Always False: the indices are those of the file."""

    def summary(self, name: str) -> dict[str, Any]:
        """Return a summary as JSON."""
        return {"object": "set", "name": name, "choices": len(self.made), "bytes": self.made.nbytes, "file": True}


class Sets:
    """The sets of a server, up to a number and a memory of all. For the event loop's thread.

    A folder keeps them; without one, they are lost when the server ends.
    """

    def __init__(self, folder: Path | None = None, max_sets: int = 1000, max_bytes: int = 256 << 20) -> None:
        self._folder = folder
        self._max_sets, self._max_bytes = max_sets, max_bytes
        self._of_name: dict[str, Registered | Filed] = {}
        self._foreign: set[str] = set()  # other files in the folder; never changed
        self._filtered: Memory[TokenTrie] = Memory(_MAX_FILTERS, _MAX_FILTER_BYTES)
        self._changing = asyncio.Lock()

    def load(self, llm: Llama) -> None:
        """Read the folder, before the first request; broken files are logged and skipped."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._folder.iterdir()):
            if _UNFINISHED.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)
            elif path.suffix in (_SUFFIX, _FILE) and _NAME.fullmatch(path.stem):
                try:
                    self._of_name[path.stem] = _read(llm, path)
                except (OSError, ValueError, RecursionError) as error:
                    self._foreign.add(path.stem)
                    _log.warning("the set %r is left out: %s", path.stem, error)

    def names(self) -> dict[str, Registered | Filed]:
        """Return all sets by name."""
        return dict(sorted(self._of_name.items()))

    def get(self, name: object, place: Place = ()) -> Registered | Filed:
        """Return a set by name; RefusedError if there is none."""
        found = self._of_name.get(name) if isinstance(name, str) else None
        if found is None:
            shown = name if isinstance(name, str) and _NAME.fullmatch(name) else "of this name"
            refusal = invalid(f"there is no set {shown}", place, "not_found")
            raise RefusedError("not_found", refusal.message, refusal.faults)
        return found

    def filtered(self, registered: Registered | Filed, given: dict[str, Any]) -> AnySet:
        """Return the members that a request's filter keeps; the last results are cached."""
        made = registered.made
        if registered.has_collapsed:
            key = next(key for key in KEYS if key in given)
            raise ArgumentError(
                f"{key}: this set was registered with leaves of equal tokens, or of none, and has fewer members than "
                "leaves; one that is filtered needs each once"
            )
        if not isinstance(made, TokenTrie) or not isinstance(given.get("mask"), str):
            return filtered(made, given)

        def make() -> TokenTrie:
            left = filtered(made, given)
            assert isinstance(left, TokenTrie)
            return left

        return self._filtered.get((made, given["mask"]), len(given["mask"]), make)

    async def put(self, engine: Engine, name: str, given: Any) -> bool:
        """Register a set; return whether the name is new. A failure changes nothing."""
        if not _NAME.fullmatch(name):
            raise invalid("a name has letters, digits, dots, dashes and underscores, up to 100", ("name",))
        if name in self._foreign:
            raise invalid("the folder has a file of this name that is no set; move it away and restart", ("name",))
        data = json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()
        with refusing():
            made = await engine.on_worker(lambda: Registered.read(engine.llm, given, data))
        async with self._changing:
            before = self._of_name.get(name)
            _require_ours(before)
            self._require_room(made.n_bytes, before)
            await self._on_disk(engine, lambda path: write_whole(path, data), name)
            self._of_name[name] = made
        return before is None

    async def delete(self, engine: Engine, name: str) -> None:
        """Delete a set; RefusedError if there is none."""
        async with self._changing:
            _require_ours(self.get(name))
            await self._on_disk(engine, _remove, name)
            del self._of_name[name]

    def _require_room(self, n_bytes: int, before: Registered | Filed | None) -> None:
        if before is None and len(self._of_name) >= self._max_sets:
            raise RefusedError("too_large", f"there are {self._max_sets:,} sets, which is the most; delete one first")
        held = sum(each.n_bytes for each in self._of_name.values()) - (0 if before is None else before.n_bytes)
        if held + n_bytes > self._max_bytes:
            raise RefusedError("too_large", f"all sets together would take more than {self._max_bytes:,} bytes")

    async def _on_disk(self, engine: Engine, do: Callable[[Path], None], name: str) -> None:
        if self._folder is None:
            return
        path = self._folder / (name + _SUFFIX)
        # Runs to its end even if the client has left, so that the folder and the answers agree.
        work = asyncio.ensure_future(engine.on_worker(lambda: do(path)))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                await work
            raise
        except OSError as error:
            _log.warning("the set %r is not kept: %s", name, error.strerror)
            raise RefusedError("internal", "the set could not be kept", status=507) from error


def _read(llm: Llama, path: Path) -> Registered | Filed:
    if path.suffix == _FILE:
        filed = Filed(path)
        _ = filed.made
        return filed
    data = path.read_bytes()
    return Registered.read(llm, json.loads(data), data)


def _require_ours(found: Registered | Filed | None) -> None:
    if isinstance(found, Filed):
        raise invalid("this set is a file, which its owner replaces", ("name",))


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
