from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from token_trie.native.files import write_whole

pytestmark = pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o640])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "set.trie"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_whole(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", mode)


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root gives files away")
def test_it_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "set.trie"
    path.write_bytes(b"old")
    os.chown(path, 12, 34)
    write_whole(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12, 34)


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    write_whole(tmp_path / "set.trie", b"new")
    assert (tmp_path / "set.trie").stat().st_mode == (tmp_path / "other").stat().st_mode
