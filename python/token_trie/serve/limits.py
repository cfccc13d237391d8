"""Limits of requests: their size, their time, and the memory that all of them share; what a request has cost."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from token_trie.serve.errors import Place, RefusedError, invalid

_FREE_BYTES = 64 << 10
"""Bytes that each request may take without a claim."""


@dataclass(frozen=True)
class Limits:
    """Limits of the size and time of requests."""

    body: int = 8 << 20
    """Maximum size of a body, in bytes."""
    depth: int = 64
    """Maximum nesting of JSON."""
    questions: int = 400
    options: int = 255
    """Maximum number of options of a choice."""
    levels: int = 10
    """Maximum number of levels of a score."""
    requests: int = 256
    """Maximum number of requests in progress."""
    seconds: float = 120.0
    """Maximum time of a request, from its head to the last byte of its answer."""
    memory: int = 192 << 20
    """Bytes that all requests in progress may take together, estimated from their bodies."""
    readings: int = 4096
    """Maximum number of readings of a request: each question counts once per order."""


class Budget:
    """Memory shared by the requests in progress."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.taken = 0
        self.changing = threading.Lock()

    def claim(self) -> Claim:
        """Return the claim of a request."""
        return Claim(self)


class Usage(NamedTuple):
    """The tokens of a request."""

    n_read: int
    """Tokens of prompts that were evaluated."""
    n_cached: int
    """Tokens of prompts from the prefix cache."""
    n_answers: int
    """Tokens of the answers."""

    @property
    def n_input(self) -> int:
        """Input tokens, with the state that questions share counted once."""
        return self.n_read + self.n_cached


class Claim:
    """Memory of one request until its end. Thread-safe."""

    def __init__(self, budget: Budget) -> None:
        self.usage: Usage | None = None
        """Tokens of the request, when it is answered."""
        self._budget = budget
        self._n = self._taken = 0
        self._is_over = False

    def add(self, n_bytes: int) -> None:
        """Claim more; RefusedError if it exceeds the total, or what is left now, or after the end."""
        budget = self._budget
        with budget.changing:
            more = max(self._n + n_bytes - _FREE_BYTES, 0) - self._taken
            if self._taken + more > budget.max_bytes:
                raise RefusedError(
                    "too_large", f"the request would take more than {budget.max_bytes:,} bytes of memory"
                )
            if self._is_over or budget.taken + more > budget.max_bytes:
                raise RefusedError("busy", "the requests in progress take all memory for requests; come again")
            budget.taken += more
            self._n += n_bytes
            self._taken += more

    def release(self) -> None:
        """Give everything back, and end."""
        with self._budget.changing:
            self._budget.taken -= self._taken
            self._n = self._taken = 0
            self._is_over = True


def check_count(n: int, most: int, place: Place) -> None:
    """Refuse more of something than a request may have."""
    if n > most:
        raise invalid(f"must be at most {most:,}, not {n:,}", place, "too_long")


def check_depth(value: Any, depth: int = Limits.depth, place: Place = ()) -> None:
    """Refuse a JSON value with deeper nesting, or with a number too large for a float, which JSON has no word for."""
    for n, level in enumerate(levels_of(value)):
        if n > depth:
            raise invalid(f"more than {depth} levels of JSON", place, "json_depth")
        if math.inf in level or -math.inf in level:
            raise invalid("a number is larger than 1.8e308", place, "finite_number")


def levels_of(value: Any) -> Iterator[list[Any]]:
    """Yield a JSON value, the values in it, the values in these, and so on."""
    level = [value]
    while level:
        yield level
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list)))
        level = list(itertools.chain.from_iterable(inner))
