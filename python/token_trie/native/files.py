"""Atomic writing of files."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

UNFINISHED = ".tmp"
"""Suffix of an unfinished file."""
_MAX_NAME = 255 - len(f".01234567{UNFINISHED}")
"""Largest part of the final name in an unfinished name, in bytes; file systems allow names of 255 bytes."""


def write_whole(path: Path, data: bytes | memoryview | Iterable[memoryview]) -> None:
    """Write a temporary file, sync it, rename it to `path`, and sync the folder. Raises OSError, with this path.

    Data is one piece or several. If the process or the machine stops, the file is the old one or the new one. What is
    there and no file, such as a device, is not replaced.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "is not a file", str(path))
    begin = os.fsencode(path.name)[:_MAX_NAME].decode(errors="ignore")
    unfinished = path.with_name(f"{begin}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with open(unfinished, "xb") as file:
            file.writelines([data] if isinstance(data, (bytes, memoryview)) else data)
            file.flush()
            os.fsync(file.fileno())
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
