"""Readings on disk: what a model said of rows is read from a file the next time."""

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
from token_trie.trust.fit import part_of
from token_trie.trust.rows import Reader, Readings, Row, RowOptions

_FORMAT = 2
_SECONDS_BETWEEN_WRITES = 5.0
_ARRAYS = ("raw", "contextual", "mass", "states")


def digest_of(*parts: object) -> str:
    """Return the digest of values that JSON has, or that have an exact `repr`."""
    return hashlib.sha256(json.dumps(parts, default=repr).encode(errors="surrogatepass")).hexdigest()


def digest_of_prompt(prompt: Any) -> bytes:
    """Return the digest of a prompt, 16 bytes: the same for those that are the same to a model."""
    if isinstance(prompt, Filled):  # the names of control tokens are theirs in the template alone
        prompt = {"parts": [list(part) for part in prompt.parts]}
    elif isinstance(prompt, np.ndarray):
        prompt = prompt.tolist()
    elif not isinstance(prompt, (str, Mapping)) and isinstance(prompt, Sequence):
        prompt = list(prompt)
    return bytes.fromhex(digest_of(prompt))[:16]


@dataclass
class Kept:
    """The rows that a file has.

    Parameters
    ----------
    path : Path or None
        The file; None: nothing is kept.
    key : str
        The digest of all that is asked.
    """

    path: Path | None
    key: str
    rows: Readings | None = field(default=None, init=False)
    has_states: bool = field(default=False, init=False)
    """Whether hidden states were asked for, which not every model has."""
    problem: str | None = field(default=None, init=False)
    """Why a file that is there was not read."""

    def __post_init__(self) -> None:
        self._row_of: dict[bytes, int] = {}
        if self.path is not None and self.path.exists():
            try:
                self._load(self.path)
            except Exception as error:  # a file from elsewhere may break anything in the readers of zip and npy
                self.problem = f"{self.path}: broken, and read anew ({type(error).__name__}: {error})"

    def clear(self, *, has_states: bool = False) -> None:
        """Forget all rows."""
        self.rows, self._row_of, self.has_states = None, {}, has_states

    def missing(self, digests: Iterable[bytes]) -> dict[bytes, int]:
        """Return those that are not there, each once, with their positions."""
        found: dict[bytes, int] = {}
        for i, digest in enumerate(digests):
            if digest not in self._row_of:
                found.setdefault(digest, i)
        return found

    def add(self, digests: Sequence[bytes], readings: Readings) -> None:
        """Add rows, and write the file."""
        rows = readings if self.rows is None else _joined(self.rows, readings)
        row_of = self._row_of | {digest: i for i, digest in enumerate(digests, len(self._row_of))}
        self.rows, self._row_of = rows, row_of
        if self.path is not None:
            self._write(self.path, rows)

    def of(self, digests: Sequence[bytes]) -> Readings:
        """Return the readings of rows in this order; all of them must be there."""
        assert self.rows is not None
        return part_of(self.rows, np.array([self._row_of[digest] for digest in digests], np.int64))

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
        """Write the file whole, or leave it as it was."""
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


def kept_in(folder: str | os.PathLike[str] | None, key: str) -> Kept:
    """Return what a folder has of a way of asking; ArgumentError where it is a file."""
    if folder is None:
        return Kept(None, key)
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise ArgumentError(f"cache: {str(place)!r} is a file, where a folder belongs")
    return Kept(place / f"readings-{key[:24]}.npz", key)


def key_of(options: RowOptions, binding: Binding) -> str:
    """Return the digest of all that figures depend on beside the prompts."""
    # Prompts that a template made are told apart by their tokens.
    return digest_of(_FORMAT, replace(binding, asked="") if options.template else binding)


def read_kept(
    reader: Reader, rows: Sequence[Any], kept: Kept, *, states: bool = False, **options: Any
) -> tuple[Readings, int]:
    """Read rows, of which those that are kept, or there twice, are not read by the model again.

    Parameters
    ----------
    **options
        Those of `Reader.read`.

    Returns
    -------
    tuple of Readings and int
        And how many rows the model has read.
    """
    if states and not kept.has_states:
        kept.clear(has_states=True)
    digests = [_digest_of_row(reader, row) for row in rows]
    missing = kept.missing(digests)
    waiting, places = list(missing), list(missing.values())
    found: list[Row] = []
    n_written, written_at = 0, time.monotonic()

    def write() -> None:
        nonlocal n_written, written_at
        if n_written < len(found):
            kept.add(waiting[n_written : len(found)], Readings.of(found[n_written:], reader.binding))
            n_written, written_at = len(found), time.monotonic()

    try:
        if places:
            for row in reader.read([rows[i] for i in places], states=kept.has_states, **options):
                found.append(row)
                if time.monotonic() - written_at > _SECONDS_BETWEEN_WRITES:
                    write()
    except TokenTrieError as error:
        if error.__cause__ is None or len(found) == len(places):
            raise
        raise type(error)(f"{reader.each}s[{places[len(found)]}]: {error.__cause__}") from error
    finally:  # so that who goes on after an interrupt reads the rest alone
        write()
    return replace(kept.of(digests), binding=reader.binding), len(found)


def _digest_of_row(reader: Reader, row: Any) -> bytes:
    """Return the digest of the tokens that a row is read by."""
    try:
        return bytes.fromhex(digest_of(reader.prompts(row)))[:16]
    except TokenTrieError:  # which the reader says of it, with its position
        return digest_of_prompt(as_asked(reader, row))


def as_asked(reader: Reader, row: Any) -> Any:
    """Return a row as a model is asked about it."""
    if reader.each != "state":
        return row
    try:
        return state_text(row)
    except ArgumentError:  # which the reader says of it, with its position
        return repr(row)


def _joined(one: Readings, other: Readings) -> Readings:
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(one, name), getattr(other, name)])
        for name in _ARRAYS
        if getattr(one, name) is not None
    }
    return replace(one, **arrays)
