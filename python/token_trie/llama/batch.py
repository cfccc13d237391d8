"""How threads share a Llama: its own stream, one after the other; a batch of many prompts."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Any, TypeVar

import numpy as np

from token_trie.errors import ArgumentError, BusyError, CancelledError, TokenTrieError
from token_trie.llama.contexts import make_on, opened
from token_trie.llama.native_stream import wait_for_dropped
from token_trie.llama.query import Answer, Query, read_answer, take_raised
from token_trie.llama.stream import Stream
from token_trie.native.core import Llama, vocab_of
from token_trie.native.ffi import check, ffi, lib, new_struct
from token_trie.native.lifetime import Attachment, Closeable, attachment
from token_trie.native.threads import acting_thread, release_threads

# A waiting thread also looks this often, because an interrupt may prevent the call that wakes it.
_POLL_S = 0.1


class OwnStream:
    """A stream and the queue of threads that wait for it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.holder = 0  # the thread that uses it
        self._lock = threading.Lock()
        # Threads that wait, each with what wakes it: True if its wait is cancelled. A queue in C, so that no interrupt
        # comes in its middle.
        self._queue: deque[tuple[int, SimpleQueue[bool]]] = deque()

    @contextmanager
    def lent(self) -> Iterator[Stream]:
        """Give the stream to this thread, after those that came before."""
        if self.is_taken:
            self._wait_for_turn()
        try:
            with self._lock:  # a lock's own `with`, because no interrupt comes in its middle
                self.holder = acting_thread()
                try:
                    yield self.stream
                finally:
                    self.holder = 0
        finally:
            self._wake_next()

    @property
    def is_taken(self) -> bool:
        """Whether a thread uses it or waits for it."""
        return bool(self._queue) or self._lock.locked()

    def cancel_of(self, thread: int) -> None:
        """End a thread's use of the stream, or its wait."""
        if self.holder == thread:
            self.stream.cancel()
        for waiting, wakeups in list(self._queue):
            if waiting == thread:
                wakeups.put(True)

    def _wait_for_turn(self) -> None:
        """Return when the stream is free; the lock decides between threads that come at the same moment."""
        if self.holder == acting_thread():
            raise BusyError("this thread is choosing with this Llama already, and asks from within that")
        wakeups: SimpleQueue[bool] = SimpleQueue()
        waiter = get_ident(), wakeups
        try:
            self._queue.append(waiter)
            while self._queue[0] is not waiter or self._lock.locked():
                with suppress(Empty):
                    if wakeups.get(timeout=_POLL_S):
                        raise CancelledError("the decision was cancelled")
        except BaseException:
            self._queue.remove(waiter)
            self._wake_next()
            raise
        self._queue.remove(waiter)

    def _wake_next(self) -> None:
        with suppress(IndexError):
            self._queue[0][1].put(False)


def chooser(llm: Llama) -> AbstractContextManager[Stream]:
    """Give the Llama's stream to this thread, after those that came before.

    BusyError if this thread has it already, and calls from a callback or signal handler; CancelledError if the wait was
    cancelled.
    """
    return own_stream_of(llm, attachment(llm)).lent()


def own_stream_of(llm: Llama, attached: Attachment) -> OwnStream:
    """Return the Llama's stream, made on first use."""
    return attached.make(OwnStream, lambda: OwnStream(Stream(llm, keeps_llm=False)))


# Waits return this often, so that Python handles signals.
WAIT_MS = 100

_N_CTX_FIRST = 2048

_N_READ = 64
"""Tokens of a running text that are read at once."""

ENDED = "the prompts are answered no more: the Llama was closed, or who asked was cancelled"


def can_share(llm: Llama) -> bool:
    """Return whether a context can hold several sequences, as in a batch; ArgumentError if it is closed."""
    attachment(llm)
    return bool(llm.n_batch > 1)


class Batch(Closeable):
    """A batch of the C ABI; any thread may call it at any time.

    It is closed before the Llama; waiting calls then raise CancelledError. Its context has `n_ctx` tokens; by default
    it is small at first, and grows up to the Llama's. The other numbers are members of struct token_trie_batch_params.
    """

    def __init__(self, llm: Llama, n_parallel: int = 0, n_ctx: int | None = None, n_chunk: int = 0) -> None:
        self._inside: set[int] = set()  # threads in a call
        n_first = _N_CTX_FIRST if n_ctx is None else 0
        params = new_struct("token_trie_batch_params", n_parallel=n_parallel, n_chunk=n_chunk, n_ctx_first=n_first)
        self._attached = attachment(llm)
        wait_for_dropped()
        self._pointer = make_on(lib.token_trie_batch_open, llm, self._attached, n_ctx, params)
        super().__init__("batch", self._attached.streams)
        self.n_ctx = int(llm.n_ctx() if n_ctx is None else n_ctx)  # in tokens

    def submit(self, tokens: Sequence[int], query: Query, *, goes_on: bool = False) -> int:
        """Submit a query after a prompt, which is kept if the plan `goes_on` after it; return its ticket.

        Raises an error for a query that cannot be answered.
        """
        prompt = ffi.from_buffer("llama_token[]", np.array(tokens, np.int32))
        ticket = ffi.new("int64_t *")
        self._call(lib.token_trie_batch_submit, prompt, len(tokens), query.native(goes_on=goes_on), ticket)
        return int(ticket[0])

    def next(self, timeout_ms: int = WAIT_MS, ticket: int = 0) -> Answer | None:
        """Wait for the answer to a ticket, or to any; None after the timeout, or if there is no ticket."""
        out = ffi.new("struct token_trie_answer **")
        self._call(lib.token_trie_batch_next, ticket, timeout_ms, out, ffi.NULL)
        return None if out[0] == ffi.NULL else read_answer(out[0])

    def text(self, ticket: int, start: int) -> list[int]:
        """Return the tokens of a running text from a position on; its answer may have fewer tokens."""
        buffer = ffi.new("llama_token[]", _N_READ)
        tokens: list[int] = []
        n = ffi.new("size_t *", _N_READ)
        while n[0] == _N_READ:
            self._call(lib.token_trie_batch_get_tokens, ticket, start + len(tokens), buffer, _N_READ, n)
            tokens += ffi.unpack(buffer, n[0])
        return tokens

    def _call(self, function: Any, *arguments: Any) -> None:
        self.require_own_process()
        thread = get_ident()
        self._inside.add(thread)
        try:
            status = function(self._pointer, *arguments)
            if (raised := take_raised()) is not None:
                raise raised
            check(status)
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
        """Cancel a ticket, unless it has its answer already."""
        if not self.is_forked:
            lib.token_trie_batch_cancel(self._pointer, ticket)

    def cancel(self) -> None:
        """Do nothing, because `shut` ends the running work."""

    def shut(self) -> None:
        """End the running work within one forward pass, and free the context."""
        lib.token_trie_batch_close(self._pointer)
        self.forget()

    def is_entered_here(self) -> bool:
        """Whether this very thread is inside a call."""
        return get_ident() in self._inside


# Threads that came together are expected together again within this time, so that none begins alone outside the batch.
_GATHERED_S = 0.5


def shared_batch_of(llm: Llama, attached: Attachment, own: OwnStream) -> SharedBatch | None:
    """Return the batch to join if this Llama works for another thread; None if it does not, or if there is no batch."""
    if own.holder == acting_thread():
        return None
    is_taken = own.is_taken
    shared = attached.made(SharedBatch)
    if shared is None:
        if not is_taken or not can_share(llm):
            return None
        try:
            shared = attached.make(SharedBatch, lambda: SharedBatch(opened(lambda: Batch(llm))))
        except TokenTrieError:  # no memory, or n_ctx for one sequence only: it waits for the stream
            return None
    return shared if shared.is_gathered or is_taken else None


def cancel(llm: Llama, thread: int) -> None:
    """End the work of a thread in the Llama's stream or its shared batch."""
    with suppress(ArgumentError):  # it was closed, which ends all work
        cancel_of(attachment(llm), thread)


def cancel_of(attached: Attachment, thread: int) -> None:
    """Do as `cancel` does, for the attachment of a Llama."""
    for made in (attached.made(OwnStream), attached.made(SharedBatch)):
        if made is not None:
            made.cancel_of(thread)


class SharedBatch:
    """A batch for the queries of several threads."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._waiting: dict[int, tuple[int, list[int]]] = {}  # the thread and the tickets of each call
        self._gathered_until = 0.0

    @property
    def is_gathered(self) -> bool:
        """Whether it works, or is expected to work again soon."""
        return any(tickets for _, tickets in list(self._waiting.values())) or time.monotonic() < self._gathered_until

    def answers(self, tickets: Iterable[int]) -> Generator[Answer, None, None]:
        """Yield the answers to tickets of this thread. Errors as of `Batch`."""
        waiting, thread = list(tickets), get_ident()
        try:
            self._waiting[id(waiting)] = thread, waiting
            if len({owner for owner, _ in list(self._waiting.values())}) > 1:
                self._gathered_until = time.monotonic() + _GATHERED_S
            while waiting:
                if (answer := self.batch.next(ticket=waiting[0])) is not None:
                    del waiting[0]
                    yield answer
        finally:
            self._waiting.pop(id(waiting), None)  # one call, because no interrupt comes in its middle
            release_threads(but_main=True)

    def drop(self, tickets: Iterable[int]) -> None:
        """Withdraw tickets, and take their answers, because nobody else does."""
        for ticket in tickets:
            self.batch.withdraw(ticket)
            with suppress(TokenTrieError):
                self.batch.next(-1, ticket)

    def cancel_of(self, thread: int) -> None:
        """Cancel the queries of a thread."""
        for owner, tickets in list(self._waiting.values()):
            for ticket in list(tickets) if owner == thread else ():
                self.batch.withdraw(ticket)


T = TypeVar("T")


class Sequential(Closeable):
    """Replaces a `Batch` where there is to be none.

    One thread calls it; any thread may close it. It is closed before the Llama.
    """

    def __init__(self, llm: Llama) -> None:
        self._thread = 0  # in a call
        self._turn = threading.Lock()
        self._attached = attachment(llm)
        vocab_of(llm)
        super().__init__("prompts", self._attached.streams)

    def call(self, call: Callable[[], T]) -> T:
        """Make a call that uses the Llama's stream; CancelledError if this is closed."""
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
        """End the running call within one forward pass; no other call begins."""
        self.cancel()
        while not self._turn.acquire(timeout=0.01):
            self.cancel()  # repeatedly, because the native call may not have begun yet
        self._turn.release()
        self.forget()

    def is_entered_here(self) -> bool:
        """Whether this very thread is inside a call."""
        return self._thread == get_ident()
