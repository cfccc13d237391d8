"""A linear head on a model's hidden state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from token_trie.decisions.calibrator import Floats, States
from token_trie.errors import CalibrationError

if TYPE_CHECKING:
    from typing_extensions import Self

    from token_trie.trust.stored import Stored


@dataclass(frozen=True, eq=False)
class Head:
    """Logistic regression on standardized features: the hidden state, and where they help the classes' log-shares.

    Attributes
    ----------
    mean, scale : ndarray of float64, shape (n_features,)
    weights : ndarray of float64, shape (n_classes, n_features)
    intercept : ndarray of float64, shape (n_classes,)
    takes_scores : bool
    """

    mean: Floats
    scale: Floats
    weights: Floats
    intercept: Floats
    takes_scores: bool

    def log_weights(self, scores: Floats | None, states: States | None) -> Floats:
        """Return log-weights, shape (n_rows, n_classes)."""
        return self.log_weights_of(features_of(scores if self.takes_scores else None, states))

    def log_weights_of(self, features: Floats) -> Floats:
        """Return those of features."""
        if features.shape[1] != len(self.mean):
            raise CalibrationError(f"head: was fitted on {len(self.mean)} features, and these are {features.shape[1]}")
        found: Floats = ((features - self.mean) / self.scale) @ self.weights.T + self.intercept
        return found

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON; figures to seven digits."""
        return {
            "takes_scores": self.takes_scores,
            **{name: _rounded(getattr(self, name)) for name in ("mean", "scale", "weights", "intercept")},
        }

    @classmethod
    def from_stored(cls, read: Stored, n_classes: int) -> Self:
        """Read what `to_dict` gave; CalibrationError where it is something else."""
        mean = read.floats("mean", (None,))
        n = len(mean)
        scale = read.floats("scale", (n,))
        if not (scale > 0).all():
            raise CalibrationError("head.scale: a number that is not above 0")
        return cls(
            mean,
            scale,
            read.floats("weights", (n_classes, n)),
            read.floats("intercept", (n_classes,)),
            read.boolean("takes_scores"),
        )


def features_of(scores: Floats | None, states: States | None) -> Floats:
    """Return what a head takes of rows."""
    assert states is not None
    features = states.astype(np.float64)
    if scores is None:
        return features
    shares = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return np.concatenate([features, shares], axis=1)


def _rounded(values: Floats) -> Any:
    return [float(f"{one:.7g}") for one in values] if values.ndim == 1 else [_rounded(row) for row in values]
