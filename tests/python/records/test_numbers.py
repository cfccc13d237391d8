from __future__ import annotations

import random
import re

import pytest
from token_trie.records.gbnf import decimals, integers


@pytest.mark.parametrize("seed", range(40))
def test_integers_are_those_between_the_bounds(seed: int) -> None:
    rng = random.Random(seed)
    low = rng.choice([-1, 1]) * rng.randrange(10 ** rng.randint(1, 4))
    high = low + rng.randrange(10 ** rng.randint(1, 4))
    pattern = re.compile(integers(low, high))
    near = {n for edge in (low, high, 0, -low, -high) for n in range(edge - 120, edge + 120)}
    near |= {rng.randint(-20000, 20000) for _ in range(300)}
    assert {n for n in near if pattern.fullmatch(str(n))} == {n for n in near if low <= n <= high}
    assert not pattern.fullmatch("-0")
    assert not pattern.fullmatch("07")


@pytest.mark.parametrize("seed", range(60))
def test_decimals_are_all_those_between_the_bounds(seed: int) -> None:
    rng = random.Random(seed)
    one = 10**6
    low = rng.choice([rng.randint(-12, 12) * one, rng.randint(-3 * one, 3 * one), rng.randint(-30, 30) * one // 10])
    high = low + rng.choice([0, 1, rng.randint(0, 40), rng.randint(0, 3 * one), rng.randint(1, 25) * one])
    pattern = re.compile(decimals(low, high))
    near = {
        n for edge in (low, high, 0) for n in [*range(edge - 12, edge + 13), edge - one, edge + one, edge + one // 2]
    }
    near |= {rng.randint(low - one, high + one) for _ in range(200)}
    for n in near:
        sign, (whole, part) = "-" if n < 0 else "", divmod(abs(n), one)
        full = f"{sign}{whole}.{part:06}"
        for text in {full, full.rstrip("0").rstrip("."), full.rstrip("0") + ("0" if part == 0 else "")}:
            assert (pattern.fullmatch(text) is not None) == (low <= n <= high), text
    assert not any(pattern.fullmatch(text) for text in ("-0", "-0.0", "00", "1.", ".5", "0.0000000"))
