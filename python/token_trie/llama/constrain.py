"""`constrain`: every call of a `Llama` in a ``with`` block answers with a member of the set."""

from __future__ import annotations

import copy
import ctypes
import inspect
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from threading import Lock, get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from token_trie.errors import ArgumentError, BusyError
from token_trie.llama.span import RELEASE, SpanOptions, StepMode, follow_set, read_span
from token_trie.native.core import Llama, _core, llama_cpp, logger, vocab_of
from token_trie.native.lifetime import attachment, lease
from token_trie.native.llama_facts import COMPLETE, INIT_SAMPLER, restorer
from token_trie.native.options import takes
from token_trie.sets.prompt import tokenize_chat, warn_of_fallback
from token_trie.sets.spelling import check_start
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.llama.span import SpanKeywords

CONSTRAINED, THINKING = 0, 3  # enum token_trie_state
ROOT = 0


class Call:
    """A call of the Llama, read as a generator."""

    def __init__(self, stop: str | Sequence[str] | None = None) -> None:
        stops = [stop] if isinstance(stop, str) else stop or []
        self.stops = [text.encode() for text in stops]
        self.thread = 0  # that took the last step; 0 before the first
        self.stepping = 0  # the thread that is inside a step
        self.outermost = False
        self.over = False  # another call has replaced it


class ConstrainedCall(Call):
    """A generation: a second cursor besides that of the native sampler, and the members it has finished."""

    def __init__(self, cursor: _core.Cursor, prompt: Sequence[int]) -> None:
        super().__init__()
        self.cursor = cursor
        self.prompt = prompt
        self.tokens: list[int] = []
        self.leaves: list[int] = []
        self._ends: list[int] = []  # number of tokens at the end of each leaf
        self._is_whole: bool | None = None  # set if a stop string cut it

    def accept(self, token: int) -> None:
        """Add a token."""
        self.tokens.append(token)
        cursor = self.cursor
        if cursor.state in (CONSTRAINED, THINKING):
            cursor.accept(token)
            # A finished member may become the beginning of a longer one, which replaces it.
            del self.leaves[cursor.n_items :], self._ends[cursor.n_items :]
            # It stays the last one during the separator after it.
            if cursor.leaf is not None and self.leaves[cursor.n_items - 1 :] != [cursor.leaf]:
                self.leaves[cursor.n_items - 1 :] = [cursor.leaf]
                self._ends[cursor.n_items - 1 :] = [len(self.tokens)]

    def cut(self, llm: Llama) -> None:
        """Remove the members that a stop string has cut."""
        if not self.stops:
            return
        try:
            with lease(llm):
                vocab_of(llm)
                text = llm.detokenize(self.tokens, prev_tokens=self.prompt)
                ends = [len(llm.detokenize(self.tokens[:end], prev_tokens=self.prompt)) for end in self._ends]
        except ArgumentError:
            return  # the Llama is closed
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
    """Decides which call may take a step; others get BusyError and change nothing."""

    def __init__(self, llm: Llama) -> None:
        self._llm = llm
        self._changing = Lock()
        self.block = 0
        """Number of the block, for `step`."""
        self._is_open = False
        self._calls: list[Call] = []  # outermost running calls
        self.generation: ConstrainedCall | None = None  # the last one

    def open(self) -> None:
        """Begin a block."""
        self.block += 1
        self._is_open = True

    def close(self) -> None:
        """End the block; no call continues."""
        self._is_open = False

    @contextmanager
    def step(self, block: int, call: Call) -> Iterator[None]:
        """Run one step of a call made in a block; its first step replaces earlier calls."""
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
        if not self._is_open or block != self.block or call.over:
            why = "another call began" if call.over else "its constrain() block ended"
            raise BusyError(f"this generation cannot go on: {why}; read a stream to its end inside the block first")
        begins = call.thread == 0
        outer = next((other for other in self._calls if other.stepping == thread), None) if begins else None
        call.outermost = outer is None if begins else call.outermost
        if call.outermost and any(other.thread != thread for other in self._calls if other is not call):
            raise BusyError("another thread is inside a call of this Llama; use one Llama a thread")
        if begins and isinstance(call, ConstrainedCall):
            self._replace_by(call)
        if begins and outer is None:
            self._calls.append(call)
        elif outer is not None:
            # The outer call knows the stop strings.
            outer.stops = call.stops = call.stops or outer.stops
        call.thread = call.stepping = thread

    def _replace_by(self, generation: ConstrainedCall) -> None:
        if self.generation is not None:
            if self.generation.stepping:
                raise BusyError("a call of this Llama is inside another one")
            self.generation.over = True
        for call in list(self._calls):
            if not call.stepping:
                call.over = True
                self.end(call)
        self.generation = generation

    def end(self, call: Call) -> None:
        """Remove a call; without a lock, because garbage collection may do this at any time."""
        with suppress(ValueError):
            self._calls.remove(call)

    def is_stepping(self) -> bool:
        """Return whether this thread is inside a step of a generation."""
        return self.generation is not None and self.generation.stepping == get_ident()


_STOP = -1  # instead of a token
_OVERRIDDEN = (COMPLETE, INIT_SAMPLER, "create_chat_completion", "generate", "sample")

# Samplers that change logits come before the trie; all others truncate, constrain or select, and come after it. A
# logits processor of llama-cpp-python is a sampler without a name.
_BEFORE = frozenset({b"logit-bias", b"penalties", b"dry", None})

_DATA = ("messages", "functions", "function_call", "tools", "tool_choice")

_TokenGenerator: TypeAlias = Generator[int, Sequence[int] | None, None]


@takes(SpanOptions)
def constrain(
    llm: Llama,
    trie: TokenTrie,
    mode: StepMode | None = None,
    **options: Unpack[SpanKeywords],
) -> Constraint:
    """Constrain every call of ``llm`` in a ``with`` block: completion, chat, streaming, `Llama.generate`.

    Each call begins at the root of the trie. At the end of the block, the model is as before, also after an exception.
    ``max_tokens`` has to be large enough for the longest member (the default of `Llama.__call__` is 16). If a call ends
    inside a member, it has ``finish_reason="length"``, and the logger ``token_trie`` gives a warning.

    The set is applied on the host, even if the model is on a device. The reason: llama-cpp-python makes a sampler chain
    for each call, and a new chain on a device would make llama.cpp plan its graphs again. A `StreamHandle` has a
    context of its own, and chooses on the device.

    Read a stream to its end inside the block, because llama-cpp-python only begins when it is read. While one thread is
    inside a call, or has not read its stream to the end, a call of another thread is refused and changes nothing.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. It can be constrained only once at a time.
    trie : TokenTrie
        The set.
    mode : {"greedy", "sampled"}, optional
        "greedy", the default, takes the best allowed token at each step and ignores the call's sampling options.
        "sampled" applies these options to the allowed tokens.
    **options
        Those of `SpanOptions`.

    Returns
    -------
    Constraint
        For a ``with`` statement. It can be used more than once.

    Raises
    ------
    ArgumentError, VocabularyError
        At once: the options, the model and the set do not fit together.
    BusyError
        At the start of the block: the model is constrained already. In a call: another thread is inside a call. In a
        stream: it is read after the block, or after another call of its thread.
    """
    return Constraint(llm, trie, mode, SpanOptions.read("constrain", options))


class Constraint:
    """Result of `constrain`: a context manager with information about the last call inside the block."""

    def __init__(self, llm: Llama, trie: TokenTrie, mode: StepMode | None, options: SpanOptions) -> None:
        if not isinstance(trie, TokenTrie):
            raise ArgumentError(
                f"trie: {type(trie).__name__} where TokenTrie belongs; make one with "
                "TokenTrie.from_choices(llm, choices, prompt=…)"
            )
        self._llm = llm
        with lease(llm):
            vocab = vocab_of(llm)
            span = read_span(vocab, mode, options)
            vocab.check(trie.core)
            self._end_of_generation = vocab.end_of_generation()
            self._eos = int(llm.token_eos())
            follow = follow_set(trie.core, vocab, span)
        self._mode = int(span.mode)
        self._releases = span.on_complete == RELEASE
        self._trie = trie
        self._start = _core.Cursor(trie.core, follow)
        self._restore: Callable[[], None] | None = None
        self._turns = Turns(llm)
        self._prompts = threading.local()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a Constraint cannot be copied or pickled; make another with constrain()")

    def __enter__(self) -> Constraint:
        llm, attached = self._llm, attachment(self._llm)
        with attached.making:
            if attached.constrained:
                raise BusyError("this Llama is constrained already; leave that block first, or use another Llama")
            attached.constrained = True
        self._turns.open()
        create, init_sampler, chat, generate, sample = (getattr(llm, name) for name in _OVERRIDDEN)
        self._restore = restorer(llm, _OVERRIDDEN)
        overrides: dict[str, Callable[..., Any]] = {
            COMPLETE: lambda *args, **kwargs: self._read(create(*args, **self._guarded(kwargs)), kwargs.get("stop")),
            INIT_SAMPLER: lambda *args, **kwargs: self._init_sampler(init_sampler, *args, **kwargs),
            "create_chat_completion": lambda *args, **kwargs: self._bind(self._chat(chat, *args, **kwargs)),
            "generate": lambda *args, **kwargs: self._generate(generate, *args, **kwargs),
            "sample": lambda *args, **kwargs: self._sample(sample, *args, **kwargs),
        }
        llm.__dict__.update(overrides)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        restore, self._restore = self._restore, None
        if restore is not None:
            self._turns.close()
            restore()
            attachment(self._llm).constrained = False

    def new_cursor(self) -> _core.Cursor:
        """Make a cursor at the root with this block's rules."""
        return copy.copy(self._start)

    @property
    def complete(self) -> bool:
        """Whether the last call ended at the end of a member."""
        generation = self._turns.generation
        return generation is not None and generation.complete

    @property
    def names(self) -> list[str]:
        """Names of the members that the last call produced: one, unless ``on_complete="restart"``.

        A member that a stop string cut is not included.
        """
        generation = self._turns.generation
        return [] if generation is None else [self._trie.core.name(leaf) for leaf in generation.leaves]

    def _init_sampler(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("grammar") is not None:
            raise ArgumentError(
                "a grammar (grammar=, response_format=, or a chat tool choice) cannot be combined with a trie, which "
                "takes its place; leave it out of calls inside constrain()"
            )
        chain = original(*args, **kwargs)
        _splice(chain.sampler, _core.make_sampler(self._start, self._mode))
        return chain

    def _chat(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Keep names of control tokens in messages as text; llama-cpp-python would parse them."""
        warn_of_fallback(self._llm)
        arguments = _chat_signature().bind_partial(self._llm, *args, **kwargs).arguments
        data = {name: arguments[name] for name in _DATA if name in arguments}
        try:
            if data.get("messages") and self._llm.chat_handler is None:
                with lease(self._llm):
                    vocab_of(self._llm)
                    self._prompts.chat = tokenize_chat(self._llm, data)
            return original(*args, **kwargs)
        finally:
            self._prompts.chat = None

    def _guarded(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        tokens = getattr(self._prompts, "chat", None)
        return kwargs if tokens is None or not isinstance(kwargs.get("prompt"), list) else kwargs | {"prompt": tokens}

    def _bind(self, made: Any) -> Any:
        """Allow reading a stream only in its block, because reading calls the Llama."""
        return self._read(made, None) if isinstance(made, Iterator) else made

    def _read(self, stream: Any, stop: str | Sequence[str] | None) -> Iterator[Any]:
        block = self._turns.block

        def read() -> Iterator[Any]:
            call = Call(stop)
            with closing(stream):
                try:
                    while True:
                        with self._turns.step(block, call):
                            try:
                                part = next(stream)
                            except StopIteration:
                                return
                        yield part
                finally:
                    self._turns.end(call)

        return read()

    def _generate(self, original: Callable[..., _TokenGenerator], *args: Any, **kwargs: Any) -> _TokenGenerator:
        block = self._turns.block

        def generate() -> _TokenGenerator:
            prompt = kwargs["tokens"] if "tokens" in kwargs else args[0]
            check_start(prompt, self._trie.start_token)
            generation = ConstrainedCall(self.new_cursor(), prompt)
            tokens = original(*args, **kwargs)
            sent = None
            try:
                while (end := self._due_end(generation)) != _STOP:
                    with self._turns.step(block, generation):
                        try:
                            token = tokens.send(sent) if end is None else end
                        except StopIteration:
                            return
                    generation.accept(token)
                    sent = yield token
            except GeneratorExit:
                generation.cut(self._llm)
                raise
            finally:
                tokens.close()
                self._turns.end(generation)
                if generation.tokens and not generation.complete:
                    logger.warning(
                        "generation stopped inside a member, after %d tokens: its text is none of the set; "
                        "max_tokens may be too small, or a stop string matched",
                        len(generation.tokens),
                    )

        return generate()

    def _sample(self, original: Callable[..., int], *args: Any, **kwargs: Any) -> int:
        # Llama.sample has no position in the set, and a generation begun before the block has no sampler for it.
        if not self._turns.is_stepping():
            raise BusyError("inside constrain() tokens come from a call begun in the block, not from Llama.sample()")
        return original(*args, **kwargs)

    def _due_end(self, generation: ConstrainedCall) -> int | None:
        """Return the end token that must come next without the model; _STOP to end without one; else None."""
        cursor, ends = generation.cursor, self._end_of_generation
        if cursor.state == THINKING:
            return None
        if cursor.state == CONSTRAINED:
            allowed = None if cursor.leaf is None else cursor.allowed()
            candidates = [] if allowed is None or len(allowed) > len(ends) else allowed.tolist()
            if not candidates or not set(candidates).issubset(ends):
                return None
        elif self._releases:
            return None
        else:
            # After an end token given by the caller must come one that llama-cpp-python takes as an end.
            candidates = [] if generation.tokens[-1] in ends else ends
        return self._eos if self._eos in candidates else next(iter(candidates), _STOP)


def _splice(chain: Any, address: int) -> None:
    """Insert the sampler at an address into a llama.cpp chain, which then owns it, after those in `_BEFORE`."""
    count = llama_cpp.llama_sampler_chain_n(chain)
    at = 0
    while at < count and _sampler_name(llama_cpp.llama_sampler_chain_get(chain, at)) in _BEFORE:
        at += 1
    # llama.cpp can only append.
    later = [llama_cpp.llama_sampler_chain_remove(chain, at) for _ in range(count - at)]
    for sampler in [ctypes.cast(address, llama_cpp.llama_sampler_p_ctypes), *later]:
        llama_cpp.llama_sampler_chain_add(chain, sampler)


def _sampler_name(sampler: Any) -> bytes | None:
    # llama.cpp would call a null callback.
    if not sampler.contents.iface.contents.name:
        return None
    # llama.cpp marks disabled samplers by "?".
    return bytes(llama_cpp.llama_sampler_name(sampler)).removeprefix(b"?")


@cache
def _chat_signature() -> inspect.Signature:
    return inspect.signature(llama_cpp.Llama.create_chat_completion)
