"""Contenders take turns, so that the noise of the machine is the same for all."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from bench.contenders import Measure
from bench.native import Samples

_SLICE_S = 0.015  # a turn, at least
_MOST_S = 6.0  # all turns together, at most
_MOST_REPEATS = 2000


class _Turns:
    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.taken: dict[str, list[Samples]] = {}
        self.spent_s = 0.0
        self.cost_s = 0.0

    def take(self, n: int) -> None:
        start = perf_counter()
        for quantity, samples in self.measure(n).items():
            self.taken.setdefault(quantity, []).append(samples)
        elapsed = perf_counter() - start
        self.cost_s = elapsed / n
        self.spent_s += elapsed


def take_turns(
    measures: dict[Any, dict[str, Measure]], rounds: int, advance: Callable[[], object]
) -> dict[Any, dict[str, Samples]]:
    """Run every measure in every round, A B C A B C, and return all samples by contender and quantity.

    The first call of a measure warms it and tells how often it fits into a turn; its samples count only if it takes so
    long that it has few others.
    """
    turns = {(who, what): _Turns(m) for who, them in measures.items() for what, m in them.items()}
    for turn in turns.values():
        turn.take(1)
        if turn.cost_s < _MOST_S / rounds:
            turn.take(2)
            turn.taken.clear()
            turn.spent_s = 0.0
    for _ in range(rounds):
        for turn in turns.values():
            if turn.spent_s < _MOST_S:
                turn.take(int(np.clip(_SLICE_S / turn.cost_s, 1, _MOST_REPEATS)))
        advance()
    out: dict[Any, dict[str, Samples]] = {who: {} for who in measures}
    for (who, _), turn in turns.items():
        out[who] |= {quantity: np.concatenate(parts) for quantity, parts in turn.taken.items()}
    return out
