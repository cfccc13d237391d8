"""One sequence of a model, on a context of its own: what a handle, decisions and records do with it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import get_ident
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.contexts import open_file, open_on
from token_trie.llama.dropped import wait_for_dropped
from token_trie.llama.evaluated import Evaluated, common_prefix
from token_trie.llama.interrupts import interruptible
from token_trie.llama.options import StreamOptions, native_options
from token_trie.llama.query import Answer, Query, read_answer
from token_trie.llama.span import SetTrie, Span, SpanOptions, StepMode, native_params, read_span
from token_trie.llama.state import Item, StreamState, state_of
from token_trie.llama.steps import Steps
from token_trie.native.arguments import encode
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.ffi import ffi, lib, new_struct
from token_trie.native.lease import attachment, lease
from token_trie.sets.payload import json_of
from token_trie.sets.prompt import Prompt, tokenize_alone, tokenize_prompt
from token_trie.sets.trie import TokenTrie

T = TypeVar("T")

_DEFAULTS = StreamOptions()
_USUAL = SpanOptions()
_MANY = 32
"""Tokens, of which more take long to evaluate."""
_SHORT = 16
"""Tokens, of which no more are written without looking for an interrupt; a thread for that costs milliseconds."""


class Stream:
    """One sequence of a model. One call at a time: another meanwhile raises BusyError.

    What changes the text that a reader of another thread is reading raises BusyError too. `cancel` and `close` may come
    from any thread, at any time: they end the call under way. It is closed when it is dropped, and before its model.

    Parameters
    ----------
    llm : llama_cpp.Llama or path
        As of `StreamHandle`.
    keeps_llm : bool
        Whether it keeps the Llama from being dropped, as what is attached to that must not.
    options : StreamOptions
    """

    def __init__(
        self, llm: Llama | str | os.PathLike[str], *, keeps_llm: bool = True, options: StreamOptions = _DEFAULTS
    ) -> None:
        self._set: SetTrie | None = None  # the trie that is set
        self._usual: dict[StepMode | None, tuple[Span, Any]] = {}  # rules of a decision, read once
        self._sets: dict[str | None, TokenTrie] = {}  # of the payload given, by path
        self._grammar: tuple[str | None, str] = None, "root"  # that is set: text and root
        self._known: dict[object, Any] = {}  # of a file's model
        self._like: Callable[[], Llama | None] = _none  # a weak reference to the Llama
        self._evaluated: Evaluated | None = None
        self._prompt = np.empty(0, np.int32)  # what the sequence begins with
        params = native_options(options)
        wait_for_dropped()
        if isinstance(llm, (str, os.PathLike)):
            native = open_file(encode(os.fspath(llm), "llm"), params)
        else:
            attached = attachment(llm)
            native = open_on(llm, attached, options.n_ctx, params)
            self._like = weakref.ref(llm)
            self._evaluated = attached.made(Evaluated)
        self.native = native
        self.steps = Steps(native, llm if keeps_llm else None, options.sampling_defaults)

    def fork(self) -> Stream:
        """Make a second one that goes on from here, as of `StreamHandle.fork`."""
        wait_for_dropped()
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._usual = {}
        other.native = self.native.fork()
        other.steps = Steps(other.native, self.steps.kept, self.steps.defaults)
        other.steps.sampling = self.steps.sampling
        return other

    def close(self) -> None:
        """Free it; a call that another thread is in ends first."""
        self.native.close()

    # Who has it.

    def own(self) -> AbstractContextManager[None]:
        """Let no other thread in between the calls made meanwhile; BusyError where one is in."""
        return self.native.own()

    @property
    def n_cancels(self) -> int:
        """How often it was cancelled."""
        return self.steps.n_cancels

    def cancel(self) -> None:
        """End what is under way in another thread, and any generation begun, within one forward pass."""
        self.steps.cancel()

    def cancel_of(self, thread: int) -> None:
        """Do as `cancel` does if it is this thread that is inside a call."""
        self.steps.cancel_of(thread)

    @contextmanager
    def transaction(self) -> Iterator[list[int]]:
        """Own it, and give the sequence; if what is done fails, it and the trie are put back."""
        with self.native.own():
            before = self.tokens
            put_back, n_changes = self._set, self.steps.n_changes
            try:
                yield before
            except BaseException:
                if self.steps.n_changes == n_changes:
                    raise  # nor does a span, or a grammar, begin anew
                with suppress(TokenTrieError):
                    n_same = common_prefix(np.array(self.tokens, np.int32), np.array(before, np.int32))
                    self.splice(n_same, before[n_same:])
                    if put_back is None:
                        self.clear_span()
                    else:
                        self.set_span(put_back)
                raise

    # The model.

    @property
    def llm(self) -> Llama | None:
        """The Llama, if it has one."""
        return self._like()

    @property
    def n_ctx_max(self) -> int:
        """Tokens that it holds at most."""
        return self.native.n_ctx_max

    def with_vocab(self, use: Callable[[_core.Vocab], T]) -> T:
        """Let work be done on the vocabulary, which stays for as long."""
        return self.native.with_vocab(use)

    def with_model(self, use: Callable[[_core.Vocab, dict[object, Any]], T]) -> T:
        """Let work be done on the vocabulary, and with what is remembered of the model."""
        llm = self._like()
        if llm is None:
            return self.native.with_vocab(lambda vocab: use(vocab, self._known))
        with lease(llm):
            return use(vocab_of(llm), attachment(llm).known)

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Tokens of a prompt; ArgumentError, VocabularyError and ContextError as of `StreamHandle.prefill`."""
        llm = self._like()
        if llm is None:
            return self.native.with_vocab(lambda vocab: tokenize_alone(vocab, prompt))
        with lease(llm):
            return tokenize_prompt(llm, prompt, self.n_ctx_max)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of tokens."""
        return self.native.with_vocab(lambda vocab: vocab.detokenize(tokens)).decode(errors="replace")

    # The sequence.

    @property
    def tokens(self) -> list[int]:
        """The sequence."""

        def read(stream: Any) -> int:
            n = ffi.new("size_t *")
            status = lib.token_trie_stream_get_tokens(stream, ffi.NULL, 0, n)
            found = np.empty(n[0], np.int32)
            if status == 0 and len(found):
                status = lib.token_trie_stream_get_tokens(
                    stream, ffi.from_buffer("llama_token[]", found), len(found), n
                )
            tokens.extend(found.tolist())
            return int(status)

        tokens: list[int] = []
        self.native.call(read)
        return tokens

    def prefill(self, tokens: Sequence[int]) -> None:
        """Make the sequence these tokens, evaluated, as of `StreamHandle.prefill`."""
        prompt = np.array(tokens, np.int32)
        buffer = ffi.from_buffer("llama_token[]", prompt)
        thread = get_ident()

        def before() -> None:
            self.steps.check_reader(thread)
            llm = self._like()
            if llm is not None and self._evaluated is not None:
                n_there = common_prefix(self._prompt, prompt)
                self._evaluated.copy_to(self.native.pointer, llm, prompt, n_there)

        def after() -> None:
            self.steps.n_changes += 1
            self.steps.replace()
            self._prompt = prompt

        def call() -> None:
            self.native.call(lib.token_trie_stream_prefill, buffer, len(prompt), before=before, after=after)

        try:
            if len(prompt) > _MANY:
                interruptible(call, self.native.cancel)
            else:
                call()
        except BaseException:
            self.steps.is_behind = True  # what it took from the cache is to be evaluated again
            raise
        self.steps.is_behind = False

    def splice(self, n_kept: int, tokens: Sequence[int]) -> None:
        """Put tokens in the place of all behind the first ones; trie and grammar begin anew."""
        array = np.array(tokens, np.int32)

        def replaced() -> None:
            self.steps.replace()
            self._prompt = self._prompt[:n_kept]
            self.steps.is_behind |= len(array) > _MANY

        self.steps.change(
            lib.token_trie_stream_splice,
            n_kept,
            ffi.from_buffer("llama_token[]", array) if len(array) else ffi.NULL,
            len(array),
            after=replaced,
        )

    # What it may write.

    def set_payload(self, payload: str | bytes | Mapping[str, Any] | None) -> None:
        """Give sets by path, as of `StreamHandle.set_payload`."""
        sets: dict[str | None, TokenTrie] = {}
        if payload is not None:
            read = json_of(payload)
            tries = self.native.with_vocab(lambda vocab: _core.tries_by_path(read, vocab))
            sets |= {path: TokenTrie.of_core(trie) for path, trie in tries.items()}
        self._sets = sets

    def given(self, choices: T | None, path: str | None) -> T | TokenTrie | None:
        """Return choices, or the set of a path in their place; ArgumentError for both."""
        if path is not None and choices is not None:
            raise ArgumentError("choices and path: one of the two")
        return choices if path is None else self._set_of(path)

    def read_set(self, trie: TokenTrie | str | bytes | Mapping[str, Any] | None, path: str | None) -> TokenTrie:
        """Return the trie, that of a payload, or without one that of a path."""
        if trie is None:
            return self._set_of(path)
        if isinstance(trie, TokenTrie):
            return trie
        return self.native.with_vocab(lambda vocab: TokenTrie.read_payload(trie, path, vocab))

    def _set_of(self, path: str | None) -> TokenTrie:
        if path not in self._sets:
            there = ", ".join(map(repr, list(self._sets)[:5])) or "none: call set_payload first"
            raise ArgumentError(f"path: {path!r} is no path of the payload; there is {there}")
        return self._sets[path]

    def set_trie(self, trie: TokenTrie, mode: StepMode | None = None, rules: SpanOptions = _USUAL) -> None:
        """Put what comes under a trie, from its root."""
        read = self._usual.get(mode) if rules is _USUAL else None
        if read is None:
            span = self.native.with_vocab(lambda vocab: read_span(vocab, mode, rules))
            read = span, native_params(span)
            if rules is _USUAL:
                self._usual[mode] = read
        self.set_span(SetTrie(trie, *read))

    def set_span(self, span: SetTrie) -> None:
        """Put what comes under a trie, from its root, by rules that are in order."""
        set_trie = lib.token_trie_stream_set_token_trie_ext
        self.steps.change(set_trie, span.trie.c_set, span.native, after=lambda: self._keep(span))

    def clear_span(self) -> None:
        """Take the trie away; a grammar set before is back."""
        self.steps.change(lib.token_trie_stream_clear_token_trie, after=lambda: self._keep(None))

    def _keep(self, span: SetTrie | None) -> None:
        self._set = span

    def set_grammar(self, gbnf: str | None, root: str = "root") -> None:
        """Put what comes under a grammar, where no trie is set; None for none. GrammarError: the one before is kept."""
        text = ffi.NULL if gbnf is None else encode(gbnf, "gbnf")
        self.steps.change(lib.token_trie_stream_set_grammar, text, encode(root, "root"))
        self._grammar = gbnf, root

    @contextmanager
    def other_grammars(self) -> Iterator[None]:
        """Let others be set; the one before is put back, to begin anew."""
        grammar, n_changes = self._grammar, self.steps.n_changes
        try:
            yield
        finally:
            if self.steps.n_changes != n_changes:
                with suppress(TokenTrieError):
                    self.set_grammar(*grammar)

    def set_seed(self, seed: int | None) -> None:
        """Begin draws anew from a seed; None for others each time."""
        self.steps.set_seed(seed)

    # Where it stands.

    @property
    def state(self) -> StreamState:
        """Where it stands."""
        held = self._set
        state = self.raw_state
        return state_of(state, self.steps.is_cancelled, None if held is None or held is not self._set else held.trie)

    @property
    def raw_state(self) -> Any:
        """A struct token_trie_stream_state; `state` costs as much as a branch point."""
        state = new_struct("token_trie_stream_state")
        self.native.look(lib.token_trie_stream_get_state, state)
        return state

    def answer(self, query: Query, prefix: Sequence[int] | None = None) -> Answer:
        """Answer a query after the sequence, or whole answers after a prefix in its place.

        The tokens of a decoding become part of the sequence. Without a seed, its draws are the next of the stream.

        Raises
        ------
        ArgumentError
            There is no token to go on from, or the query cannot be answered here.
        ContextError
            The answer does not fit the context, or the model's graph has no hidden state that can be read.
        CancelledError
            It was cancelled meanwhile.
        """
        native = query.native(continues=True, **self.steps.defaults)
        after = ffi.NULL if prefix is None else ffi.from_buffer("llama_token[]", np.array(prefix, np.int32))
        out = ffi.new("struct token_trie_answer **")
        arguments = after, 0 if prefix is None else len(prefix), native, out
        if query.is_decoded:
            is_short = query.mode != "text" and query.trie is not None and query.trie.core.max_length <= _SHORT
            self.steps.decode(lib.token_trie_stream_answer, *arguments, is_short=is_short)
        else:
            self.steps.run(lib.token_trie_stream_answer, *arguments)
        return read_answer(out[0])

    def hidden_state(self) -> npt.NDArray[np.float32]:
        """Return that of the sequence's last token, shape (n_embd,); errors as of `answer`."""
        return self.answer(Query("state")).state

    @property
    def is_cancelled(self) -> bool:
        """Whether what ended last was cancelled."""
        return self.steps.is_cancelled or self.raw_state.stop == lib.TOKEN_TRIE_STOP_CANCELLED

    def items(self) -> list[Item]:
        """Members that the span has produced."""

        def read(stream: Any) -> int:
            status = 0
            item = new_struct("token_trie_item")
            for i in range(n):
                status = status or int(lib.token_trie_stream_get_item(stream, i, item))
                found.append(Item(int(item.leaf), int(item.begin), int(item.end), float(item.logprob)))
            return status

        n = self.raw_state.n_items
        found: list[Item] = []
        self.native.call(read)
        return found


def _none() -> None:
    """Stand in for a weak reference, where there is nothing to refer to."""
