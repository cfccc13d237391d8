"""Files that are there whole, or as they were before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

UNFINISHED = ".tmp"
"""How the name ends of what is being written."""


def write_whole(path: Path, data: bytes | memoryview | Iterable[memoryview]) -> None:
    """Write a file beside its place, sync it, move it there, and sync the folder; OSError as of files.

    Data is one piece or several. Whenever the process or the machine stops, the old one is there, or the new one.
    """
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
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
