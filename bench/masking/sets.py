"""Sets of any size with the same branching, over a vocabulary that needs no model."""

import numpy as np

from bench.sets import FAN_OUT, Answers


def fan_out(n_vocab: int, n: int) -> Answers:
    """Sequences over the same 30 tokens: numbers in base 30, first digit fastest, as long as n of them need."""
    alphabet = np.linspace(1000, n_vocab - 1000, FAN_OUT, dtype=np.int64)
    depth = 1
    while FAN_OUT**depth < n:
        depth += 1
    digits = np.arange(n)[:, None] // FAN_OUT ** np.arange(depth) % FAN_OUT
    return Answers(f"{n:,} at fan-out {FAN_OUT}", [], alphabet[digits].tolist())
