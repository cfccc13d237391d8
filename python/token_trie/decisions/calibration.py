"""Scores behind a prompt without content, to be taken from those behind a prompt: what the model says to anything.

Zhao et al., "Calibrate Before Use: Improving Few-Shot Performance of Language Models", 2021.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.decisions.binding import Binding
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

Base: TypeAlias = Literal["raw", "contextual"]
Floats = npt.NDArray[np.float64]
States = npt.NDArray[np.float32]


class Calibrator(ABC):
    """Turns what a model says of some classes into probabilities; fitted ones are `token_trie.Calibration`."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """What it is called."""

    @property
    @abstractmethod
    def binding(self) -> Binding:
        """What it was fitted on."""

    @property
    def base(self) -> Base:
        """Which scores it is for: the model's own, or those with a question's contextual prior taken out."""
        return "raw"

    @property
    def weights(self) -> Floats | None:
        """What is added to the scores of each class, shape (n_classes,), so that their order is told before any
        temperature; None: that is not known beforehand, as of a head."""
        return None

    @property
    def needs_scores(self) -> bool:
        """Whether it takes scores."""
        return True

    @property
    def needs_state(self) -> bool:
        """Whether it takes the hidden state of the prompt's last token."""
        return False

    @abstractmethod
    def log_weights(self, scores: Floats | None, states: States | None) -> Floats:
        """Return log-weights, of which a softmax makes probabilities.

        Parameters
        ----------
        scores : ndarray of float64, shape (n_rows, n_classes), or None
            Those of the base; None where it needs none.
        states : ndarray of float32, shape (n_rows, n_embd), or None
            Likewise.

        Returns
        -------
        ndarray of float64, shape (n_rows, n_classes)
        """


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
