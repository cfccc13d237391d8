"""Rows whose truth is known: scores and states of a model that is made up."""

from __future__ import annotations

from typing import Any

import numpy as np
from token_trie.decisions.calibration import Binding
from token_trie.trust.rows import Readings


def readings_of(raw: Any, states: Any = None, contextual: Any = None) -> Readings:
    raw = np.asarray(raw, np.float64)
    texts = tuple(f"class {i}" for i in range(raw.shape[1]))
    binding = Binding("model", "llama", "", texts, "longest")
    held = None if states is None else np.asarray(states, np.float32)
    return Readings(raw, contextual, np.ones(len(raw)), held, binding)


def drawn(log_p: Any, rng: np.random.Generator) -> Any:
    """Draw a class a row by its probabilities."""
    p = np.exp(log_p)
    return (p.cumsum(axis=1) < rng.random((len(p), 1)) * p.sum(axis=1, keepdims=True)).sum(axis=1)


def clouds(n: int, k: int, n_embd: int, rng: np.random.Generator, spread: float = 1.0) -> tuple[Any, Any]:
    """Return states around a centre a class, and the classes."""
    gold = np.arange(n) % k
    centres = rng.normal(size=(k, n_embd))
    return centres[gold] + spread * rng.normal(size=(n, n_embd)), gold
