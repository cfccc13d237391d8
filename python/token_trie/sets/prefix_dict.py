"""Sets in the form of RTP-LLM's tree decode configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from token_trie.errors import ArgumentError, PayloadError
from token_trie.native.arguments import check_counts, encode
from token_trie.native.core import _core, logger

PrefixDictLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""The configuration, or the path of a file that holds it as JSON."""

T = TypeVar("T", bound="PrefixDictSet")


class PrefixDictSet:
    """What a `TokenTrie` has to do with RTP-LLM."""

    __slots__ = ()

    _handle: _core.Trie
    _start: int | None

    @classmethod
    def _wrap(cls: type[T], core: _core.Trie) -> T:
        raise NotImplementedError

    @classmethod
    def from_prefix_dict(cls: type[T], given: PrefixDictLike) -> T:
        """Read the set from RTP-LLM's tree decode configuration.

        Parameters
        ----------
        given : dict, str or os.PathLike
            ``{"start_token_id": 225, "end_token_id": 2, "sep": "_", "prefix_dict": {"225": [7, 9], "225_7": [2, 8]}}``,
            or the path of a file that holds it as JSON, which is read as a stream. A key spells the start token and the
            beginning of a member; its list has the tokens that may follow. A beginning without a key is a member, and
            so are one whose list holds the end token and one whose list is empty: here these are ``[9]``, ``[7]`` and
            ``[7, 8]``. Members are named by their position, ``"0"``, ``"1"``, …, in the order of their tokens.

            The first three are 225, 2 and ``"_"`` where left out; unknown keys beside them are skipped. Ids in lists
            that are negative or beyond 32 bits are skipped with a warning, as are keys that nothing leads to.

        Notes
        -----
        The set remembers its start token: `constrain`, `choose` and `TrieMatcher` refuse a prompt that does not end in
        it. In RTP-LLM the end token ends an answer; give it as ``end_tokens``.

        Raises
        ------
        ArgumentError
            The file cannot be read.
        PayloadError
            A wrong type, with its place such as ``prefix_dict["225_7"][1]``; broken JSON; no key for the start token;
            an answer that may end before it began; a separator that token ids cannot be told apart with.
        """
        read = read_prefix_dict(given)
        trie = cls._wrap(read.trie)
        trie._start = read.start
        return trie

    def prefix_dict(self, start: int | None = None, end: int = 2, sep: str = "_") -> dict[str, Any]:
        """Write the set as RTP-LLM's tree decode configuration, for `json.dump` and `from_prefix_dict`.

        Every beginning has a key, whole members too, whose list is the end token: some releases refuse to step to one
        without.

        Parameters
        ----------
        start : int, optional
            The token that prompts end in; by default `start_token`, else 225.
        end : int
            The token that ends an answer; no member may hold it.
        sep : str
            What stands between token ids in a key.

        Raises
        ------
        ArgumentError
            A member holds the end token, start and end are the same, the separator cannot tell ids apart, or the set is
            one of texts in any tokenization.
        """
        default = 225 if self._start is None else self._start
        return write_prefix_dict(self._handle, default if start is None else start, end, sep)

    @property
    def start_token(self) -> int | None:
        """Token that prompts have to end in, of a set read by `from_prefix_dict`."""
        return self._start

    def _check_prompt(self, tokens: Sequence[int]) -> None:
        if self._start is not None and (len(tokens) == 0 or tokens[-1] != self._start):
            ending = f"ends in token {tokens[-1]}" if len(tokens) else "is empty"
            raise ArgumentError(f"prompt: {ending}; the set begins behind its start token, {self._start}")


class ReadDict(NamedTuple):
    """A set as read, and the token that its prompts end in."""

    trie: _core.Trie
    start: int


def read_prefix_dict(given: PrefixDictLike) -> ReadDict:
    """Read a configuration; see `PrefixDictSet.from_prefix_dict`."""
    if isinstance(given, Mapping):
        try:
            source, is_path = json.dumps(given), False
        except (TypeError, ValueError, RecursionError) as error:
            raise PayloadError(f"configuration: {error}") from error
    elif isinstance(given, (str, os.PathLike)):
        source, is_path = os.fsdecode(os.fspath(given)), True
        encode(source, "file")
    else:
        raise ArgumentError(f"configuration: {type(given).__name__} where a dict or the path of a file belongs")
    trie, start, _, _, n_ids, n_keys, keys = _core.read_prefix_dict(source, is_path)
    where = source if is_path else "prefix_dict"
    if n_ids:
        logger.warning("%s: %d ids in lists are no tokens (negative, or beyond 32 bits) and were skipped", where, n_ids)
    if n_keys:
        shown = ", ".join(map(repr, keys)) + (", …" if n_keys > len(keys) else "")
        logger.warning("%s: nothing leads to %d of the keys: %s", where, n_keys, shown)
    return ReadDict(trie, start)


def write_prefix_dict(trie: _core.Trie, start: int, end: int, sep: str) -> dict[str, Any]:
    """Write a set as a configuration; see `PrefixDictSet.prefix_dict`."""
    check_counts(0, start=start, end=end)
    encode(sep, "sep")
    if start == end:
        raise ArgumentError(f"end: {end} is the start token too")
    if not sep or set(sep) & set("-0123456789"):
        raise ArgumentError(f"sep: {sep!r}: token ids cannot be told apart with it")
    if not trie.is_tree:
        raise ArgumentError("a set of texts in any tokenization has no prefix_dict; make it with canonical tokens")
    tokens, offsets = trie.arrays()
    at = np.flatnonzero(tokens == end)
    if len(at):
        name = trie.name(int(np.searchsorted(offsets, at[0], "right")) - 1)
        raise ArgumentError(f"end: {end} is a token of the member {name!r}")
    keys = {0: str(start)}
    n_seen = 1  # nodes are numbered level by level, the children of one node side by side
    lists: dict[str, list[int]] = {}
    for node in range(trie.n_nodes):
        key = keys.pop(node)
        following = trie.children(node).tolist()
        for token in following:
            keys[n_seen] = f"{key}{sep}{token}"
            n_seen += 1
        lists[key] = [end, *following] if trie.leaf(node) is not None else following
    return {"start_token_id": start, "end_token_id": end, "sep": sep, "prefix_dict": lists}
