"""The stream that `choose` and `score` work on: one a Llama, made on first use, freed with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from token_trie.errors import BusyError, ContextError
from token_trie.llama.program import Program
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lease import attachment
from token_trie.sets.trie import TokenTrie


class _Chooser(NamedTuple):
    handle: Program
    lock: threading.Lock


@contextmanager
def chooser(llm: Llama) -> Iterator[Program]:
    """Lend the Llama's stream.

    Raises
    ------
    BusyError
        Another thread has it.
    """
    attached = attachment(llm)
    with attached.making:
        own: _Chooser | None = attached.chooser
        if own is None:
            handle = Program(llm)
            handle._llm = None  # which what is attached must not hold; here, prompts come as tokens
            own = attached.chooser = _Chooser(handle, threading.Lock())
    if own.lock.locked():
        raise BusyError("another thread is choosing with this Llama; use one Llama a thread")
    with own.lock:
        yield own.handle


def cancel(llm: Llama, thread: int) -> None:
    """End what a thread is doing in the Llama's stream, if it is there."""
    own: _Chooser | None = attachment(llm).chooser
    if own is not None:
        own.handle._cancel_of(thread)


def room_of(llm: Llama) -> int:
    """Tokens that the Llama has room for; ArgumentError if it is closed."""
    vocab_of(llm)
    return int(llm.n_ctx())


def check_room(room: int, n_prompt: int, trie: TokenTrie, owner: str = "Llama") -> None:
    """Raise ContextError where a prompt of so many tokens and the longest answer do not fit."""
    if n_prompt + trie.max_tokens > room:
        raise ContextError(
            f"prompt: {n_prompt} tokens and an answer of up to {trie.max_tokens} do not fit the context of "
            f"{room} tokens; make the {owner} with a larger n_ctx"
        )
