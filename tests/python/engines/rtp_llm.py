"""RTP-LLM's tree decoding as its configuration describes it, told plainly: text keys, a list each. Knows no trie.

A state without a key allows the end token in some releases and is an error in others, so here it is an error.
"""

from __future__ import annotations

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
