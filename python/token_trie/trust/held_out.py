"""What a calibration is worth on rows that it was not fitted on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from token_trie.errors import CalibrationError

if TYPE_CHECKING:
    from typing_extensions import Self

    from token_trie.trust.stored import Stored

Floats = npt.NDArray[np.float64]

_SCALE = 10_000


def in_steps(confidence: Floats) -> Floats:
    """Return confidences as a file has them, which are never more than they were."""
    stepped: Floats = np.floor(confidence * _SCALE) / _SCALE
    return stepped


@dataclass(frozen=True)
class Measured:
    """How good probabilities are."""

    accuracy: float
    log_loss: float
    brier: float
    ece: float
    """Over ten bins of equal width."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows of the fit, each answered by what was fitted on others.

    Attributes
    ----------
    n_rows, n_folds : int
    calibrated, raw : Measured
        With the calibration, and as the model has it.
    confidence : ndarray of float64, shape (n_rows,)
        The probability of each answer, in steps of 0.0001.
    is_right : ndarray of bool, shape (n_rows,)
    groups : ndarray of int64, shape (n_rows,)
        Equal rows have the same number.
    probabilities : ndarray of float64, shape (n_rows, n_classes), or None
        All of them, as they were when it was fitted; a file does not have them.
    """

    n_rows: int
    n_folds: int
    calibrated: Measured
    raw: Measured
    confidence: Floats
    is_right: npt.NDArray[np.bool_]
    groups: npt.NDArray[np.int64]
    probabilities: Floats | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "n_rows": self.n_rows,
            "n_folds": self.n_folds,
            "calibrated": vars(self.calibrated),
            "raw": vars(self.raw),
            "confidence": np.rint(self.confidence * _SCALE).astype(int).tolist(),
            "is_right": "".join("1" if right else "0" for right in self.is_right),
            "groups": self.groups.tolist(),
        }

    @classmethod
    def from_stored(cls, read: Stored) -> Self:
        """Read what `to_dict` gave; CalibrationError where it is something else."""
        is_right = read.text("is_right")
        if set(is_right) - {"0", "1"}:
            raise CalibrationError("held_out.is_right: a text of 0 and 1 belongs here")
        own, raw = (
            Measured(*(inner.number(field.name) for field in fields(Measured)))
            for inner in map(read.inner, ("calibrated", "raw"))
        )
        confidence = read.floats("confidence", (len(is_right),)) / _SCALE
        if len(is_right) != read.integer("n_rows"):
            raise CalibrationError(f"held_out.is_right: {len(is_right)} rows, where n_rows is {read.integer('n_rows')}")
        if len(confidence) and not (confidence.min() >= 0 and confidence.max() <= 1):
            raise CalibrationError(f"held_out.confidence: a number outside 0 to {_SCALE}")
        right = np.array([one == "1" for one in is_right], np.bool_)
        groups = read.floats("groups", (len(is_right),))
        if not ((groups >= 0) & (groups < max(1, len(groups))) & (groups == np.floor(groups))).all():
            raise CalibrationError(f"held_out.groups: a number that is none of 0 to {len(groups) - 1}")
        return cls(
            read.integer("n_rows"), read.integer("n_folds"), own, raw, confidence, right, groups.astype(np.int64)
        )
