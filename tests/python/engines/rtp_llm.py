"""RTP-LLM's tree decoding as its configuration describes it, told plainly: text keys, a list each. Knows no trie.

A state without a key allows the end token in some releases and is an error in others, so here it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class TreeDecode:
    def __init__(self, config: dict[str, Any]) -> None:
        self._lists = config["prefix_dict"]
        self._end = config["end_token_id"]
        self._sep = config["sep"]
        self._start = str(config["start_token_id"])
        self.path: list[int] = []

    def candidates(self) -> set[int]:
        if self._end in self.path:
            return {self._end}
        return set(self._lists[self._sep.join([self._start, *map(str, self.path)])])


def prefix_dict_of(members: Iterable[Sequence[int]], start: int = 225, end: int = 2, sep: str = "_") -> dict[str, Any]:
    """Write members as a configuration, with a key for whole ones too."""
    lists: dict[str, set[int]] = {}
    for member in members:
        for i, token in enumerate([*member, end]):
            lists.setdefault(sep.join(map(str, [start, *member[:i]])), set()).add(token)
    config = {key: sorted(tokens) for key, tokens in lists.items()}
    return {"start_token_id": start, "end_token_id": end, "sep": sep, "prefix_dict": config}
