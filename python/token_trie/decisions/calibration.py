"""Scores behind a prompt without content, to be taken from those behind a prompt: what the model says to anything.

Zhao et al., "Calibrate Before Use: Improving Few-Shot Performance of Language Models", 2021.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from token_trie.decisions.bound import BoundChoices, Reader, bind
from token_trie.decisions.native_scores import score_leaves
from token_trie.decisions.options import LeafEnd
from token_trie.errors import ArgumentError
from token_trie.llama.stream import Stream
from token_trie.sets.choices import Choices
from token_trie.sets.memory import Memory
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie

_KEPT, _WEIGHT = 64, 1_000_000


def bind_empty(reader: Reader, empty: Prompt | None, choices: TokenTrie | Choices[Any], *spelled: Any) -> Prior | None:
    """Bind choices to an empty prompt, if there is one; ArgumentError on a handle, whose sequence it would take."""
    if empty is None:
        return None
    if reader.owner == "handle":
        raise ArgumentError("calibrate: goes with a Llama, as the prompt is evaluated in place of another")
    return Prior(*bind(reader, reader.tokenize(empty), choices, *spelled), reader.known)


class Prior(NamedTuple):
    """Choices behind an empty prompt."""

    tokens: list[int]
    choices: BoundChoices[Any]
    known: dict[object, Any]
    """What is remembered of the model: the last scores are."""

    def scores(self, stream: Stream, leaf_end: LeafEnd) -> npt.NDArray[np.float64]:
        """Log probability of each choice; where not known, the empty prompt becomes the stream's sequence."""
        memory: Memory[npt.NDArray[np.float64]] = self.known.setdefault("priors", Memory(_KEPT, _WEIGHT))
        trie = self.choices.trie

        def make() -> npt.NDArray[np.float64]:
            stream.hold(trie)
            stream.prefill(self.tokens)
            return score_leaves(stream, trie, leaf_end=leaf_end).leaves

        return self.choices.aligned(memory.get((trie, tuple(self.tokens), leaf_end), len(trie), make))
