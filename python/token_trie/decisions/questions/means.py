"""What states give the options of a question in the mean, which may be taken out in place of the contextual prior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from token_trie.decisions.over_rows import LEAST
from token_trie.decisions.questions.scores import Floats, Scored
from token_trie.errors import TokenTrieError


@dataclass(frozen=True, eq=False)
class Mean:
    """Of the scores of some states."""

    n: int
    total: Floats
    """Of the log-scores of each text."""

    def and_of(self, scored: Scored | TokenTrieError) -> Mean:
        """Return the mean of these and one more; a state whose scores are no numbers tells nothing."""
        if isinstance(scored, TokenTrieError) or not np.isfinite(scored.logprobs).all():
            return self
        return Mean(self.n + 1, self.total + scored.logprobs)

    @property
    def scored(self) -> Scored | None:
        """The mean, as a prior; None of few."""
        if self.n < LEAST:
            return None
        return Scored(self.total / self.n, np.ones_like(self.total), math.nan, 0, 0)


NOTHING = Mean(0, np.zeros(()))


def priors_of_means(means: Sequence[Mean]) -> list[Scored | None]:
    """Return the means of a question's views as its priors; none at all where one is of few."""
    found = [mean.scored for mean in means]
    return found if None not in found else [None] * len(found)
