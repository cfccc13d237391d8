"""What is asked of the model after a prompt, and its answer: a stream answers one query, a batch many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.errors import TokenTrieError, from_status
from token_trie.llama.sampling import Sampling, native_sampling
from token_trie.native.ffi import c_strings, check, ffi, lib, new_struct
from token_trie.sets.trie import TokenTrie

N = TypeVar("N", bound=np.generic)

QueryMode: TypeAlias = Literal["greedy", "sampled", "best", "scores", "text", "state"]
LeafEnd: TypeAlias = Literal["any", "longest", "follow"]

LEAF_ENDS = {"any": 0, "longest": 1, "follow": 2}
"""Values of enum token_trie_leaf_end."""
_MODES = {mode: getattr(lib, f"TOKEN_TRIE_QUERY_{mode.upper()}") for mode in QueryMode.__args__}  # type: ignore[attr-defined]
_GREEDY = Sampling()


@dataclass(frozen=True, eq=False)
class Query:
    """A struct token_trie_query, whose members these are.

    Attributes
    ----------
    leaf_weights : ndarray of float64, shape (n_leaves,), or None
    start_after, max_before
        Members of struct token_trie_params.
    """

    mode: QueryMode
    trie: TokenTrie | None = None
    sampling: Sampling = _GREEDY
    with_state: bool = False
    leaf_end: LeafEnd = "longest"
    branches: bool = False
    with_nodes: bool = False
    beam_width: int = 0
    n_best: int = 1
    max_nodes: int = 0
    timeout_ms: int = 0
    leaf_weights: npt.NDArray[np.float64] | None = None
    max_tokens: int = 0
    stop_strings: Sequence[str] = ()
    gbnf: str | None = None
    start_after: Sequence[int] = ()
    max_before: int = 0

    @property
    def is_decoded(self) -> bool:
        """Whether the answer is written token by token."""
        return self.mode in ("greedy", "sampled", "text")

    def native(self, *, continues: bool = False, **defaults: Any) -> Any:
        """Return the struct; arguments are those of `native_sampling`."""
        pointers: dict[str, Any] = {}
        if self.trie is not None:
            pointers["set"] = self.trie.c_set
        if self.start_after:
            pointers["set_params"] = new_struct(
                "token_trie_params",
                on_complete=lib.TOKEN_TRIE_END,
                start_after=ffi.from_buffer("llama_token[]", np.array(self.start_after, np.int32)),
                n_start_after=len(self.start_after),
                max_before=self.max_before,
            )
        if self.is_decoded:
            draws = self.mode == "sampled"
            pointers["sampling"] = native_sampling(self.sampling, draws, continues=continues, **defaults)
        if self.leaf_weights is not None:
            weights = ffi.from_buffer("double[]", np.ascontiguousarray(self.leaf_weights, np.float64))
            pointers |= {"leaf_weights": weights, "n_leaf_weights": len(weights)}
        if self.gbnf is not None:
            pointers["gbnf"] = ffi.new("char[]", self.gbnf.encode())
        return new_struct(
            "token_trie_query",
            mode=_MODES[self.mode],
            with_state=int(self.with_state),
            leaf_end=LEAF_ENDS[self.leaf_end],
            branches=int(self.branches),
            with_nodes=int(self.with_nodes),
            beam_width=self.beam_width,
            n_best=self.n_best,
            max_nodes=self.max_nodes,
            timeout_ms=self.timeout_ms,
            max_tokens=self.max_tokens,
            stop_strings=c_strings([text.encode() for text in self.stop_strings]),
            n_stop_strings=len(self.stop_strings),
            **pointers,
        )


class Answer(NamedTuple):
    """A struct token_trie_answer, copied."""

    ticket: int
    """In a batch."""
    error: TokenTrieError | None
    """Why the prompt of a batch failed."""
    leaf: int
    """Index of the best leaf, or the only one; -1 if there is none."""
    logprob: float
    tokens: tuple[int, ...]
    """Generated tokens."""
    leaves: npt.NDArray[np.int64]
    """Leaves that a search has found, best first."""
    logprobs: npt.NDArray[np.float64]
    """Log-probabilities of `leaves`; in mode "scores", of all leaves, and `leaves` is empty."""
    nodes: npt.NDArray[np.float64]
    """with_nodes: log-probabilities of the nodes' tokens after their parents, level by level; 0 for the root."""
    state: npt.NDArray[np.float32]
    """with_state: the hidden state after the prompt, shape (n_embd,)."""
    figures: Any
    """The struct token_trie_answer_figures."""


def read_answer(answer: Any) -> Answer:
    """Copy a native answer, and free it."""
    answer = ffi.gc(answer, lib.token_trie_answer_free)
    figures = new_struct("token_trie_answer_figures")
    check(lib.token_trie_answer_get_figures(answer, figures))
    error = None
    if figures.status < 0:
        error = from_status(figures.status, ffi.string(lib.token_trie_answer_get_message(answer)).decode())
    size = ffi.new("size_t *")

    def array(get: Any, dtype: type[N]) -> npt.NDArray[N]:
        values = get(answer, size)
        n_bytes = size[0] * np.dtype(dtype).itemsize
        return np.frombuffer(ffi.buffer(values, n_bytes), dtype).copy() if n_bytes else np.empty(0, dtype)

    return Answer(
        figures.ticket,
        error,
        figures.leaf,
        figures.logprob,
        tuple(array(lib.token_trie_answer_get_tokens, np.int32).tolist()),
        array(lib.token_trie_answer_get_leaves, np.int64),
        array(lib.token_trie_answer_get_logprobs, np.float64),
        array(lib.token_trie_answer_get_nodes, np.float64),
        array(lib.token_trie_answer_get_state, np.float32),
        figures,
    )
