"""Many prompts in one context on a Llama's weights: a batch, the batch that threads share, one after the other."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, TypeVar

import numpy as np

from token_trie.errors import CancelledError, TokenTrieError
from token_trie.llama.contexts import make_on, opened
from token_trie.llama.native_stream import wait_for_dropped
from token_trie.llama.own_stream import OwnStream
from token_trie.llama.query import Answer, Query, read_answer
from token_trie.llama.reproducible import Reproducible
from token_trie.native.core import Llama, llama_cpp, vocab_of
from token_trie.native.ffi import check, ffi, lib, new_struct
from token_trie.native.lifetime import Attachment, Closeable, acting_thread, attachment, lease
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


class Batch(Closeable):
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


# Who came together is expected together again for so long, so that none of them begins alone, beside the batch.
_SOON_S = 0.5


def shared_batch_of(llm: Llama) -> SharedBatch | None:
    """Return the batch to join, where this Llama is at work for another thread; None: there is nobody, or no batch."""
    attached = attachment(llm)
    own = attached.made(OwnStream)
    is_taken = own is not None and own.is_taken
    if own is not None and own.holder == acting_thread():
        return None
    shared = attached.made(SharedBatch)
    if shared is None:
        if not is_taken or not can_share(llm):
            return None
        try:
            shared = attached.make(SharedBatch, lambda: SharedBatch(opened(lambda: Batch(llm))))
        except TokenTrieError:  # no memory, or n_ctx for one sequence alone: its turn will come
            return None
    return shared if shared.is_gathered or is_taken else None


def cancel(llm: Llama, thread: int) -> None:
    """End what a thread is doing in the Llama's stream, in the shared batch or where it scores, if it is there."""
    cancel_of(attachment(llm), thread)


def cancel_of(attached: Attachment, thread: int) -> None:
    """Do as `cancel` does, by what is attached to the Llama."""
    for made in (attached.made(OwnStream), attached.made(SharedBatch), attached.made(Reproducible)):
        if made is not None:
            made.cancel_of(thread)


class SharedBatch:
    """Questions of several threads, in one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._asking: dict[int, int] = {}  # threads, by ticket
        self._until = 0.0  # when they are not expected together any more

    @property
    def is_gathered(self) -> bool:
        """Whether it is at work, or soon again."""
        return bool(self._asking) or time.monotonic() < self._until

    def answer(self, submit: Callable[[Batch], int]) -> Answer:
        """Submit a question and wait for its answer; TokenTrieError of the question, or what `Batch` raises."""
        ticket = submit(self._batch)
        answer = None
        try:
            self._asking[ticket] = get_ident()
            if len(self._asking) > 1:
                self._until = time.monotonic() + _SOON_S
            while answer is None:
                answer = self._batch.next(ticket=ticket)
        finally:
            self._asking.pop(ticket, None)
            if answer is None:
                self._batch.withdraw(ticket)
                with contextlib.suppress(TokenTrieError):
                    self._batch.next(-1, ticket)
        if answer.error is not None:
            raise answer.error
        return answer

    def require_open(self) -> None:
        """Raise CancelledError if the Llama was closed."""
        self._batch.require_open()

    def cancel_of(self, thread: int) -> None:
        """End what a thread asks."""
        for ticket, asking in list(self._asking.items()):
            if asking == thread:
                self._batch.withdraw(ticket)

    def close(self) -> None:
        """Free the batch."""
        self._batch.close()

    def disown(self) -> bool:
        """Be of no use in a forked process."""
        return False


T = TypeVar("T")


class Sequential(Closeable):
    """What stands in a `Batch`'s place for models that have none.

    One thread calls; any may close. Closing the Llama closes it first.
    """

    def __init__(self, llm: Llama) -> None:
        self._thread = 0  # inside a call
        self._turn = threading.Lock()
        self._attached = attachment(llm)
        with self._attached.lease():
            vocab_of(llm)
            super().__init__("prompts", self._attached.streams)

    def call(self, call: Callable[[], T]) -> T:
        """Make a call that works on the Llama's stream; CancelledError once this is closed."""
        with self._turn:
            self._thread = get_ident()
            try:
                self.require_open()
                return call()
            finally:
                self._thread = 0

    def require_open(self) -> None:
        """Raise CancelledError if it was closed, by whomever."""
        if self.is_closing or self._attached.closed:
            raise CancelledError(ENDED)

    def cancel(self) -> None:
        """End the call under way, if there is one."""
        if self._thread:
            cancel_of(self._attached, self._thread)

    def shut(self) -> None:
        """Let no call begin, and end the one under way, within one pass."""
        self.cancel()
        while not self._turn.acquire(timeout=0.01):
            self.cancel()  # again and again: it might come before anything native has begun
        self._turn.release()
        self.forget()

    def is_entered_here(self) -> bool:
        """Whether this very thread is inside a call."""
        return self._thread == get_ident()
