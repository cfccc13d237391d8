"""Scores that are equal bit by bit, whatever else is scored before, after or at the same time.

llama.cpp's result for a token depends on the number of tokens in its batch, and on the position of its cells in the
cache. Both are fixed here. A prompt is cut at fixed positions, and only whole pieces are kept for the next prompt. Each
sequence is evaluated after it in its own batch, from the same cells:

    prompt    |piece 0 |piece 1 |rest|        rest: up to the last token, whose logits score the first tokens
    sequences                        |a b c|  then its cells are freed, and the next sequence takes them
                                     |d e|
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from threading import get_ident
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats
from token_trie.errors import CancelledError, ContextError, InternalError, NativeMemoryError
from token_trie.llama.contexts import check_room, common_prefix, require_weights
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.lifetime import Closeable, attachment
from token_trie.native.llama_facts import model_of

PIECE = 32
"""Tokens of a prompt that are evaluated together."""


def reproducible(llm: Llama) -> Reproducible:
    """Return the context of a Llama for reproducible scores, made on first use and freed with the Llama."""
    return attachment(llm).make(Reproducible, lambda: Reproducible(llm))


class Reproducible(Closeable):
    """A second context on the weights of a Llama, of the same size. Threads take turns."""

    def __init__(self, llm: Llama) -> None:
        self._turn = threading.RLock()
        attached = attachment(llm)
        self._tokens = np.empty(0, np.int32)  # in the cache
        self._first: Floats | None = None  # log-probabilities after them, if computed
        self._working = self._cancelled = 0  # threads
        require_weights(llm)
        params = type(llm.context_params).from_buffer_copy(llm.context_params)
        params.n_batch = params.n_ubatch = PIECE
        params.n_seq_max, params.swa_full, params.embeddings = 1, True, False
        self.n_ctx = int(llm.n_ctx())
        self._n_vocab = llm.n_vocab()
        self._context = llama_cpp.llama_init_from_model(model_of(llm).model, params)
        if not self._context:
            raise NativeMemoryError("no memory for a context that scores by itself")
        if attached.adapters:
            n, kind = len(attached.adapters), llama_cpp.llama_adapter_lora_p_ctypes
            adapters = (kind * n)(*(ctypes.cast(one, kind) for one, _ in attached.adapters))
            scales = (ctypes.c_float * n)(*(scale for _, scale in attached.adapters))
            llama_cpp.llama_set_adapters_lora(self._context, adapters, n, scales)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(PIECE, 0, 1)
        super().__init__("reproducible", attached.streams)

    def score(self, prompt: Sequence[int], sequences: Sequence[Sequence[int]]) -> list[Floats]:
        """Return the natural logarithm of the probability of each token of each sequence after a prompt.

        ContextError if they do not fit, or the logits are not finite; CancelledError if the Llama was closed, or this
        thread's work was cancelled.
        """
        check_room(self.n_ctx, len(prompt), max(map(len, sequences)))
        with self._turn:
            self._require_open()
            self._working, self._cancelled = get_ident(), 0
            try:
                return self._score(np.array(prompt, np.int32), sequences)
            except CancelledError:
                self._drop(0)
                raise
            finally:
                self._working = 0

    def _score(self, prompt: npt.NDArray[np.int32], sequences: Sequence[Sequence[int]]) -> list[Floats]:
        out, first = [], self._logits(prompt)
        for sequence in sequences:
            if len(self._tokens) < len(prompt):  # recurrent models cannot remove tokens
                first = self._logits(prompt)
            out.append(self._score_after(len(prompt), first, np.array(sequence, np.int32)))
        return out

    def _logits(self, prompt: npt.NDArray[np.int32]) -> Floats:
        """Evaluate a prompt except the pieces in the cache; return the log-probabilities of the next token."""
        if self._first is not None and np.array_equal(self._tokens, prompt):
            return self._first
        # Only the last piece has an output.
        n_kept = min(common_prefix(self._tokens, prompt), len(self._tokens) - 1, len(prompt) - 1) // PIECE * PIECE
        self._drop(max(n_kept, 0))
        for begin in range(len(self._tokens), len(prompt), PIECE):
            piece = prompt[begin : begin + PIECE]
            is_last = begin + len(piece) == len(prompt)
            self._evaluate(piece, begin, [is_last and i == len(piece) - 1 for i in range(len(piece))])
            self._tokens = prompt[: begin + len(piece)]
        self._first = self._log_probabilities(-1)
        return self._first

    def _score_after(self, position: int, first: Floats, sequence: npt.NDArray[np.int32]) -> Floats:
        out = np.empty(len(sequence))
        out[0] = first[sequence[0]]
        inner = sequence[:-1]
        for begin in range(0, len(inner), PIECE):
            piece = inner[begin : begin + PIECE]
            self._evaluate(piece, position + begin, [True] * len(piece))
            for i in range(len(piece)):
                out[begin + i + 1] = self._log_probabilities(i)[sequence[begin + i + 1]]
        if len(inner) and not llama_cpp.llama_memory_seq_rm(self._memory, 0, position, -1):
            self._drop(0)
        return out

    def _drop(self, n_kept: int) -> None:
        self._first = None
        is_cut = llama_cpp.llama_memory_seq_rm(self._memory, 0, n_kept, -1) if n_kept else False
        if not is_cut:
            llama_cpp.llama_memory_clear(self._memory, False)
            n_kept = 0
        self._tokens = self._tokens[:n_kept]

    def _evaluate(self, tokens: npt.NDArray[np.int32], position: int, has_output: Sequence[bool]) -> None:
        self._require_open()
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens.tolist()):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position + i, has_output[i]
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            self._drop(0)
            raise InternalError(f"llama.cpp cannot evaluate {len(tokens)} tokens: {status}")
        self._require_open()  # a thread is only cancelled while it is in here

    def _require_open(self) -> None:
        if self.is_closing:
            raise CancelledError("the Llama was closed, or this process was forked meanwhile")
        if self._cancelled == get_ident():
            raise CancelledError("the scores were cancelled")

    def _log_probabilities(self, row: int) -> Floats:
        logits: Any = llama_cpp.llama_get_logits_ith(self._context, row)
        x = np.ctypeslib.as_array(logits, shape=(self._n_vocab,)).astype(np.float64)
        x[np.isnan(x)] = -np.inf
        if not np.isfinite(x.max()):
            self._drop(0)
            llama_cpp.llama_memory_clear(self._memory, True)  # because NaN in cells may spoil later results
            raise ContextError("the model gives no finite logits after this text (NaN or infinite)")
        x -= x.max()
        log_sum: float = np.log(np.exp(x).sum())
        return x - log_sum

    def cancel(self) -> None:
        """End the running call after its current batch."""
        self.is_closing = True

    def cancel_of(self, thread: int) -> None:
        """End a thread's call after its current batch."""
        if self._working == thread:
            self._cancelled = thread

    def shut(self) -> None:
        """Free the context after the running call."""
        with self._turn:
            self.forget()
            context, self._context = self._context, None
            if context:
                llama_cpp.llama_batch_free(self._batch)
                llama_cpp.llama_free(context)

    def is_entered_here(self) -> bool:
        """Return False: calls here have no callbacks, so no thread can close from inside one."""
        return False
