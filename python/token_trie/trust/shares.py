"""Log-weights as probabilities, and what those lose."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from token_trie.decisions.calibrator import Floats

Ints = npt.NDArray[np.int64]


def log_softmax(weights: Floats) -> Floats:
    """Return logarithms of the probabilities that log-weights stand for, row by row."""
    shares: Floats = weights - weights.max(axis=1, keepdims=True)
    shares -= np.log(np.exp(shares).sum(axis=1, keepdims=True))  # several times as fast as logaddexp.reduce
    return shares


def losses(log_p: Floats, gold: Ints) -> Floats:
    """Return what the right class of each row lacks, in nats."""
    lacking: Floats = -log_p[np.arange(len(gold)), gold]
    return lacking


def log_loss(log_p: Floats, gold: Ints) -> float:
    """Return the mean of what the right classes lack, in nats."""
    return float(losses(log_p, gold).mean())
