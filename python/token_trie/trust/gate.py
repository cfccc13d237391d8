"""`Gate`: the confidence from which answers are accepted without review."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats, Ints
from token_trie.decisions.gold import import_sklearn
from token_trie.errors import ArgumentError
from token_trie.native.options import check_numbers
from token_trie.trust.metrics import effective, read_groups, shares_of

N_STEPS = 50
"""Number of tested thresholds."""
N_STARTS = 4
"""Number of test sequences."""


@dataclass(frozen=True)
class Gate:
    """A threshold above which answers reach a target accuracy, with a given confidence."""

    target_accuracy: float
    assurance: float
    """The requested accuracy, and the requested confidence that it is reached."""
    threshold: float | None
    """Answers with at least this probability are accepted; None: no threshold was found, and no answer is
    accepted."""
    n: int
    """Number of rows that were used."""
    n_different: int
    """Number of different rows among them."""
    n_decided: int
    """Number of the rows with an accepted answer."""
    accuracy: float | None
    """Accuracy of the accepted answers."""
    lower_bound: float | None
    """Lower bound of this accuracy, and of the accuracy over different rows, with the requested confidence."""

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
            return f"no confidence has {wanted} on {self._rows}; more rows or a lower target may find one"
        said = f"from {self.threshold:.3f} on, {self.n_decided:,} of {self._rows}, {self.accuracy:.1%} of them right"
        return f"{said}, at least {self.lower_bound:.1%} with {self.assurance:.0%} assurance"

    @property
    def _rows(self) -> str:
        return f"{self.n:,} rows" + ("" if self.n == self.n_different else f" ({self.n_different:,} different)")


def find_gate(
    confidence: Floats,
    is_right: npt.NDArray[np.bool_],
    target_accuracy: float = 0.95,
    assurance: float = 0.95,
    *,
    groups: npt.ArrayLike | None = None,
    n_ways: int = 1,
) -> Gate:
    """Find the lowest confidence from which answers on held-out rows reach a target accuracy, with an assurance.

    The thresholds form a grid over numbers of different rows, fixed in advance. Each is tested by the lower of two
    bounds of Clopper and Pearson (1934): on the accuracy over different rows, which is exact, and on the accuracy over
    all rows, with the effective sample size of `effective`. Tests in a fixed order that stop at the first failure need
    no correction. Several such sequences start at different thresholds, so that a few confident mistakes do not end all
    of them; they share the risk equally (Angelopoulos et al., "Learn then Test", 2021). So do the `n_ways` to answer
    from which this one was chosen on the same rows. Rows of one group are equal; by default no two rows are.
    ArgumentError if a target is outside (0, 1), or groups do not fit the rows.
    """
    check_numbers(target_accuracy=target_accuracy, assurance=assurance)
    for name, value in (("target_accuracy", target_accuracy), ("assurance", assurance)):
        if not 0 < value < 1:
            raise ArgumentError(f"{name}: {value} is not between 0 and 1")
    own = read_groups(groups, len(confidence))
    order = np.argsort(-confidence, kind="stable")
    ranked, is_right, own = confidence[order], is_right[order], own[order]
    is_first = np.zeros(len(own), np.bool_)
    is_first[np.unique(own, return_index=True)[1]] = True
    n_different = np.cumsum(is_first)
    n_all = int(is_first.sum())
    risk = (1 - assurance) / N_STARTS / n_ways
    found = Gate(target_accuracy, assurance, None, len(own), n_all, 0, None, None)
    grid = _grid(n_all, target_accuracy, risk)
    for start in np.linspace(0, len(grid), N_STARTS, endpoint=False).astype(int).tolist():
        for count in grid[start:]:
            # Rows of equal confidence are accepted together.
            threshold = ranked[np.searchsorted(n_different, count)]
            n = int(np.searchsorted(-ranked, -threshold, side="right"))
            bound = lower_bound(is_right[:n], own[:n], risk)
            if bound < target_accuracy:
                break
            if n > found.n_decided:
                accuracy = float(is_right[:n].mean())
                found = Gate(target_accuracy, assurance, float(threshold), len(own), n_all, n, accuracy, bound)
    return found


def lower_bound(is_right: npt.NDArray[np.bool_], groups: Ints, risk: float) -> float:
    """Return the lower of two bounds, each wrong with probability risk: on the accuracy over rows, and over groups."""
    import_sklearn("metrics")  # brings scipy
    from scipy.stats import beta

    shares, sizes = shares_of(is_right, groups)
    bounds = []
    for weights in (sizes, np.ones(len(sizes))):
        share, n = effective(shares, weights)
        bounds.append(float(beta.ppf(risk, share * n, n - share * n + 1)) if share > 0 else 0.0)
    return min(bounds)


def _grid(n: int, target_accuracy: float, risk: float) -> list[int]:
    """Return numbers of different rows, from the fewest that pass if all are right up to all."""
    fewest = int(np.ceil(np.log(risk) / np.log(target_accuracy)))
    return sorted(set(np.linspace(fewest, n, N_STEPS).round().astype(int).tolist())) if n >= fewest else []
