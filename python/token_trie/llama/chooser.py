"""The stream that `choose` and `score` work on: one a Llama, made on first use, freed with it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from token_trie.errors import BusyError, CancelledError, ContextError
from token_trie.llama.contexts import acting_thread
from token_trie.llama.stream import Stream
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lease import Attachment, attachment, lease
from token_trie.sets.trie import TokenTrie

# Who waits looks so often whether it is its turn.
_LOOK_S = 0.002


@dataclass(eq=False)
class _Place:
    """In the line, of a thread."""

    thread: int
    is_cancelled: bool = False


@dataclass(eq=False)
class _Chooser:
    stream: Stream
    lock: threading.Lock = field(default_factory=threading.Lock)
    holder: int = 0  # the thread that has the lock
    line: deque[_Place] = field(default_factory=deque)


@contextmanager
def chooser(llm: Llama) -> Iterator[Stream]:
    """Lend the Llama's stream, when those who came before have ended.

    Raises
    ------
    BusyError
        This very thread has it, and asks from a callback or a signal's handler.
    CancelledError
        The wait for it was cancelled.
    """
    attached = attachment(llm)
    with attached.making:
        own: _Chooser | None = attached.chooser
        if own is None:
            own = attached.chooser = _Chooser(Stream(llm, keeps_llm=False))
    if own.line or own.lock.locked():
        _stand_in_line(own)
    with own.lock:  # of its own, as no interrupt comes in the middle of that
        own.holder = acting_thread()
        try:
            yield own.stream
        finally:
            own.holder = 0


def _stand_in_line(own: _Chooser) -> None:
    """Return when the stream is free; who comes within that moment is waited for at the lock."""
    if own.holder == acting_thread():
        raise BusyError("this thread is choosing with this Llama already, and asks from within that")
    place = _Place(threading.get_ident())
    try:
        own.line.append(place)
        while own.line[0] is not place or own.lock.locked():
            if place.is_cancelled:
                raise CancelledError("the decision was cancelled")
            time.sleep(_LOOK_S)
    finally:
        own.line.remove(place)


def is_taken(attached: Attachment) -> bool:
    """Whether a thread has the stream, or waits for it."""
    own: _Chooser | None = attached.chooser
    return own is not None and (bool(own.line) or own.lock.locked())


def is_held_here(attached: Attachment) -> bool:
    """Whether this very thread has the stream."""
    own: _Chooser | None = attached.chooser
    return own is not None and own.holder == acting_thread()


def cancel(llm: Llama, thread: int) -> None:
    """End what a thread is doing in the Llama's stream, or in company, if it is there."""
    cancel_of(attachment(llm), thread)


def cancel_of(attached: Attachment, thread: int) -> None:
    """Do as `cancel` does, by what is attached to the Llama."""
    own: _Chooser | None = attached.chooser
    if own is not None:
        if own.holder == thread:
            own.stream.cancel()
        for place in list(own.line):
            place.is_cancelled = place.is_cancelled or place.thread == thread
    company = attached.company
    if company is not None:
        company.cancel_of(thread)


def room_of(llm: Llama) -> int:
    """Tokens that the Llama has room for; ArgumentError if it is closed."""
    with lease(llm):
        vocab_of(llm)
        return int(llm.n_ctx())


def check_room(room: int, n_prompt: int, trie: TokenTrie, owner: str = "Llama") -> None:
    """Raise ContextError where a prompt of so many tokens and the longest answer do not fit."""
    if n_prompt + trie.max_tokens > room:
        raise ContextError(
            f"prompt: {n_prompt} tokens and an answer of up to {trie.max_tokens} do not fit the context of "
            f"{room} tokens; make the {owner} with a larger n_ctx"
        )
