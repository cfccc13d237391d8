"""The interface of a contender."""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol, TypeVar

import numpy as np

from bench.native import Samples
from bench.sets import Answers

# Times something n times: one array of nanoseconds a quantity.
Measure = Callable[[int], dict[str, Samples]]

T = TypeVar("T")


class Contender(Protocol):
    """One engine, ready for one model."""

    def measures(self, answers: Answers) -> dict[str, Measure]:
        """Build the set and return what can be timed on it."""
        ...


def timed(call: Callable[[], T]) -> tuple[int, T]:
    """Return the nanoseconds that a call takes, and its result, so that freeing it is not counted."""
    start = perf_counter_ns()
    result = call()
    return perf_counter_ns() - start, result


def samples(values: list[int]) -> Samples:
    """Return nanoseconds as an array."""
    return np.array(values, dtype=np.int64)
