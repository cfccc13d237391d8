"""Sets in files, of the project's own and of RTP-LLM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from token_trie.errors import ArgumentError
from token_trie.native.core import _core
from token_trie.native.files import write_whole
from token_trie.sets.payload import read_prefix_dict

T = TypeVar("T", bound="Stored")


class Stored:
    """The methods of a `TokenTrie` that write it to a file and read one."""

    __slots__ = ()

    core: _core.Trie

    @classmethod
    def of_core(cls: type[T], core: _core.Trie, start_token: int | None = None) -> T:  # noqa: D102
        raise NotImplementedError

    @classmethod
    def from_prefix_dict(cls: type[T], given: str | os.PathLike[str] | Mapping[str, Any]) -> T:
        """Read the set from RTP-LLM's tree decode configuration, described and written by `engines.rtp_llm`.

        Members are named by their position, ``"0"``, ``"1"``, …, in the order of their tokens. The set remembers its
        start token: `constrain`, `choose` and `TrieMatcher` refuse a prompt that does not end in it. In RTP-LLM the end
        token ends an answer; give it as ``end_tokens``.

        Parameters
        ----------
        given : dict, str or os.PathLike
            The configuration, or the path of a file that holds it as JSON, which is read as a stream. Start token, end
            token and separator are 225, 2 and ``"_"`` by default. Ids in lists that are negative or have more than 32
            bits are skipped with a warning, and so are keys that no other key leads to.

        Raises
        ------
        ArgumentError
            The file cannot be read.
        PayloadError
            A wrong type, with its place such as ``prefix_dict["225_7"][1]``; broken JSON; no key for the start token;
            an answer that can end before it begins; a separator that does not separate token ids.
        """
        return cls.of_core(*read_prefix_dict(given))

    @classmethod
    def open(cls: type[T], path: str | os.PathLike[str], *, verify: bool = False) -> T:
        """Open a set that `save` wrote.

        The file is mapped read-only, and shared by all processes that have it open. This takes milliseconds for a file
        of any size. An open file may be replaced (as `save` does) or deleted, but must not be written into.

        Parameters
        ----------
        path : str or os.PathLike
        verify : bool, optional
            Whether to compare the checksums, which reads the whole file. Otherwise, a damaged file can give wrong
            answers, but no call reads outside of it.

        Raises
        ------
        ArgumentError
            The file cannot be opened.
        PayloadError
            The file is not a set, is truncated, has another version, or is damaged.
        """
        file = os.fsencode(path)
        if verify:
            _core.verify_trie(file)
        return cls.of_core(_core.open_trie(file))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the set to a file for `open`, with its names and aliases.

        If the process or the machine stops, the file is the old or the new one, never a part. A process that has the
        old file open can continue to use it. The start token of `from_prefix_dict` is not saved.

        Raises
        ------
        ArgumentError
            The file cannot be written, or the set has ``tokenization="any"``; save its `payload` instead.
        """
        save_image(_core.TrieImage(self.core), path)


def save_image(image: _core.TrieImage, path: str | os.PathLike[str]) -> None:
    """Write what a set is in a file."""
    try:
        write_whole(Path(path), (image.piece(i) for i in range(len(image))))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"path: {error}") from error
