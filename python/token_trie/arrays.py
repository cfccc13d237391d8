"""NumPy array types that signatures use."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
"""Scores, log-probabilities, weights."""
Ints: TypeAlias = npt.NDArray[np.int64]
"""Positions of rows or classes."""
States: TypeAlias = npt.NDArray[np.float32]
"""Hidden states, a row each."""
