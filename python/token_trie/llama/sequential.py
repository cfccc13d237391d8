"""Prompts one after the other, on the stream of a Llama whose sequences cannot share a context."""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident
from typing import TypeVar

from token_trie.errors import CancelledError
from token_trie.llama.batch import ENDED
from token_trie.llama.shared_batch import cancel_of
from token_trie.native.core import Llama, vocab_of
from token_trie.native.gate import Gate
from token_trie.native.lease import attachment

T = TypeVar("T")


class Sequential(Gate):
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
