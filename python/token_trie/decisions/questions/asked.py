"""A question as it is asked: the readings that it takes, and the answer that they make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from token_trie.decisions.calibrator import BatchPrior
from token_trie.decisions.questions.answered import Answered
from token_trie.decisions.questions.scores import Reading, Scored
from token_trie.native.core import Llama


class View(ABC):
    """One of the readings, whatever the state."""

    @abstractmethod
    def reading(self, llm: Llama, state: str | None) -> Reading:
        """Return what is to be read about a state, or None for the absent one."""


class Asked(ABC):
    """A question."""

    @property
    def takes_prior(self) -> bool:
        """Whether what it gives without a state counts."""
        return True

    def wanting(self, reading: Reading) -> Reading:
        """Return a reading of one of its views with what the answer takes."""
        return reading

    @property
    @abstractmethod
    def views(self) -> Sequence[View]:
        """Its readings."""

    def over_rows(self, prior: BatchPrior) -> Asked:
        """Return it as it is answered where the prior of each view is the mean over many states."""
        return self

    @abstractmethod
    def answer(self, scored: Sequence[Scored], priors: Sequence[Scored | None]) -> Answered[Any]:
        """Return the answer that readings make, of as many views as there are readings."""

    def is_sure(self, scored: Sequence[Scored], priors: Sequence[Scored | None]) -> bool:
        """Tell whether further readings are not needed."""
        return False
