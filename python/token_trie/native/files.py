"""Files that are there whole, or as they were before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

UNFINISHED = ".tmp"
"""How the name ends of what is being written."""
_LONGEST_NAME = 255 - len(f".01234567{UNFINISHED}")
"""In bytes, of what an unfinished file's name begins with: file systems allow 255 in all."""


def write_whole(path: Path, data: bytes | memoryview | Iterable[memoryview]) -> None:
    """Write a file beside its place, sync it, move it there, and sync the folder; OSError as of files.

    Data is one piece or several. Whenever the process or the machine stops, the old one is there, or the new one.
    """
    begin = os.fsencode(path.name)[:_LONGEST_NAME].decode(errors="ignore")
    unfinished = path.with_name(f"{begin}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        with open(unfinished, "xb") as file:
            file.writelines([data] if isinstance(data, (bytes, memoryview)) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Let the names in a folder be kept, too."""
    if os.name == "nt":
        return  # which has no handles of folders; its moves are in the journal
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
