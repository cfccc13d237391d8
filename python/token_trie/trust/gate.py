"""The confidence from which on answers need nobody to look at them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from token_trie.decisions.learn import import_sklearn
from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_numbers

Floats = npt.NDArray[np.float64]

N_STEPS = 50
"""Of the grid of confidences that are looked at."""
N_STARTS = 4
"""Where tests begin."""


@dataclass(frozen=True)
class Gate:
    """A threshold above which answers reach a target accuracy, with a given confidence.

    Attributes
    ----------
    target_accuracy, assurance : float
        The requested accuracy, and the requested confidence that it is reached.
    threshold : float or None
        Answers with at least this probability are accepted; None: no threshold was found, and no answer is accepted.
    n : int
        Number of rows that were used.
    n_decided : int
        Number of these rows with an accepted answer.
    accuracy : float or None
        Accuracy of the accepted answers.
    lower_bound : float or None
        Lower bound of this accuracy, with the requested confidence.
    """

    target_accuracy: float
    assurance: float
    threshold: float | None
    n: int
    n_decided: int
    accuracy: float | None
    lower_bound: float | None

    @property
    def coverage(self) -> float:
        """The share of rows with an accepted answer."""
        return self.n_decided / self.n if self.n else 0.0

    def decides(self, confidence: float) -> bool:
        """Tell whether an answer is accepted, so that no person needs to check it."""
        return self.threshold is not None and confidence >= self.threshold

    def __str__(self) -> str:
        if self.threshold is None:
            wanted = f"{self.target_accuracy:.0%} right with {self.assurance:.0%} assurance"
            return f"no confidence has {wanted} on {self.n:,} rows"
        said = f"from {self.threshold:.3f} on, {self.n_decided:,} of {self.n:,} rows, {self.accuracy:.1%} of them right"
        return f"{said}, at least {self.lower_bound:.1%} with {self.assurance:.0%} assurance"


def find_gate(
    confidence: Floats, is_right: npt.NDArray[np.bool_], target_accuracy: float = 0.95, assurance: float = 0.95
) -> Gate:
    """Find the lowest confidence from which on answers are right so often.

    Confidences are looked at on a grid of numbers of rows, fixed before any is looked at, each by the exact lower
    bound of Clopper and Pearson (1934) on the accuracy of all rows at or above it. Tests in a fixed order, of which the
    first that fails ends it, need no correction; here there are a few such orders, which begin at different places and
    go down, so that a few sure mistakes do not end all, and each has its part of what may go wrong (fixed-sequence
    testing with several starts; Angelopoulos et al., "Learn then Test", 2021).

    Parameters
    ----------
    confidence : ndarray of float64, shape (n_rows,)
        The probability of each answer, on rows that nothing was fitted on.
    is_right : ndarray of bool, shape (n_rows,)
    target_accuracy, assurance : float
        In (0, 1).

    Returns
    -------
    Gate

    Raises
    ------
    ArgumentError
        They are none.
    """
    check_numbers(target_accuracy=target_accuracy, assurance=assurance)
    for name, value in (("target_accuracy", target_accuracy), ("assurance", assurance)):
        if not 0 < value < 1:
            raise ArgumentError(f"{name}: {value} is not between 0 and 1")
    import_sklearn("metrics")  # which brings scipy
    from scipy.stats import beta

    order = np.argsort(-confidence, kind="stable")
    ranked, n_right = confidence[order], np.cumsum(is_right[order])
    risk = (1 - assurance) / N_STARTS
    found = Gate(target_accuracy, assurance, None, len(confidence), 0, None, None)
    grid = _grid(len(confidence), target_accuracy, risk)
    for start in np.linspace(0, len(grid), N_STARTS, endpoint=False).astype(int).tolist():
        for at in grid[start:]:
            # Rows of the same confidence are decided together.
            n = int(np.searchsorted(-ranked, -ranked[at - 1], side="right"))
            right = int(n_right[n - 1])
            lower = float(beta.ppf(risk, right, n - right + 1)) if right else 0.0
            if lower < target_accuracy:
                break
            if n > found.n_decided:
                found = Gate(target_accuracy, assurance, float(ranked[n - 1]), len(ranked), n, right / n, lower)
    return found


def _grid(n: int, target_accuracy: float, risk: float) -> list[int]:
    """Return numbers of rows: from the fewest that could do, with none wrong, up to all."""
    fewest = int(np.ceil(np.log(risk) / np.log(target_accuracy)))
    return sorted(set(np.linspace(fewest, n, N_STEPS).round().astype(int).tolist())) if n >= fewest else []
