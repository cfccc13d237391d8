"""The stream that belongs to a Llama: made on first use, lent to one thread after the other, freed with it."""

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
from token_trie.sets.trie import TokenTrie

# Who waits looks once in this time, as an interrupt may come where the next one is called.
_LOST_S = 0.1


class _Waiting:
    """In the line, of a thread."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.is_cancelled = False
        self.calls: SimpleQueue[None] = SimpleQueue()  # to look again; written in C, which no interrupt cuts in two


class OwnStream:
    """A stream, and those who wait for it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.holder = 0  # the thread that has it
        self._lock = threading.Lock()
        self._line: deque[_Waiting] = deque()

    @contextmanager
    def lent(self) -> Iterator[Stream]:
        """Lend it, when those who came before have ended."""
        if self.is_taken:
            self._stand_in_line()
        try:
            with self._lock:  # of its own, as no interrupt comes in the middle of that
                self.holder = acting_thread()
                try:
                    yield self.stream
                finally:
                    self.holder = 0
        finally:
            self._call_next()

    @property
    def is_taken(self) -> bool:
        """Whether a thread has it, or waits for it."""
        return bool(self._line) or self._lock.locked()

    def cancel_of(self, thread: int) -> None:
        """End what a thread is doing in it, or its wait for it."""
        if self.holder == thread:
            self.stream.cancel()
        for waiting in list(self._line):
            if waiting.thread == thread:
                waiting.is_cancelled = True
                waiting.calls.put(None)

    def close(self) -> None:
        """Free the stream."""
        self.stream.close()

    def disown(self) -> bool:
        """Be of no use in a forked process."""
        return False

    def _stand_in_line(self) -> None:
        """Return when it is free; who comes within that moment is waited for at the lock."""
        if self.holder == acting_thread():
            raise BusyError("this thread is choosing with this Llama already, and asks from within that")
        waiting = _Waiting()
        try:
            self._line.append(waiting)
            while self._line[0] is not waiting or self._lock.locked():
                if waiting.is_cancelled:
                    raise CancelledError("the decision was cancelled")
                with suppress(Empty):
                    waiting.calls.get(timeout=_LOST_S)
        except BaseException:
            self._line.remove(waiting)
            self._call_next()
            raise
        self._line.remove(waiting)

    def _call_next(self) -> None:
        with suppress(IndexError):
            self._line[0].calls.put(None)


def chooser(llm: Llama) -> AbstractContextManager[Stream]:
    """Lend the Llama's stream, when those who came before have ended.

    Raises
    ------
    BusyError
        This very thread has it, and asks from a callback or a signal's handler.
    CancelledError
        The wait for it was cancelled.
    """
    return attachment(llm).make(OwnStream, lambda: OwnStream(Stream(llm, keeps_llm=False))).lent()


def n_ctx_of(llm: Llama) -> int:
    """Tokens that the Llama's context holds; ArgumentError if it is closed."""
    with lease(llm):
        vocab_of(llm)
        return int(llm.n_ctx())


def check_fits(n_ctx: int, n_prompt: int, trie: TokenTrie, owner: str = "Llama") -> None:
    """Raise ContextError where a prompt of so many tokens and the longest answer do not fit."""
    if n_prompt + trie.max_tokens > n_ctx:
        raise ContextError(
            f"prompt: {n_prompt} tokens and an answer of up to {trie.max_tokens} do not fit the context of "
            f"{n_ctx} tokens; make the {owner} with a larger n_ctx"
        )
