"""The stream that belongs to a Llama: made on first use, used by one thread after the other, freed with the Llama."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from queue import Empty, SimpleQueue

from token_trie.errors import BusyError, CancelledError, ContextError
from token_trie.llama.stream import Stream
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lifetime import acting_thread, attachment, lease

# A waiting thread also looks this often, because an interrupt may prevent the call that wakes it.
_POLL_S = 0.1


class _Waiter:
    """A thread that waits for the stream."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.is_cancelled = False
        self.wakeups: SimpleQueue[None] = SimpleQueue()  # in C, so that no interrupt comes in its middle


class OwnStream:
    """A stream and the queue of threads that wait for it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.holder = 0  # the thread that uses it
        self._lock = threading.Lock()
        self._queue: deque[_Waiter] = deque()

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
        for waiter in list(self._queue):
            if waiter.thread == thread:
                waiter.is_cancelled = True
                waiter.wakeups.put(None)

    def close(self) -> None:
        """Free the stream."""
        self.stream.close()

    def disown(self) -> bool:
        """Return False: a forked process cannot use it."""
        return False

    def _wait_for_turn(self) -> None:
        """Return when the stream is free; the lock decides between threads that come at the same moment."""
        if self.holder == acting_thread():
            raise BusyError("this thread is choosing with this Llama already, and asks from within that")
        waiter = _Waiter()
        try:
            self._queue.append(waiter)
            while self._queue[0] is not waiter or self._lock.locked():
                if waiter.is_cancelled:
                    raise CancelledError("the decision was cancelled")
                with suppress(Empty):
                    waiter.wakeups.get(timeout=_POLL_S)
        except BaseException:
            self._queue.remove(waiter)
            self._wake_next()
            raise
        self._queue.remove(waiter)

    def _wake_next(self) -> None:
        with suppress(IndexError):
            self._queue[0].wakeups.put(None)


def chooser(llm: Llama) -> AbstractContextManager[Stream]:
    """Give the Llama's stream to this thread, after those that came before.

    Raises
    ------
    BusyError
        This thread has it already, and calls from a callback or signal handler.
    CancelledError
        The wait was cancelled.
    """
    return attachment(llm).make(OwnStream, lambda: OwnStream(Stream(llm, keeps_llm=False))).lent()


def n_ctx_of(llm: Llama) -> int:
    """Return the size of the Llama's context in tokens; ArgumentError if it is closed."""
    with lease(llm):
        vocab_of(llm)
        return int(llm.n_ctx())


def check_room(n_ctx: int, n_prompt: int, n_answer: int, owner: str = "Llama") -> None:
    """Raise ContextError if a prompt and an answer of so many tokens do not fit."""
    if n_prompt + n_answer > n_ctx:
        raise ContextError(
            f"prompt: {n_prompt} tokens and an answer of up to {n_answer} do not fit the context of "
            f"{n_ctx} tokens; make the {owner} with a larger n_ctx"
        )
