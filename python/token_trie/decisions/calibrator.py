"""What turns what a model says of a set into probabilities, where its own are not to be taken as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.decisions.binding import Binding
from token_trie.errors import ArgumentError
from token_trie.sets.prompt import Prompt

Base: TypeAlias = Literal["raw", "contextual"]
Floats = npt.NDArray[np.float64]
States = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Contextual:
    """Takes out what a model answers anyway: from each score, that behind a prompt without content is subtracted.

    It needs no labels (contextual calibration, Zhao et al., "Calibrate Before Use", 2021). It helps small models that
    favour some answers, and harms where a model needs no help.

    Parameters
    ----------
    prompt : str, sequence of int, or sequence of chat messages
        The prompt without its content, such as with an empty request.
    """

    prompt: Prompt


@dataclass(frozen=True, eq=False)
class Evaluated(Contextual):
    """The same, where what is subtracted from the score of each choice is known."""

    scores: Floats


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
        """What is added to the scores of the classes, which tells their order; None: not known beforehand."""
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


Calibrating: TypeAlias = Contextual | Calibrator
"""What `calibration` may be."""


def check_calibration(calibration: object) -> None:
    """Raise ArgumentError unless it is one, or None."""
    if calibration is not None and not isinstance(calibration, (Contextual, Calibrator)):
        raise ArgumentError(f"calibration: {type(calibration).__name__} where a Calibration or Contextual belongs")
