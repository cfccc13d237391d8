"""Readings of rows on disk, so that the model does not read a row twice."""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.calibration import Binding
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.files import write_whole
from token_trie.questions.question import state_text
from token_trie.sets.prompt import Filled
from token_trie.trust.rows import DEFAULT_NAME, Readings, Row, RowOptions, RowReader

_FORMAT = 2
_SECONDS_BETWEEN_WRITES = 5.0
_ARRAYS = ("raw", "contextual", "mass", "states")


def digest_of(*parts: object) -> str:
    """Return the SHA-256 of values that JSON has, or whose `repr` is exact."""
    return hashlib.sha256(json.dumps(parts, default=repr).encode(errors="surrogatepass")).hexdigest()


def digest_of_prompt(prompt: Any) -> bytes:
    """Return the digest of a prompt, 16 bytes; prompts with the same tokens have the same digest."""
    if isinstance(prompt, Filled):  # only in the template are names of control tokens such tokens
        prompt = {"parts": [list(part) for part in prompt.parts]}
    elif isinstance(prompt, np.ndarray):
        prompt = prompt.tolist()
    elif not isinstance(prompt, (str, Mapping)) and isinstance(prompt, Sequence):
        prompt = list(prompt)
    return bytes.fromhex(digest_of(prompt))[:16]


@dataclass
class CachedRows:
    """Readings of rows by the digest of each row, loaded from a file and written to it.

    Parameters
    ----------
    path : Path or None
        The file; None: in memory only.
    key : str
        The digest of all options that the readings depend on.
    """

    path: Path | None
    key: str
    rows: Readings | None = field(default=None, init=False)
    has_states: bool = field(default=False, init=False)
    """Whether the rows were read with hidden states; not every model has them."""
    problem: str | None = field(default=None, init=False)
    """Why an existing file was not loaded."""

    def __post_init__(self) -> None:
        self._row_of: dict[bytes, int] = {}
        if self.path is not None and self.path.exists():
            try:
                self._load(self.path)
            except Exception as error:  # a foreign file may raise anything in the readers of zip and npy
                self.problem = f"{self.path}: broken, and read anew ({type(error).__name__}: {error})"

    def clear(self, *, has_states: bool = False) -> None:
        """Forget all rows."""
        self.rows, self._row_of, self.has_states = None, {}, has_states

    def missing(self, digests: Iterable[bytes]) -> dict[bytes, int]:
        """Return the digests without readings, each once, with its position."""
        found: dict[bytes, int] = {}
        for i, digest in enumerate(digests):
            if digest not in self._row_of:
                found.setdefault(digest, i)
        return found

    def add(self, digests: Sequence[bytes], readings: Readings) -> None:
        """Add rows and write the file."""
        rows = readings if self.rows is None else _joined(self.rows, readings)
        row_of = self._row_of | {digest: i for i, digest in enumerate(digests, len(self._row_of))}
        self.rows, self._row_of = rows, row_of
        if self.path is not None:
            self._write(self.path, rows)

    def of(self, digests: Sequence[bytes]) -> Readings:
        """Return the readings of rows in this order; none may be missing."""
        assert self.rows is not None
        return self.rows.take(np.array([self._row_of[digest] for digest in digests], np.int64))

    def _load(self, path: Path) -> None:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            if header["format"] != _FORMAT or header["key"] != self.key:
                raise ValueError("it is of another format, or of other questions")
            digests = np.asarray(file["digests"], np.uint8)
            arrays = {name: file[name] for name in _ARRAYS if name in file}
        binding = Binding.from_dict(header["binding"])
        n, k = len(digests), len(header["texts"])
        shapes = {"raw": (n, k), "contextual": (n, k), "mass": (n,)}
        for name, array in arrays.items():
            kind = np.float32 if name == "states" else np.float64
            shape = array.shape == shapes.get(name, (n, *array.shape[1:2]))
            if not shape or array.dtype != kind or np.isnan(array).any():
                raise ValueError(f"{name} is not what it should be")
        if digests.shape != (n, 16) or not {"raw", "mass"} <= set(arrays):
            raise ValueError("something is missing")
        found: dict[str, Any] = dict.fromkeys(_ARRAYS) | arrays
        self.rows = Readings(texts=tuple(header["texts"]), binding=binding, **found)
        self._row_of = {digest.tobytes(): i for i, digest in enumerate(digests)}
        self.has_states = bool(header["states"])
        if len(self._row_of) != n:
            self.clear()
            raise ValueError("a row is there twice")

    def _write(self, path: Path, rows: Readings) -> None:
        """Replace the file; on failure it stays as it was."""
        header = {
            "format": _FORMAT,
            "key": self.key,
            "texts": list(rows.texts),
            "binding": rows.binding.to_dict(),
            "states": self.has_states,
        }
        arrays: dict[str, npt.NDArray[Any]] = {
            "header": np.array(json.dumps(header)),
            "digests": np.frombuffer(b"".join(self._row_of), np.uint8).reshape(-1, 16),
        }
        arrays |= {name: array for name in _ARRAYS if (array := getattr(rows, name)) is not None}
        path.parent.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        write_whole(path, file.getbuffer())


def open_cache(folder: str | os.PathLike[str] | None, key: str) -> CachedRows:
    """Load the readings that a folder has for a key; ArgumentError if the folder is a file."""
    if folder is None:
        return CachedRows(None, key)
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise ArgumentError(f"cache: {str(root)!r} is a file, where a folder belongs")
    return CachedRows(root / f"readings-{key[:24]}.npz", key)


def key_of(options: RowOptions, binding: Binding, calibration: str = DEFAULT_NAME) -> str:
    """Return the digest of all that readings depend on besides the prompts."""
    # The tokens of prompts that a template made differ where the templates do.
    own = replace(binding, asked="") if options.template else binding
    return digest_of(_FORMAT, own, *([] if calibration == DEFAULT_NAME else [calibration]))


def read_cached(
    reader: RowReader, rows: Sequence[Any], cached: CachedRows, *, states: bool = False, **options: Any
) -> tuple[Readings, int]:
    """Read rows with the model, except cached rows and duplicates.

    Parameters
    ----------
    **options
        As for `RowReader.read`.

    Returns
    -------
    tuple of Readings and int
        The second is the number of rows that the model has read.
    """
    if states and not cached.has_states:
        cached.clear(has_states=True)
    digests = [_digest_of_row(reader, row) for row in rows]
    missing = cached.missing(digests)
    waiting, positions = list(missing), list(missing.values())
    found: list[Row] = []
    n_written, written_at = 0, time.monotonic()

    def write() -> None:
        nonlocal n_written, written_at
        if n_written < len(found):
            cached.add(waiting[n_written : len(found)], Readings.of(found[n_written:], reader.binding))
            n_written, written_at = len(found), time.monotonic()

    try:
        if positions:
            for row in reader.read([rows[i] for i in positions], states=cached.has_states, **options):
                found.append(row)
                if time.monotonic() - written_at > _SECONDS_BETWEEN_WRITES:
                    write()
    except TokenTrieError as error:
        if error.__cause__ is None or len(found) == len(positions):
            raise
        raise type(error)(f"{reader.each}s[{positions[len(found)]}]: {error.__cause__}") from error
    finally:  # after an interrupt, the next call reads only the rest
        write()
    return replace(cached.of(digests), binding=reader.binding), len(found)


def _digest_of_row(reader: RowReader, row: Any) -> bytes:
    """Return the digest of the tokens of a row's prompts."""
    try:
        return bytes.fromhex(digest_of(reader.prompts(row)))[:16]
    except TokenTrieError:  # the reader raises it with the position of the row
        return digest_of_prompt(content_of(reader, row))


def content_of(reader: RowReader, row: Any) -> Any:
    """Return the text of a state, or a prompt as it is."""
    if reader.each != "state":
        return row
    try:
        return state_text(row)
    except ArgumentError:  # the reader raises it with the position of the row
        return repr(row)


def _joined(one: Readings, other: Readings) -> Readings:
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(one, name), getattr(other, name)])
        for name in _ARRAYS
        if getattr(one, name) is not None
    }
    return replace(one, **arrays)
