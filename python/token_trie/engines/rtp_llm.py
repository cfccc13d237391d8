"""RTP-LLM's tree decode configuration, which `TokenTrie.from_prefix_dict` reads.

In ``{"start_token_id": 225, "end_token_id": 2, "sep": "_", "prefix_dict": {"225": [7, 9], "225_7": [2, 8]}}``, a key
spells the start token and a prefix of members, and its list has the tokens that may follow. A prefix is a member if it
has no key, or if its list is empty or holds the end token: here ``[9]``, ``[7, 8]`` and ``[7]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from token_trie.errors import ArgumentError
from token_trie.native.options import check_counts, encode
from token_trie.sets.trie import TokenTrie


def write_prefix_dict(trie: TokenTrie, start: int | None = None, end: int = 2, sep: str = "_") -> dict[str, Any]:
    """Write a set as RTP-LLM's tree decode configuration, for `json.dump` and `TokenTrie.from_prefix_dict`.

    Every prefix has a key, whole members too, with the end token as the list: some releases refuse to step to a prefix
    without a key.

    Parameters
    ----------
    trie : TokenTrie
        A set of token sequences.
    start : int, optional
        The token that prompts end in; by default the set's `start_token`, else 225.
    end : int
        The token that ends an answer; no member may hold it.
    sep : str
        The separator of token ids in a key.

    Raises
    ------
    ArgumentError
        A member holds the end token, start and end are equal, or ids are ambiguous with the separator.
    """
    if start is None:
        start = 225 if trie.start_token is None else trie.start_token
    check_counts(0, start=start, end=end)
    encode(sep, "sep")
    if start == end:
        raise ArgumentError(f"end: {end} is the start token too")
    if not sep or set(sep) & set("-0123456789"):
        raise ArgumentError(f"sep: {sep!r}: it does not separate token ids")
    core = trie.core
    tokens, offsets = core.arrays()
    at = np.flatnonzero(tokens == end)
    if len(at):
        name = core.name(int(np.searchsorted(offsets, at[0], "right")) - 1)
        raise ArgumentError(f"end: {end} is a token of the member {name!r}")
    keys = {0: str(start)}
    n_seen = 1  # nodes are numbered level by level, the children of one node side by side
    lists: dict[str, list[int]] = {}
    for node in range(core.n_nodes):
        key = keys.pop(node)
        following = core.children(node).tolist()
        for token in following:
            keys[n_seen] = f"{key}{sep}{token}"
            n_seen += 1
        lists[key] = [end, *following] if core.leaf(node) is not None else following
    return {"start_token_id": start, "end_token_id": end, "sep": sep, "prefix_dict": lists}
