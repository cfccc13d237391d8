from __future__ import annotations

import random
import re

import pytest
from token_trie.decisions.records.numbers import decimals, integers


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


@pytest.mark.parametrize("seed", range(40))
def test_decimals_are_within_the_bounds_and_reach_them(seed: int) -> None:
    rng = random.Random(seed)
    low = rng.randint(-12, 12)
    high = low + rng.randint(1, 25)
    open_low, open_high = rng.random() < 0.5, rng.random() < 0.5
    pattern = re.compile(decimals(low, high, open_low=open_low, open_high=open_high))
    texts = [f"{n}.{f}" for n in range(low - 2, high + 3) for f in ("0", "000000", "000001", "5", "999999")]
    texts += ["-0." + f for f in ("1", "000001", "999999")] + [str(n) for n in range(low - 2, high + 3)]
    for text in texts:
        value = float(text)
        inside = (value > low if open_low else value >= low) and (value < high if open_high else value <= high)
        is_matched = pattern.fullmatch(text) is not None
        assert inside or not is_matched, text
        is_plain = "." not in text or (low < value < high and value != int(value))
        assert is_matched or not (inside and is_plain), text
