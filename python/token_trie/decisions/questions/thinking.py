"""Which decisions think first: close ones, as far as their share goes."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

from token_trie.decisions.questions.answered import Answered
from token_trie.decisions.think import Think

K = TypeVar("K")


class Thoughts:
    """How many decisions were made, and how many of them thought first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_decisions = 0
        self._n_thoughts = 0

    def claim(self, n_decisions: int, n_close: int, share: float) -> int:
        """Count more decisions, of which some are close; return how many of these may think."""
        with self._lock:
            self._n_decisions += n_decisions
            most = math.ceil(share * self._n_decisions - 1e-9)  # 0.2 * 15 is a little above 3
            n = max(0, min(n_close, most - self._n_thoughts))
            self._n_thoughts += n
            return n


def to_think_about(known: dict[object, Any], think: Think, answers: Mapping[K, Answered[Any]]) -> list[K]:
    """Return the answers about a state that are to be thought about, the closest first.

    Parameters
    ----------
    known : dict
        What is known of the model, where they are counted.
    """
    leads = {name: lead_of(answer) for name, answer in answers.items()}
    close = sorted((name for name in leads if leads[name] < think.margin), key=leads.__getitem__)
    thoughts: Thoughts = known.setdefault(("thoughts", think.share), Thoughts())
    return close[: thoughts.claim(len(answers), len(close), think.share)]


def lead_of(answer: Answered[Any]) -> float:
    """Return by how much the best is above the next; 1 where there is no other."""
    best = sorted(answer.probabilities.values())[-2:]
    return best[1] - best[0] if len(best) > 1 else 1.0
