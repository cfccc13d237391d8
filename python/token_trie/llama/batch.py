"""Many prompts in one context of the C ABI, on the weights of a Llama."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import numpy as np

from token_trie.errors import CancelledError, TokenTrieError
from token_trie.llama.contexts import make_on
from token_trie.llama.dropped import wait_for_dropped
from token_trie.llama.query import Answer, Query, read_answer
from token_trie.native.core import Llama, llama_cpp, vocab_of
from token_trie.native.ffi import check, ffi, lib, new_struct
from token_trie.native.gate import Gate
from token_trie.native.lease import attachment, lease
from token_trie.native.llama_facts import model_of

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

    def submit(self, tokens: Sequence[int], query: Query) -> int:
        """Add a query after a prompt to those that wait; return its ticket.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError
            It cannot be answered.
        """
        prompt = ffi.from_buffer("llama_token[]", np.array(tokens, np.int32))
        ticket = ffi.new("int64_t *")
        self._call(lib.token_trie_batch_submit, prompt, len(tokens), query.native(), ticket)
        return int(ticket[0])

    def next(self, timeout_ms: int = WAIT_MS, ticket: int = 0) -> Answer | None:
        """Wait for an answer, to a ticket or to any; None: not in time, or nothing is out."""
        out = ffi.new("struct token_trie_answer **")
        self._call(lib.token_trie_batch_next, ticket, timeout_ms, out, ffi.NULL)
        return None if out[0] == ffi.NULL else read_answer(out[0])

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
