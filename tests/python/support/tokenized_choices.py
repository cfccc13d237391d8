"""A prompt and five actions, and choices as the package tokenizes them after a prompt."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from token_trie.native.core import vocab_of
from token_trie.sets.prompt import tokenize_prompt
from token_trie.sets.tokenization import find_seam, spell

PROMPT = "The user wants to read a file. Action:"
ACTIONS = ["READ", "READ_FILE", "SEND_EMAIL", "SEND_MESSAGE", "SET_ALARM"]


class Fitted(NamedTuple):
    """Token sequences that follow the first n_kept tokens of a prompt."""

    prompt: list[int]
    n_kept: int
    tokens: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]

    def rows(self) -> list[tuple[int, ...]]:
        return [tuple(row.tolist()) for row in np.split(self.tokens, self.offsets[1:-1])]


def fit_choices(llm: Any, prompt: Any, choices: list[str], *, leading_space: bool | None = None) -> Fitted:
    tokens = [] if prompt is None else tokenize_prompt(llm, prompt)
    seam = find_seam(vocab_of(llm), tokens, leading_space)
    is_whole = len(seam.tail) == len(tokens)
    spelled, offsets, n_moved = spell(vocab_of(llm), seam, choices, all_spaced=leading_space is True, is_whole=is_whole)
    return Fitted(tokens, len(tokens) - n_moved, spelled, offsets)
