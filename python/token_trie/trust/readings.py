"""What a model says of the rows of a table, read once and looked at often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from token_trie.decisions.binding import Binding

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Readings:
    """What a model says of rows, asked one way.

    Attributes
    ----------
    texts : tuple of str
        The classes, in the order given: texts of choices, or names of options.
    raw : ndarray of float64, shape (n_rows, n_classes)
        Log-weights; those of a row, as a softmax, are the raw probabilities.
    contextual : ndarray of float64, shape (n_rows, n_classes), or None
        The same with the contextual prior taken out, of a question.
    mass : ndarray of float64, shape (n_rows,)
        The model's own probability for all classes together.
    states : ndarray of float32, shape (n_rows, n_embd), or None
        The hidden state of the last token of the prompt.
    binding : Binding
        What they come from.
    """

    texts: tuple[str, ...]
    raw: Floats
    contextual: Floats | None
    mass: Floats
    states: npt.NDArray[np.float32] | None
    binding: Binding
