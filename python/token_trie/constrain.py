"""`constrain`: every call of a `Llama` inside the block answers with a member of the set."""

from __future__ import annotations

import copy
import ctypes
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, TypeAlias

import llama_cpp

from token_trie._native import Llama, _core, logger, vocab_of
from token_trie.errors import ArgumentError, BusyError
from token_trie.trie import TokenTrie

Mode: TypeAlias = Literal["greedy", "sampled"]
OnComplete: TypeAlias = Literal["release", "end", "restart"]

MODES: dict[str, int] = {"greedy": 0, "sampled": 1}
ON_COMPLETE: dict[str, int] = {"release": 0, "end": 1, "restart": 2}
WALKING = 0  # enum token_trie_state
ROOT = 0
_STOP = -1  # in place of a token
_OVERRIDDEN = ("_init_sampler", "generate", "sample")

# Samplers that change logits and stand before the trie; all others truncate, constrain or select, and stand after it.
# A logits processor of llama-cpp-python is a sampler without a name.
_BEFORE = frozenset({b"logit-bias", b"penalties", b"dry", None})

_TokenGenerator: TypeAlias = Generator[int, Sequence[int] | None, None]


def constrain(
    llm: Llama,
    trie: TokenTrie,
    mode: Mode = "greedy",
    on_complete: OnComplete = "end",
    *,
    end_tokens: Sequence[int] | None = None,
    separator: Sequence[int] = (),
    max_items: int = 0,
) -> Constraint:
    """Constrain every call of ``llm`` in a ``with`` block: completion, chat, streaming, `Llama.generate`.

    Each call begins at the trie's root. The model is restored on leaving the block, also by an exception. A call needs
    ``max_tokens`` enough for the longest member (`Llama.__call__` has 16 by default); one that stops short of a member
    says so with ``finish_reason="length"`` and a warning of the logger ``token_trie``.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model; one `constrain` at a time.
    trie : TokenTrie
        The set.
    mode : {"greedy", "sampled"}
        Greedy takes the best allowed token at each step, whatever the call's sampling options; sampled leaves all
        allowed tokens to them.
    on_complete : {"end", "release", "restart"}
        What follows a finished member: the end of the answer, free text, or another member.
    end_tokens : sequence of int, optional
        For end and restart: tokens that end the answer; by default the vocabulary's end-of-generation tokens.
    separator : sequence of int
        For restart: tokens between two members.
    max_items : int
        For restart: members at most; 0 for no limit.

    Returns
    -------
    Constraint
        To be used in a ``with`` statement, once or again.

    Raises
    ------
    ArgumentError, VocabularyError
        At once, for options that fit neither each other nor the model.
    BusyError
        On entering, where the model is constrained already; and from a call, where another thread is inside one.
    """
    return Constraint(llm, trie, mode, on_complete, end_tokens, separator, max_items)


class Constraint:
    """What `constrain` returns; a context manager that tells of the last call inside it.

    Attributes
    ----------
    complete : bool
        Whether the last call ended at the end of a member.
    names : list of str
        Names of the members that it produced, one unless ``on_complete="restart"``.
    """

    def __init__(
        self,
        llm: Llama,
        trie: TokenTrie,
        mode: str,
        on_complete: str,
        end_tokens: Sequence[int] | None,
        separator: Sequence[int],
        max_items: int,
    ) -> None:
        if not isinstance(trie, TokenTrie):
            raise ArgumentError(f"trie: {type(trie).__name__} where TokenTrie belongs")
        self._llm = llm
        self._mode = lookup(mode, MODES, "mode")
        vocab = vocab_of(llm)
        vocab.check(trie._handle)
        self._end_of_generation = vocab.end_of_generation()
        if end_tokens is None:
            end_tokens = self._end_of_generation if on_complete != "release" else []
        follow = _core.FollowSet(
            trie._handle,
            vocab,
            lookup(on_complete, ON_COMPLETE, "on_complete"),
            list(end_tokens),
            list(separator),
            max_items,
        )
        self._on_complete = on_complete
        self._trie = trie
        self._start = _core.Cursor(trie._handle, follow)
        self._restore: Callable[[], None] | None = None
        self._in_step = threading.Lock()
        self._walk: _Walk | None = None

    def __enter__(self) -> Constraint:
        with _busy_lock:
            if id(self._llm) in _busy:
                raise BusyError("this Llama is constrained already; leave that block first, or use another Llama")
            _busy.add(id(self._llm))
        llm = self._llm
        previous = {name: llm.__dict__[name] for name in _OVERRIDDEN if name in llm.__dict__}
        sampler = llm._sampler
        init_sampler, generate, sample = llm._init_sampler, llm.generate, llm.sample

        def restore() -> None:
            for name in _OVERRIDDEN:
                llm.__dict__.pop(name, None)
            llm.__dict__.update(previous)
            llm._sampler = sampler

        self._restore = restore
        llm._init_sampler = lambda *args, **kwargs: self._init_sampler(init_sampler, *args, **kwargs)
        llm.generate = lambda *args, **kwargs: self._generate(generate, *args, **kwargs)
        llm.sample = lambda *args, **kwargs: self._sample(sample, *args, **kwargs)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()
            with _busy_lock:
                _busy.discard(id(self._llm))

    def new_cursor(self) -> _core.Cursor:
        """Make a cursor at the root, with this block's rules."""
        return copy.copy(self._start)

    @property
    def complete(self) -> bool:
        """Whether the last call ended at the end of a member."""
        return self._walk is not None and self._walk.complete

    @property
    def names(self) -> list[str]:
        """Names of the members that the last call produced."""
        return [] if self._walk is None else [self._trie._handle.name(leaf) for leaf in self._walk.leaves]

    def _init_sampler(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("grammar") is not None:
            raise ArgumentError(
                "a grammar (grammar=, response_format=, or a chat tool choice) cannot be combined with a trie, which "
                "takes its place; leave it out of calls inside constrain()"
            )
        chain = original(*args, **kwargs)
        _splice(chain.sampler, _core.make_sampler(self._start, self._mode))
        return chain

    def _generate(self, original: Callable[..., _TokenGenerator], *args: Any, **kwargs: Any) -> _TokenGenerator:
        walk = self._walk = _Walk(self.new_cursor())
        tokens = original(*args, **kwargs)
        sent = None
        try:
            while (end := self._due_end(walk)) != _STOP:
                if end is None:
                    with self._step(walk):
                        try:
                            token = tokens.send(sent)
                        except StopIteration:
                            return
                else:
                    token = end
                walk.accept(token)
                sent = yield token
        finally:
            tokens.close()
            if walk.n_tokens > 0 and not walk.complete:
                logger.warning(
                    "generation stopped inside a member, after %d tokens: its text is none of the set; "
                    "max_tokens may be too small, or a stop string matched",
                    walk.n_tokens,
                )

    def _sample(self, original: Callable[..., int], *args: Any, **kwargs: Any) -> int:
        # Llama.sample keeps no place in the set, and a generation begun before the block has a sampler without it.
        if not self._in_step.locked():
            raise BusyError("inside constrain() tokens come from a call begun in the block, not from Llama.sample()")
        return original(*args, **kwargs)

    def _due_end(self, walk: _Walk) -> int | None:
        """Return the end-of-generation token that must come next, the model unasked; _STOP to just end; else None."""
        cursor, ends = walk.cursor, self._end_of_generation
        if cursor.state == WALKING:
            allowed = None if cursor.leaf is None else cursor.allowed()
            candidates = [] if allowed is None or len(allowed) > len(ends) else allowed.tolist()
            if not candidates or not set(candidates).issubset(ends):
                return None
        elif self._on_complete == "release":
            return None
        else:
            # An end token of the caller's choice has to be followed by one that llama-cpp-python knows for an end.
            candidates = [] if walk.last_token in ends else ends
        preferred = int(self._llm.token_eos())
        return preferred if preferred in candidates else next(iter(candidates), _STOP)

    @contextmanager
    def _step(self, walk: _Walk) -> Iterator[None]:
        if self._restore is None or walk is not self._walk:
            why = "its constrain() block ended" if self._restore is None else "another call began"
            raise BusyError(f"this generation cannot go on: {why}; read a stream to its end inside the block first")
        if not self._in_step.acquire(blocking=False):
            raise BusyError("another thread is inside a call of this Llama; use one Llama a thread")
        try:
            yield
        finally:
            self._in_step.release()


class _Walk:
    """One generation: a cursor beside the one in the native sampler, and the members it has finished."""

    def __init__(self, cursor: _core.Cursor) -> None:
        self.cursor = cursor
        self.leaves: list[int] = []
        self.n_tokens = 0
        self.last_token = -1

    def accept(self, token: int) -> None:
        self.last_token = token
        self.n_tokens += 1
        cursor = self.cursor
        if cursor.state == WALKING:
            cursor.accept(token)
            # A finished member may turn out to be the beginning of a longer one, which then takes its place.
            del self.leaves[cursor.n_items :]
            if cursor.leaf is not None:
                self.leaves[cursor.n_items - 1 :] = [cursor.leaf]

    @property
    def complete(self) -> bool:
        return self.cursor.leaf is not None and self.cursor.node != ROOT


_busy: set[int] = set()
_busy_lock = threading.Lock()


def lookup(value: str, table: dict[str, int], what: str) -> int:
    """Look up an option by its name; ArgumentError names the ones there are."""
    try:
        return table[value]
    except (KeyError, TypeError):
        raise ArgumentError(f"{what}: {value!r} is none of {', '.join(map(repr, table))}") from None


def _splice(chain: Any, address: int) -> None:
    """Put the sampler at an address into a llama.cpp chain, which then owns it, where DESIGN's order wants it."""
    count = llama_cpp.llama_sampler_chain_n(chain)
    at = 0
    while at < count and _sampler_name(llama_cpp.llama_sampler_chain_get(chain, at)) in _BEFORE:
        at += 1
    # llama.cpp can only append.
    later = [llama_cpp.llama_sampler_chain_remove(chain, at) for _ in range(count - at)]
    for sampler in [ctypes.cast(address, llama_cpp.llama_sampler_p_ctypes), *later]:
        llama_cpp.llama_sampler_chain_add(chain, sampler)


def _sampler_name(sampler: Any) -> bytes | None:
    # llama.cpp calls the callback unchecked, null or not.
    if not sampler.contents.iface.contents.name:
        return None
    # llama.cpp marks a sampler that is switched off.
    return bytes(llama_cpp.llama_sampler_name(sampler)).removeprefix(b"?")
