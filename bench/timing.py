"""Timing: contenders take turns, so that the noise of the machine is the same for all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns, process_time_ns
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Samples = NDArray[np.int64]
"""Nanoseconds."""
Measure = Callable[[int], dict[str, Samples]]
"""Times something n times: samples for each quantity."""

_SLICE_S = 0.015  # a turn, at least
_MAX_S = 6.0  # all turns together
_MAX_REPEATS = 2000


@dataclass
class Took:
    """Time of a piece of work; the CPU time is of all threads."""

    wall_ns: int = 0
    cpu_ns: int = 0


@contextmanager
def watch() -> Iterator[Took]:
    """Time the body of a `with` statement."""
    took = Took()
    cpu, wall = process_time_ns(), perf_counter_ns()
    try:
        yield took
    finally:
        took.wall_ns, took.cpu_ns = perf_counter_ns() - wall, process_time_ns() - cpu


def timed(call: Callable[[], T]) -> tuple[int, T]:
    """Return the nanoseconds that a call takes, and its result, so that freeing it is not counted."""
    start = perf_counter_ns()
    result = call()
    return perf_counter_ns() - start, result


def repeated(quantity: str, call: Callable[[], object]) -> Measure:
    """Return a measure that times a call."""
    return lambda n: {quantity: np.array([timed(call)[0] for _ in range(n)])}


class _Turns:
    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.taken: dict[str, list[Samples]] = {}
        self.spent_s = self.cost_s = 0.0

    def take(self, n: int) -> None:
        start = perf_counter()
        for quantity, samples in self.measure(n).items():
            self.taken.setdefault(quantity, []).append(samples)
        elapsed = perf_counter() - start
        self.cost_s = elapsed / n
        self.spent_s += elapsed


def take_turns(measures: dict[str, dict[str, Measure]], rounds: int) -> Iterator[dict[str, Any]]:
    """Run every measure in every round, A B C A B C; yield percentiles in microseconds.

    The first call of a measure warms it and estimates how often it fits into a turn. Its samples count only if it takes
    so long that there are few others.
    """
    turns = [(who, _Turns(measure)) for who, of in measures.items() for measure in of.values()]
    for _, turn in turns:
        turn.take(1)
        if turn.cost_s < _MAX_S / rounds:
            turn.take(2)
            turn.taken.clear()
            turn.spent_s = 0.0
    for _ in range(rounds):
        for _, turn in turns:
            if turn.spent_s < _MAX_S:
                turn.take(int(np.clip(_SLICE_S / turn.cost_s, 1, _MAX_REPEATS)))
    for who, turn in turns:
        for quantity, parts in turn.taken.items():
            p10, median, p90 = (round(float(v) / 1000, 4) for v in np.percentile(np.concatenate(parts), [10, 50, 90]))
            yield {"contender": who, "quantity": quantity, "median_us": median, "p10_us": p10, "p90_us": p90}
