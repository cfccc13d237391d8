"""Many prompts in one context of the C ABI, on the weights of a Llama."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.errors import CancelledError, TokenTrieError, from_status
from token_trie.llama.contexts import make_on
from token_trie.llama.dropped import wait_for_dropped
from token_trie.native.core import Llama, llama_cpp, vocab_of
from token_trie.native.ffi import check, ffi, lib, new_struct
from token_trie.native.gate import Gate
from token_trie.native.lease import attachment, lease
from token_trie.native.llama_facts import model_of
from token_trie.sets.trie import TokenTrie

N = TypeVar("N", bound=np.generic)

# A wait is interrupted so often, for signals to be heard.
WAIT_MS = 100

_PIECE = 64

ENDED = "the prompts are answered no more: the Llama was closed, or who asked was cancelled"


def can_share(llm: Llama) -> bool:
    """Whether sequences of the model can share cells, as a batch needs it; ArgumentError if it is closed."""
    with lease(llm):
        vocab_of(llm)
        model = model_of(llm).model
        is_stateful = llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)
        return not is_stateful and llm.n_batch > 1


class Answer(NamedTuple):
    """What one prompt got."""

    ticket: int
    error: TokenTrieError | None
    leaf: int
    logprob: float
    tokens: tuple[int, ...]
    """Taken step by step."""
    leaves: npt.NDArray[np.int64]
    """The members found."""
    logprobs: npt.NDArray[np.float64]
    """Theirs; of scores, of every leaf, and no `leaves`."""
    figures: Any
    """The struct token_trie_batch_figures."""
    state: npt.NDArray[np.float32]
    """The hidden state behind the prompt, where it was asked for."""


def _read(answer: Any) -> Answer:
    figures = new_struct("token_trie_batch_figures")
    check(lib.token_trie_batch_answer_get_figures(answer, figures))
    error = None
    if figures.status < 0:
        error = from_status(figures.status, ffi.string(lib.token_trie_batch_answer_get_message(answer)).decode())
    tokens = tuple(_copy(lib.token_trie_batch_answer_get_tokens, answer, np.int32).tolist())
    leaves = _copy(lib.token_trie_batch_answer_get_leaves, answer, np.int64)
    logprobs = _copy(lib.token_trie_batch_answer_get_logprobs, answer, np.float64)
    state = _copy(lib.token_trie_batch_answer_get_state, answer, np.float32)
    return Answer(figures.ticket, error, figures.leaf, figures.logprob, tokens, leaves, logprobs, figures, state)


def _copy(get: Any, answer: Any, dtype: type[N]) -> npt.NDArray[N]:
    n = ffi.new("size_t *")
    values = get(answer, n)
    size = n[0] * np.dtype(dtype).itemsize
    return np.frombuffer(ffi.buffer(values, size), dtype).copy() if size else np.empty(0, dtype)


class Batch(Gate):
    """A batch of the C ABI; any thread may call it at any time.

    Closing the Llama closes it first, and who waits is told by CancelledError.

    Parameters
    ----------
    llm : Llama
    n_parallel, n_chunk
        Members of struct token_trie_batch_params.
    n_ctx : int, optional
        Tokens of the context; by default as many as the Llama's has.
    """

    def __init__(self, llm: Llama, n_parallel: int = 0, n_ctx: int | None = None, n_chunk: int = 0) -> None:
        self._inside: set[int] = set()  # threads in a call
        params = new_struct("token_trie_batch_params", n_parallel=n_parallel, n_chunk=n_chunk)
        self._attached = attachment(llm)
        wait_for_dropped()
        with self._attached.lease():
            self._pointer = make_on(lib.token_trie_batch_open, llm, self._attached, n_ctx, params)
            super().__init__("batch", self._attached.streams)
            self._applied = self._attached.applied
            self.n_ctx = int(llm.n_ctx() if n_ctx is None else n_ctx)  # in tokens

    def submit(
        self,
        trie: TokenTrie | None,
        tokens: list[int],
        *,
        start_after: Sequence[int] = (),
        max_before: int = 0,
        stop_strings: Sequence[str] = (),
        gbnf: str | None = None,
        leaf_weights: npt.NDArray[np.float64] | None = None,
        **options: Any,
    ) -> int:
        """Put a prompt among those that wait; return its ticket.

        Parameters
        ----------
        trie
            None: free text.
        start_after, max_before
            As of struct token_trie_params.
        leaf_weights : ndarray of float64, shape (n_leaves,), optional
        stop_strings, gbnf, **options
            Members of struct token_trie_batch_prompt.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError
            What cannot be answered.
        """
        params = new_struct("token_trie_params", on_complete=lib.TOKEN_TRIE_END, max_before=max_before)
        prompt = new_struct("token_trie_batch_prompt", set_params=params, **options)
        kept = [ffi.from_buffer("llama_token[]", np.array(each, np.int32)) for each in (tokens, start_after)]
        kept += [texts := [ffi.new("char[]", text.encode()) for text in stop_strings], ffi.new("char *[]", texts)]
        prompt.set = ffi.NULL if trie is None else trie.c_set
        prompt.tokens, prompt.n_tokens = kept[0], len(tokens)
        params.start_after, params.n_start_after = kept[1], len(start_after)
        prompt.stop_strings, prompt.n_stop_strings = kept[3], len(texts)
        if gbnf is not None:
            prompt.gbnf = own_gbnf = ffi.new("char[]", gbnf.encode())
            kept.append(own_gbnf)
        if leaf_weights is not None:
            kept.append(ffi.from_buffer("double[]", np.ascontiguousarray(leaf_weights, np.float64)))
            prompt.leaf_weights, prompt.n_leaf_weights = kept[-1], len(kept[-1])
        ticket = ffi.new("int64_t *")
        self._call(lib.token_trie_batch_submit, prompt, ticket)
        return int(ticket[0])

    def next(self, timeout_ms: int = WAIT_MS, ticket: int = 0) -> Answer | None:
        """Wait for an answer, to a ticket or to any; None: not in time, or nothing is out."""
        out = ffi.new("struct token_trie_batch_answer **")
        self._call(lib.token_trie_batch_next, ticket, timeout_ms, out, ffi.NULL)
        return None if out[0] == ffi.NULL else _read(ffi.gc(out[0], lib.token_trie_batch_answer_free))

    def text(self, ticket: int, start: int) -> list[int]:
        """Return the tokens that a text under way has so far, from a place on; its answer may have fewer."""
        room = ffi.new("llama_token[]", _PIECE)
        tokens: list[int] = []
        n = ffi.new("size_t *", _PIECE)
        while n[0] == _PIECE:
            self._call(lib.token_trie_batch_get_text, ticket, start + len(tokens), room, n)
            tokens += ffi.unpack(room, n[0])
        return tokens

    def wait(self) -> Answer:
        """Wait for any answer, as long as it takes; one has to be out. Raises the prompt's own error."""
        while (answer := self.next()) is None:
            pass
        if answer.error is not None:
            raise answer.error
        return answer

    def _call(self, function: Any, *arguments: Any) -> None:
        self.require_own_process()
        self._attached.require(self._applied)
        thread = get_ident()
        self._inside.add(thread)
        try:
            check(function(self._pointer, *arguments))
        except TokenTrieError:
            self.require_open()
            raise
        finally:
            self._inside.discard(thread)

    def require_open(self) -> None:
        """Raise CancelledError if it was closed, by whomever."""
        if self.is_closing or self._attached.closed:
            raise CancelledError(ENDED)

    def withdraw(self, ticket: int) -> None:
        """Let the answer to a ticket be that it was cancelled, unless there is one already."""
        if not self.is_disowned:
            lib.token_trie_batch_cancel(self._pointer, ticket)

    def cancel(self) -> None:
        """Do nothing: `shut` ends what is under way."""

    def shut(self) -> None:
        """End what is under way, within one pass, and free the context."""
        lib.token_trie_batch_close(self._pointer)
        self.forget()

    def is_entered_here(self) -> bool:
        """Whether this very thread is inside a call."""
        return get_ident() in self._inside
