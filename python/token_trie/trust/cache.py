"""Readings of rows on disk, so that the model does not read a row twice."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.calibration import Binding
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.files import write_whole
from token_trie.trust.rows import DEFAULT_NAME, Readings, Row, RowOptions, RowReader

_FORMAT = 2
_SECONDS_BETWEEN_WRITES = 5.0
_ARRAYS = ("raw", "contextual", "mass", "states")
"""In the order of the fields of `Row`."""


def digest_of(*parts: object) -> str:
    """Return the SHA-256 of values that JSON has, or whose `repr` is exact."""
    return hashlib.sha256(json.dumps(parts, default=repr).encode(errors="surrogatepass")).hexdigest()


class CachedRows:
    """Rows that the model has read, by the digest of each, in memory and in a file, if there is a folder for it.

    `key` is the digest of all options that the readings depend on. ArgumentError if the folder is a file.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, key: str) -> None:
        if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
            raise ArgumentError(f"cache: {str(folder)!r} is a file, where a folder belongs")
        self.path = None if folder is None else Path(folder) / f"readings-{key[:24]}.npz"
        self.has_states = False
        """Whether the rows were read with hidden states; not every model has them."""
        self.problem: str | None = None
        """Why an existing file was not loaded."""
        self._key = key
        self._rows: dict[bytes, Row] = {}
        if self.path is not None and self.path.exists():
            try:
                self._load(self.path)
            except Exception as error:  # a foreign file may raise anything in the readers of zip and npy
                self.problem = f"{self.path}: broken, and read anew ({type(error).__name__}: {error})"

    def read(
        self,
        reader: RowReader,
        rows: Sequence[Any],
        *,
        states: bool = False,
        keys: Sequence[bytes] | None = None,
        **options: Any,
    ) -> tuple[Readings, int]:
        """Read rows with the model, except cached rows and duplicates; return the number of those read too.

        Rows are told apart by `keys`, by default the digests of their tokens. Options and errors are those of
        `RowReader.read`.
        """
        if states and not self.has_states:
            self._rows, self.has_states = {}, True
        digests = [digest_of_row(reader, row) for row in rows] if keys is None else keys
        new: dict[bytes, int] = {}
        for i, digest in enumerate(digests):
            if digest not in self._rows:
                new.setdefault(digest, i)
        waiting, n, n_written, written_at = iter(new.items()), 0, 0, time.monotonic()
        try:
            if new:
                for row in reader.read([rows[i] for i in new.values()], states=self.has_states, **options):
                    self._rows[next(waiting)[0]] = row
                    n += 1
                    if time.monotonic() - written_at > _SECONDS_BETWEEN_WRITES:
                        self._write(reader.binding)
                        n_written, written_at = n, time.monotonic()
        except TokenTrieError as error:
            if error.__cause__ is None or n == len(new):
                raise
            raise type(error)(f"{reader.each}s[{next(waiting)[1]}]: {error.__cause__}") from error
        finally:  # after an interrupt, the next call reads only the rest
            if n > n_written:
                self._write(reader.binding)
        return Readings.of((self._rows[digest] for digest in digests), reader.binding), n

    def __len__(self) -> int:
        return len(self._rows)

    def _load(self, path: Path) -> None:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            if header["format"] != _FORMAT or header["key"] != self._key:
                raise ValueError("it is of another format, or of other questions")
            digests = np.asarray(file["digests"], np.uint8)
            arrays = {name: file[name] for name in _ARRAYS if name in file}
        Binding.from_dict(header["binding"])
        n, k = len(digests), len(header["texts"])
        shapes = {"raw": (n, k), "contextual": (n, k), "mass": (n,)}
        for name, array in arrays.items():
            kind = np.float32 if name == "states" else np.float64
            shape = array.shape == shapes.get(name, (n, *array.shape[1:2]))
            if not shape or array.dtype != kind or np.isnan(array).any():
                raise ValueError(f"{name} is not what it should be")
        if digests.shape != (n, 16) or not {"raw", "mass"} <= set(arrays):
            raise ValueError("something is missing")
        columns = (arrays.get(name, itertools.repeat(None, n)) for name in _ARRAYS)
        rows = {digest.tobytes(): Row(*row) for digest, *row in zip(digests, *columns, strict=True)}
        if len(rows) != n:
            raise ValueError("a row is there twice")
        self._rows, self.has_states = rows, bool(header["states"])

    def _write(self, binding: Binding) -> None:
        """Replace the file, if there is one; on failure it stays as it was."""
        if self.path is None:
            return
        header = {
            "format": _FORMAT,
            "key": self._key,
            "texts": list(binding.classes),
            "binding": binding.to_dict(),
            "states": self.has_states,
        }
        arrays: dict[str, npt.NDArray[Any]] = {
            "header": np.array(json.dumps(header)),
            "digests": np.frombuffer(b"".join(self._rows), np.uint8).reshape(-1, 16),
        }
        readings = Readings.of(self._rows.values(), binding)
        arrays |= {name: array for name in _ARRAYS if (array := getattr(readings, name)) is not None}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        write_whole(self.path, file.getbuffer())


def key_of(options: RowOptions, binding: Binding, calibration: str = DEFAULT_NAME) -> str:
    """Return the digest of all that readings depend on besides the prompts."""
    # The tokens of prompts differ where the templates or columns do that they were made of.
    own = replace(binding, columns="", asked="" if options.template else binding.asked)
    return digest_of(_FORMAT, own, *([] if calibration == DEFAULT_NAME else [calibration]))


def digest_of_row(reader: RowReader, row: Any) -> bytes:
    """Return the digest of the tokens of a row's prompts, 16 bytes; equal rows have the same one."""
    try:
        prompts: Any = reader.prompts(row)
    except TokenTrieError:  # the reader raises it with the position of the row
        prompts = repr(row)
    return bytes.fromhex(digest_of(prompts))[:16]
