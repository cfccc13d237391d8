"""A calibration, bound to the leaves of a set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.binding import Binding, spelled_as
from token_trie.decisions.bound import BoundChoices, Reader, bind
from token_trie.decisions.calibrator import (
    Calibrating,
    Calibrator,
    Contextual,
    Evaluated,
    Floats,
    States,
    Weights,
    refuse_batch_prior,
)
from token_trie.errors import ArgumentError, CalibrationError
from token_trie.llama.query import LeafEnd, Query
from token_trie.llama.stream import Stream
from token_trie.native.core import _core
from token_trie.sets.choices import Choices
from token_trie.sets.memory import Memory
from token_trie.sets.trie import TokenTrie

_KEPT, _WEIGHT = 64, 1_000_000


class BoundCalibration(ABC):
    """What calibrates the leaves of a set."""

    kind: str
    """What answers say of it."""
    weights: Floats | None = None
    """What is added to each leaf's score, which tells their order; None: not known beforehand."""
    needs_scores = True
    needs_state = False

    def weights_of(self, leaves: npt.NDArray[np.int64]) -> Floats:
        """Return what is added to the scores of some leaves."""
        assert self.weights is not None  # as they were searched by it
        of_leaves: Floats = self.weights[leaves]
        return of_leaves

    @abstractmethod
    def log_weights(self, leaves: Floats | None, state: States | None) -> Floats:
        """Return log-weights of the leaves, of which a softmax makes probabilities."""

    def ready(self, stream: Stream) -> BoundCalibration:
        """Return it with all that it needs to know, for which a prompt may become the stream's sequence."""
        return self

    @property
    def known(self) -> BoundCalibration | None:
        """The same, if nothing is to be evaluated for it."""
        return self


@dataclass(frozen=True, eq=False)
class Added(BoundCalibration):
    """Known weights."""

    kind: str
    weights: Floats

    def log_weights(self, leaves: Floats | None, state: States | None) -> Floats:
        """Return log-weights of the leaves."""
        assert leaves is not None  # as it needs scores
        return leaves + self.weights


@dataclass(frozen=True, eq=False)
class Fitted(BoundCalibration):
    """What was fitted on rows."""

    calibrator: Calibrator
    choices: BoundChoices[Any]
    classes: npt.NDArray[np.int64]
    """Which of the choices it was fitted on."""

    def __post_init__(self) -> None:
        weights = self.calibrator.weights
        for name in ("kind", "needs_scores", "needs_state"):
            object.__setattr__(self, name, getattr(self.calibrator, name))
        object.__setattr__(self, "weights", None if weights is None else self._of_leaves(weights))

    def log_weights(self, leaves: Floats | None, state: States | None) -> Floats:
        """Return log-weights of the leaves."""
        scores = None if leaves is None else self.choices.aligned(leaves)[None, self.classes]
        found = self.calibrator.log_weights(scores, None if state is None else state[None])
        return self._of_leaves(found[0])

    def _of_leaves(self, of_classes: Floats) -> Floats:
        of_choices = np.zeros(len(self.choices))
        of_choices[self.classes] = of_classes
        of_leaves: Floats = of_choices[self.choices.firsts()]
        return of_leaves


@dataclass(frozen=True, eq=False)
class Prior(BoundCalibration):
    """Choices behind a prompt without content, and the leaves that they are for."""

    tokens: list[int]
    empty: BoundChoices[Any]
    of: BoundChoices[Any]
    leaf_end: LeafEnd
    memory: dict[object, Any]
    """What is remembered of the model: the last scores are."""

    kind = "contextual"

    def log_weights(self, leaves: Floats | None, state: States | None) -> Floats:
        """Return log-weights of the leaves, once it is ready."""
        raise NotImplementedError

    def ready(self, stream: Stream) -> Added:
        """Score the choices, unless that was done before."""
        trie = self.empty.trie

        def make() -> Floats:
            stream.prefill(self.tokens)
            return stream.answer(Query("scores", trie, leaf_end=self.leaf_end)).logprobs

        return self._added(self._scores.get(self._key, len(trie), make))

    @property
    def known(self) -> Added | None:
        """The same, if that was done before."""
        scores = self._scores.find(self._key)
        return None if scores is None else self._added(scores)

    @property
    def _scores(self) -> Memory[Floats]:
        scores: Memory[Floats] = self.memory.setdefault("priors", Memory(_KEPT, _WEIGHT))
        return scores

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.empty.trie, tuple(self.tokens), self.leaf_end

    def _added(self, scores: Floats) -> Added:
        return less(self.of, self.empty.aligned(scores))


def less(choices: BoundChoices[Any], scores: Floats) -> Added:
    """Return what takes out of each leaf's score that of its choice behind a prompt without content."""
    return Added("contextual", -choices.of_left(scores[choices.firsts()], 0.0))


def bind_calibration(
    reader: Reader,
    calibration: Calibrating | None,
    given: TokenTrie | Choices[Any],
    bound: BoundChoices[Any],
    leaf_end: LeafEnd,
    *spelled: Any,
) -> BoundCalibration | None:
    """Bind a calibration to choices that are bound to a prompt.

    Raises
    ------
    ArgumentError
        It is contextual, and what is asked stands on a handle, whose sequence its prompt would take; or of weights,
        there are more or fewer than choices.
    CalibrationError
        It was fitted on something else.
    """
    if calibration is None:
        return None
    if isinstance(calibration, Weights):
        return _weighted(calibration.added, bound)
    if not isinstance(calibration, (Contextual, Calibrator)):
        refuse_batch_prior(calibration)
        return None
    if isinstance(calibration, Evaluated):
        return less(bound, calibration.scores)
    if isinstance(calibration, Contextual):
        if reader.owner == "handle":
            raise ArgumentError("calibration: Contextual goes with a Llama, as its prompt takes the place of another")
        tokens, empty = bind(reader, reader.tokenize(calibration.prompt), given, *spelled)
        return Prior(tokens, empty, bound, leaf_end, reader.known)
    return _fitted(reader, calibration, given, bound, leaf_end, *spelled)


def _weighted(added: Floats, bound: BoundChoices[Any]) -> Added:
    if len(added) != len(bound):
        raise ArgumentError(f"calibration: {len(added):,} weights for {len(bound):,} choices")
    firsts = bound.firsts()
    first_of = firsts if bound.leaf_of is None else firsts[bound.leaf_of]
    others = np.flatnonzero(added != added[first_of]).tolist()
    if others:
        i, first = others[0], first_of[others[0]]
        raise ArgumentError(
            f"calibration: values[{i}] adds {added[i]:g} to {bound.text(i)!r} and values[{first}] {added[first]:g} to "
            f"{bound.text(first)!r}, which are the same answer here"
        )
    return Added("weighted", added[firsts])


def _fitted(
    reader: Reader,
    calibration: Calibrator,
    given: TokenTrie | Choices[Any],
    bound: BoundChoices[Any],
    leaf_end: LeafEnd,
    *spelled: Any,
) -> Fitted:
    """Bind what was fitted on all of the choices, or on what a filter has left of them."""
    left = bound.left()
    classes = left if len(calibration.binding.classes) == len(left) else np.arange(len(bound))
    texts = tuple(map(bound.text, classes.tolist()))
    tokens = spelled_as(given, *spelled, with_filtered=classes is not left)
    calibration.binding.require(Binding(reader.model(), _core.llama_loaded(), "", texts, leaf_end, tokens))
    if calibration.needs_scores and calibration.needs_state and len(left) < len(classes):
        raise CalibrationError(
            "calibration: was fitted with the scores of all answers beside the hidden state, and some of them are "
            "filtered out; fit it anew"
        )
    return Fitted(calibration, bound, classes)
