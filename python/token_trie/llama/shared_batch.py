"""The batch of those who ask one Llama at the same time: made when a second one comes, freed with the Llama.

Whoever asks alone has the chooser's stream. Who comes while another is at work, or soon after several were, joins the
batch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from threading import get_ident

from token_trie.errors import TokenTrieError
from token_trie.llama.batch import Batch, can_share
from token_trie.llama.chooser import OwnStream
from token_trie.llama.contexts import opened
from token_trie.llama.interrupts import acting_thread
from token_trie.llama.query import Answer
from token_trie.llama.reproducible import Reproducible
from token_trie.native.core import Llama
from token_trie.native.lease import Attachment, attachment

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
