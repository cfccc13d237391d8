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
from token_trie.llama.batch import Answer, Batch, can_share
from token_trie.llama.chooser import is_held_here, is_taken
from token_trie.llama.contexts import interruptible
from token_trie.native.core import Llama
from token_trie.native.lease import attachment

# Who came together is expected together again for so long, so that none of them begins alone, beside the batch.
_SOON_S = 0.5


def company_of(llm: Llama) -> Company | None:
    """Return the company to join, where this Llama is at work for another thread; None: there is nobody, or no batch.

    Raises
    ------
    ArgumentError
        The Llama is closed.
    """
    attached = attachment(llm)
    if is_held_here(attached):
        return None
    company: Company | None = attached.company
    if company is None:
        if not is_taken(attached) or not can_share(llm):
            return None
        with attached.making:
            company = attached.company
            if company is None:
                try:
                    # On a thread that no interrupt comes to, as it would be lost in what llama.cpp logs.
                    company = attached.company = Company(interruptible(lambda: Batch(llm), lambda: None))
                except TokenTrieError:  # no memory, or room for one sequence alone: its turn will come
                    return None
    return company if company.is_gathered or is_taken(attached) else None


class Company:
    """Questions of several threads, in one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._asking: dict[int, int] = {}  # threads, by ticket
        self._until = 0.0  # when they are not expected together any more

    @property
    def is_gathered(self) -> bool:
        """Whether it is at work, or soon again."""
        return bool(self._asking) or time.monotonic() < self._until

    def answer(self, submit: Callable[[Batch], int], n_members: int, n_tokens: int) -> Answer:
        """Submit a question and wait for its answer, of these many members and tokens at most.

        Raises
        ------
        TokenTrieError
            Of the question, or what `Batch` raises.
        """
        ticket = submit(self._batch)
        answer = None
        try:
            self._asking[ticket] = get_ident()
            if len(self._asking) > 1:
                self._until = time.monotonic() + _SOON_S
            while answer is None:
                answer = self._batch.next(n_members, n_tokens, ticket=ticket)
        finally:
            self._asking.pop(ticket, None)
            if answer is None:
                self._batch.withdraw(ticket)
                with contextlib.suppress(TokenTrieError):
                    self._batch.next(n_members, n_tokens, -1, ticket)
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
