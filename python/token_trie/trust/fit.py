"""What is fitted: how log-weights are made of scores, or of a state."""

from __future__ import annotations

from dataclasses import dataclass

from token_trie.decisions.calibrator import Base, Calibrator, Floats, States
from token_trie.trust.head import Head


@dataclass(frozen=True, eq=False, kw_only=True)
class Fit(Calibrator):
    """How log-weights are made; see `Calibration`."""

    kind: str
    bias: Floats
    temperature: float = 1.0
    head: Head | None = None
    base: Base = "raw"

    @property
    def weights(self) -> Floats | None:
        """What is added to the scores of the classes, which tells their order; None of a head."""
        return None if self.head is not None else self.bias

    @property
    def needs_scores(self) -> bool:
        """Whether it takes scores."""
        return self.head is None or self.head.takes_scores

    @property
    def needs_state(self) -> bool:
        """Whether it takes the hidden state of the prompt's last token."""
        return self.head is not None

    def log_weights(self, scores: Floats | None, states: States | None) -> Floats:
        """Return log-weights, of which a softmax makes probabilities; see `Calibrator.log_weights`."""
        if self.head is not None:
            return self.head.log_weights(scores, states) / self.temperature
        assert scores is not None  # as it needs them
        return (scores + self.bias) / self.temperature
