"""Who questions are asked: a model about a state, or what stands in a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from token_trie.decisions.questions.asked import View
from token_trie.decisions.questions.options import DecideOptions
from token_trie.decisions.questions.scores import Reading, Scored, remembered, score_alone, score_texts, written
from token_trie.native.core import Llama
from token_trie.native.lease import attachment


class Respondent(ABC):
    """Reads questions about one state; errors are those of `decide`."""

    @property
    @abstractmethod
    def known(self) -> dict[object, Any]:
        """What is known of the model."""

    @abstractmethod
    def reading(self, view: View) -> Reading:
        """Return what is to be read about the state."""

    @abstractmethod
    def prior(self, view: View) -> Scored:
        """Return what the question gives its texts without the state."""

    @abstractmethod
    def score(self, reading: Reading) -> Scored:
        """Score texts."""

    @abstractmethod
    def written(self, reading: Reading) -> str:
        """Return the line that the model writes itself, or its beginning."""


class OfLlama(Respondent):
    """A Llama's model about a state."""

    def __init__(self, llm: Llama, state: str, options: DecideOptions) -> None:
        self._llm = llm
        self._state = state
        self._is_reproducible = options.reproducible

    @property
    def known(self) -> dict[object, Any]:
        """What is known of the model."""
        return attachment(self._llm).known

    def reading(self, view: View) -> Reading:
        """Return what is to be read about the state."""
        return view.reading(self._llm, self._state)

    def prior(self, view: View) -> Scored:
        """Return what the question gives its texts without a state, as it was read before, if it was."""
        reading = view.reading(self._llm, None).tokenized(self._llm)
        return remembered(self.known, reading, lambda: self.score(reading), is_reproducible=self._is_reproducible)

    def score(self, reading: Reading) -> Scored:
        """Score texts the way that was asked for."""
        return (score_alone if self._is_reproducible else score_texts)(self._llm, reading)

    def written(self, reading: Reading) -> str:
        """Return the line that the model writes itself, or its beginning."""
        return written(self._llm, reading.prompt)
