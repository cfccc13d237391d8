"""Calls of a `Llama` inside a `constrain` block: one thread's at a time, and where in the set the last one stands.

A call of llama-cpp-python is generators in generators, each run a step at a time, whenever its reader likes:

    create_chat_completion(stream=True)  >  _create_completion  >  generate
    Call, the outermost: its thread's turn  Call                   Decoding: moves through the set
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock, get_ident

from token_trie.errors import ArgumentError, BusyError
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.lease import lease

WALKING, THINKING = 0, 3  # enum token_trie_state
ROOT = 0


class Call:
    """A generator that was begun, or will be."""

    def __init__(self, stop: str | Sequence[str] | None = None) -> None:
        stops = [stop] if isinstance(stop, str) else stop or []
        self.stops = [text.encode() for text in stops]
        self.thread = 0  # whose turn it is, from the first step on
        self.stepping = 0  # the thread that is inside a step
        self.outermost = False
        self.over = False  # another call took its place


class Decoding(Call):
    """One generation: a cursor beside the one in the native sampler, and the members it has finished."""

    def __init__(self, cursor: _core.Cursor, prompt: Sequence[int]) -> None:
        super().__init__()
        self.cursor = cursor
        self.prompt = prompt
        self.tokens: list[int] = []
        self.leaves: list[int] = []
        self._ends: list[int] = []  # of each leaf, in tokens
        self._is_whole: bool | None = None  # where a stop string cut it

    def accept(self, token: int) -> None:
        """Go on by a token."""
        self.tokens.append(token)
        cursor = self.cursor
        if cursor.state in (WALKING, THINKING):
            cursor.accept(token)
            # A finished member may turn out to be the beginning of a longer one, which then takes its place.
            del self.leaves[cursor.n_items :], self._ends[cursor.n_items :]
            # And it stays the last one through the separator behind it.
            if cursor.leaf is not None and self.leaves[cursor.n_items - 1 :] != [cursor.leaf]:
                self.leaves[cursor.n_items - 1 :] = [cursor.leaf]
                self._ends[cursor.n_items - 1 :] = [len(self.tokens)]

    def cut(self, llm: Llama) -> None:
        """Take back the members that a stop string cut, where llama-cpp-python found one in the text."""
        if not self.stops:
            return
        try:
            with lease(llm):
                vocab_of(llm)
                text = llm.detokenize(self.tokens, prev_tokens=self.prompt)
                ends = [len(llm.detokenize(self.tokens[:end], prev_tokens=self.prompt)) for end in self._ends]
        except ArgumentError:
            return  # closed meanwhile
        for stop in self.stops:
            if stop in text:
                at = text.index(stop)
                whole = sum(end <= at for end in ends)
                if whole < len(ends) or at in ends:
                    self._is_whole = at in ends
                del self.leaves[whole:], self._ends[whole:]
                return

    @property
    def complete(self) -> bool:
        """Whether it ended at the end of a member."""
        if self._is_whole is not None:
            return self._is_whole
        return self.cursor.leaf is not None and self.cursor.node != ROOT


class Turns:
    """Who may take a step; `BusyError` for the others, whose attempt changes nothing."""

    def __init__(self, llm: Llama) -> None:
        self._llm = llm
        self._changing = Lock()
        self._block = 0
        self._is_open = False
        self._calls: list[Call] = []  # the outermost of those begun and not ended
        self.decoding: Decoding | None = None  # the last

    def open(self) -> None:
        """Begin a block."""
        self._block += 1
        self._is_open = True

    def close(self) -> None:
        """End it: no call goes on."""
        self._is_open = False

    @property
    def block(self) -> int:
        """Number of the block, for `step`."""
        return self._block

    @contextmanager
    def step(self, block: int, call: Call) -> Iterator[None]:
        """Run one step of a call that was made in a block; the first puts it in the place of those before."""
        thread = get_ident()
        try:
            with self._changing:
                self._enter(block, call, thread)
            with lease(self._llm):
                vocab_of(self._llm)
                yield
        finally:
            if call.stepping == thread:
                call.stepping = 0

    def _enter(self, block: int, call: Call, thread: int) -> None:
        if not self._is_open or block != self._block or call.over:
            why = "another call began" if call.over else "its constrain() block ended"
            raise BusyError(f"this generation cannot go on: {why}; read a stream to its end inside the block first")
        begins = call.thread == 0
        outer = next((other for other in self._calls if other.stepping == thread), None) if begins else None
        call.outermost = outer is None if begins else call.outermost
        if call.outermost and any(other.thread != thread for other in self._calls if other is not call):
            raise BusyError("another thread is inside a call of this Llama; use one Llama a thread")
        if begins and isinstance(call, Decoding):
            self._replace_by(call)
        if begins and outer is None:
            self._calls.append(call)
        elif outer is not None:
            # What stops it is known to the call around it.
            outer.stops = call.stops = call.stops or outer.stops
        call.thread = call.stepping = thread

    def _replace_by(self, decoding: Decoding) -> None:
        if self.decoding is not None:
            if self.decoding.stepping:
                raise BusyError("a call of this Llama is inside another one")
            self.decoding.over = True
        for call in list(self._calls):
            if not call.stepping:
                call.over = True
                self.end(call)
        self.decoding = decoding

    def end(self, call: Call) -> None:
        """Let go of a call; without a lock, as garbage collection may do it at any time."""
        with suppress(ValueError):
            self._calls.remove(call)

    def is_stepping(self) -> bool:
        """Whether this thread is inside a step of a generation."""
        return self.decoding is not None and self.decoding.stepping == get_ident()
