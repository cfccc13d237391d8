"""What comes back from `choose`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError
from token_trie.sets.trie import TokenTrie


@dataclass(frozen=True)
class Stats:
    """What one decision took."""

    n_prompt: int
    """Tokens of the prompt."""
    n_branches: int
    """Branch points passed: where two or more tokens were allowed."""
    n_forced: int
    """Tokens that the set left no choice about."""
    n_passes: int
    """Forward passes of the model after the prompt's."""
    prompt_ms: float
    """Time to evaluate what the context did not hold of the prompt."""
    decide_ms: float
    """Time from there to the last token."""
    n_evaluated: int = 0
    """Nodes of the trie that the model was asked about, in the modes that score whole answers."""


class Candidate(NamedTuple):
    """An answer that was considered."""

    value: str
    leaf: int
    """Its index in the trie."""
    logprob: float
    """Natural logarithm of its probability."""


@dataclass(frozen=True)
class Decision:
    """One answer.

    Attributes
    ----------
    value : str
        The choice, just as it was given; of a `TokenTrie`, the leaf's name.
    index : int
        Its position among the choices; of a `TokenTrie`, the leaf's.
    tokens : tuple of int
        Its tokens.
    logprob : float
        Greedy and sampled: natural logarithm of the product, over the branch points passed, of the model's probability
        for what was taken, renormalized over what was allowed. Temperature and top_p are left out of it. 0 for a single
        choice. Exact, aligned and beam: of the model's own probability for the whole answer, which is not renormalized.
    stats : Stats
        What it took.
    candidates : tuple of Candidate
        Exact and beam: the n_best best answers, by whole probability.
    gap : float
        Exact and beam: nats that an answer left out may be above the last candidate at most. 0: proved that none is.
    probabilities : ndarray of float64, shape (n_leaves,), or None
        Exact, where the set was scored whole, and aligned: of each leaf of the trie, given that the answer is one of
        them; their sum is 1.
    coverage : float or None
        With probabilities: the model's own probability for the set. Near 0, none of the answers fits.
    trie : TokenTrie
        The set. Leaves are in the order of the choices; equal ones are one.
    """

    value: str
    index: int
    tokens: tuple[int, ...]
    logprob: float
    stats: Stats
    candidates: tuple[Candidate, ...] = ()
    gap: float = 0.0
    probabilities: npt.NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    coverage: float | None = None
    trie: TokenTrie | None = field(default=None, compare=False, repr=False)

    @property
    def entropy(self) -> float:
        """Of the probabilities, in nats: 0 if the model is certain, ln(n_leaves) if all are alike to it."""
        p = self._known()
        return float(-np.sum(p[p > 0] * np.log(p[p > 0])))

    @property
    def margin(self) -> float:
        """Difference of the two largest probabilities."""
        two = np.sort(self._known())[-2:]
        return float(two[-1] - (two[0] if len(two) > 1 else 0.0))

    def top(self, k: int) -> list[tuple[str, float]]:
        """Return the k most probable answers with their probabilities, best first; of equal ones by their tokens."""
        p = self._known()
        assert self.trie is not None
        order = np.lexsort((self.trie._handle.leaf_nodes(), -p))
        return [(self.trie[int(leaf)].name, float(p[leaf])) for leaf in order[:k]]

    def _known(self) -> npt.NDArray[np.float64]:
        if self.probabilities is None:
            raise ArgumentError("no probabilities: they come with mode='exact' on sets scored whole, and 'aligned'")
        return self.probabilities

    def __str__(self) -> str:
        return self.value
