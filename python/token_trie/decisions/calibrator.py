"""What turns what a model says of a set into probabilities, where its own are not to be taken as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.decisions.binding import Binding
from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_counts, check_numbers
from token_trie.sets.prompt import Prompt

Base: TypeAlias = Literal["raw", "contextual"]
Floats = npt.NDArray[np.float64]
States = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Contextual:
    """Subtracts from each score the score that the answer gets after a prompt without content.

    It needs no labels (contextual calibration, Zhao et al., "Calibrate Before Use", 2021). It helps small models that
    favour some answers whatever the prompt says. For models that do not, it can make answers worse.

    Parameters
    ----------
    prompt : str, sequence of int, or sequence of chat messages
        The prompt without its content, such as with an empty request.
    """

    prompt: Prompt


@dataclass(frozen=True)
class BatchPrior:
    """Divides the probabilities of the answers by their mean over many rows.

    It needs neither labels nor further passes (batch calibration, Zhou et al., "Batch Calibration", 2023). The rows are
    those that are decided; more rows give a better mean. It assumes that the answers are equally frequent. If they are
    not, give `frequencies`; otherwise it makes answers worse.

    Parameters
    ----------
    frequencies : mapping of values to float, optional
        How frequent each answer is, in any unit, above 0.
    window : int
        Number of rows that are read before the first of them is decided. Later rows use the mean of all earlier ones.
    """

    frequencies: Mapping[Any, float] | None = None
    window: int = 512

    def __post_init__(self) -> None:
        check_counts(window=self.window)
        if self.frequencies is not None:
            if not isinstance(self.frequencies, Mapping):
                raise ArgumentError(f"frequencies: {type(self.frequencies).__name__} where a dict belongs")
            for value, frequency in self.frequencies.items():
                check_numbers(**{f"frequencies[{value!r}]": frequency})
                if not 0 < frequency < float("inf"):
                    raise ArgumentError(f"frequencies[{value!r}]: {frequency} is not above 0")

    def shift(self, values: Sequence[Any]) -> Floats:
        """Return what the answers' frequencies add to their log-weights; ArgumentError where one has none."""
        if self.frequencies is None:
            return np.zeros(len(values))
        unknown = [value for value in values if value not in self.frequencies]
        if unknown:
            raise ArgumentError(f"frequencies: none of {unknown[0]!r}")
        return np.log(np.array([self.frequencies[value] for value in values], np.float64))


@dataclass(frozen=True, eq=False)
class Weights:
    """Ranks members by ``logprob + scale * value``, with a value of your own (popularity, price, age).

    Searches stay exact, because the largest value below a node bounds the rank of the members below it. `probabilities`
    are computed from these ranks; `logprob` stays the model's own.

    Parameters
    ----------
    values : array of float, shape (n,)
        One finite value for each choice, in their order, and the same value for equal choices; for a `TokenTrie`, one
        for each leaf, also for leaves that are filtered out. Do not write to the array afterwards.
    scale : float, optional
        How many nats a value of 1 adds.
    """

    values: npt.ArrayLike
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(scale=self.scale)
        if not np.isfinite(self.scale):
            raise ArgumentError(f"scale: {self.scale} is not finite")
        try:
            values = np.asarray(self.values, np.float64)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"values: {error}") from error
        if values.ndim != 1:
            raise ArgumentError(f"values: shape {values.shape} where one dimension belongs")
        with np.errstate(over="ignore", invalid="ignore"):
            of_each = values * self.scale
        wrong = np.flatnonzero(~np.isfinite(of_each))
        if len(wrong):
            raise ArgumentError(f"values[{wrong[0]}]: {values[wrong[0]]} · {self.scale} is not finite")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "added", of_each)

    added: Floats = field(init=False, repr=False)
    """What is added to the score of each."""


@dataclass(frozen=True, eq=False)
class Evaluated(Contextual):
    """The same, where what is subtracted from the score of each choice is known."""

    scores: Floats


class Calibrator(ABC):
    """Turns what a model says of some classes into probabilities; fitted ones are `token_trie.Calibration`."""

    kind: str
    """What it is called."""
    binding: Binding
    """What it was fitted on."""
    base: Base = "raw"
    """Which scores it is for: the model's own, or those with a question's contextual prior taken out."""

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


Calibrating: TypeAlias = Contextual | Calibrator | Weights | BatchPrior | Literal["batch"]
"""What `calibration` may be; "batch" is a `BatchPrior` as it is by default."""


def batch_prior(calibration: object) -> BatchPrior | None:
    """Return what is to be taken over many rows, if that is what calibrates."""
    if isinstance(calibration, str) and calibration == "batch":
        return BatchPrior()
    return calibration if isinstance(calibration, BatchPrior) else None


def check_calibration(calibration: object) -> None:
    """Raise ArgumentError unless it is one, or None."""
    if not (
        calibration is None or batch_prior(calibration) or isinstance(calibration, (Contextual, Calibrator, Weights))
    ):
        given = repr(calibration) if isinstance(calibration, str) else type(calibration).__name__
        raise ArgumentError(
            f"calibration: {given} where a Calibration, Contextual, Weights, BatchPrior or 'batch' belongs"
        )


def refuse_batch_prior(calibration: object) -> None:
    """Raise ArgumentError for what is taken over many rows, where there is one."""
    if batch_prior(calibration) is not None:
        raise ArgumentError("calibration: 'batch' is taken over many rows, as by choose_many and decide_many")
