"""Scores less those behind a prompt without content, for what the model says whatever it is asked.

Zhao et al., "Calibrate Before Use: Improving Few-Shot Performance of Language Models", 2021.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.answers import Answers
from token_trie.decisions.native_scores import End, score_leaves
from token_trie.llama.stream import StreamHandle
from token_trie.native.core import Llama
from token_trie.native.lease import attachment
from token_trie.sets.memory import Memory

_KEPT, _WEIGHT = 64, 1_000_000


def prior(
    llm: Llama, handle: StreamHandle, answers: Answers[Any], empty: list[int], behind: Answers[Any], end: End
) -> npt.NDArray[np.float64]:
    """Score the answers behind the tokens of an empty prompt; the last scores are remembered.

    Parameters
    ----------
    handle : StreamHandle
        The Llama's own, whose prompt becomes the empty one.
    answers : Answers
        Those that are to be calibrated.
    empty : list of int
        The empty prompt.
    behind : Answers
        The same choices as they are spelled behind that.

    Returns
    -------
    ndarray of float64, shape (n_leaves,)
        Natural logarithms, of the leaves of `answers`.
    """
    memory: Memory[npt.NDArray[np.float64]] = attachment(llm).known.setdefault("priors", Memory(_KEPT, _WEIGHT))

    def make() -> npt.NDArray[np.float64]:
        handle._hold(behind.trie)
        handle.prefill(empty)
        return score_leaves(handle, behind.trie, end=end).leaves

    leaves = memory.get((behind.trie, tuple(empty), end), len(behind.trie), make)
    return behind.aligned(leaves)[answers.firsts()]
