"""A stream as a program: text after text in one sequence, which goes on from each."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.dropped import wait_for_dropped
from token_trie.llama.evaluated import common_prefix
from token_trie.llama.stream import StreamHandle
from token_trie.native.arguments import check_counts, encode
from token_trie.native.core import _core, vocab_of
from token_trie.native.ffi import ffi, lib
from token_trie.native.lease import attachment, lease
from token_trie.sets.inner_text import inner_tokens
from token_trie.sets.payload import json_of
from token_trie.sets.prompt import tokenize_text
from token_trie.sets.spelling import find_seam, inner_seam
from token_trie.sets.tokens import check_tokens
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


@dataclass(frozen=True)
class Text:
    """What `Program.text` has generated."""

    text: str
    """Without the stop string."""
    stop: str
    """Why it ended: "stop", "end", "max_tokens", "complete" under a grammar, or "cancelled"."""
    stop_string: str | None
    """The one that was found."""
    n_tokens: int
    """Tokens by which the sequence has become longer."""

    def __str__(self) -> str:
        return self.text


class Program(StreamHandle):
    """A `StreamHandle` whose sequence is written piece by piece."""

    @property
    def tokens(self) -> list[int]:
        """The sequence.

        Raises
        ------
        BusyError
            A call is under way.
        """

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
        self._native.call(read)
        return tokens

    def append(self, text: str | Sequence[int]) -> None:
        """Put text or tokens behind the sequence, to be evaluated with what follows.

        Text is tokenized as it follows what stands there; where its beginning merges with the last tokens, these are
        taken back. Names of control tokens in it become these. Trie and grammar begin anew.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError
            The sequence before is kept.
        BusyError
            Another call is under way, or a generation of another thread. One of this thread is over.
        """
        with self._native.own():
            self._append(text)

    def _append(self, text: str | Sequence[int]) -> None:
        before = self.tokens
        if not before:
            raise ArgumentError("nothing to append to: prefill first")
        if isinstance(text, str):
            encoded = encode(text, "text")
            n_kept, tokens = self._with_model(lambda vocab, _: behind(vocab, before, encoded))
        elif isinstance(text, (bytes, bytearray)) or not isinstance(text, (Sequence, np.ndarray)):
            raise ArgumentError(f"text: {type(text).__name__} where text or token ids belong")
        else:
            n_kept, tokens = len(before), check_tokens(text, self._native.with_vocab(len), "text")
        self._put(n_kept, tokens)

    def text(
        self,
        max_tokens: int = 2**31 - 1,
        stop: str | Sequence[str] = (),
        temperature: float | None = None,
        top_p: float = 1.0,
    ) -> Text:
        """Let the model go on, freely or under the grammar that is set; a trie is taken away first.

        Parameters
        ----------
        max_tokens : int
            Tokens at most.
        stop : str or sequence of str
            Texts before which it ends, wherever in a token they begin; they do not become part of the sequence.
        temperature, top_p : float
            As for `generate`.

        Raises
        ------
        ArgumentError
            An option is out of range, or a stop string empty.
        ContextError, GrammarError, BusyError
            What was generated until then is part of the sequence.
        """
        check_counts(0, max_tokens=max_tokens)
        stops = _check_stops(stop)
        with self._native.own():
            return self._text(max_tokens, stops, temperature, top_p)

    def _text(self, max_tokens: int, stops: list[str], temperature: float | None, top_p: float) -> Text:
        longest = max(map(len, stops), default=0)
        self.clear_token_trie()
        start = self.state.n_tokens
        ends: list[int] = []  # in the text, one a token
        written = ""
        steps = self.generate(max_tokens, temperature, top_p)
        for step in steps:
            searched = max(0, len(written) - longest + 1)
            written += step.text
            ends.append(len(written))
            at, found = min(
                ((written.find(s, searched), s) for s in stops if s in written[searched:]), default=(-1, "")
            )
            if found:
                steps.close()
                if self._cut(start, ends, written, at, max_tokens):
                    return Text(written[:at], "stop", found, self.state.n_tokens - start)
                return Text(self._written(start), "max_tokens", None, self.state.n_tokens - start)
        return Text(written, self.state.stop, None, len(ends))

    async def atext(self, *arguments: Any, **options: Any) -> Text:
        """Do as `text` does, on a worker thread; a task that is cancelled ends it."""
        return await in_worker(lambda: self.text(*arguments, **options), self._cancel_of)

    def _cut(self, start: int, ends: list[int], written: str, at: int, max_tokens: int) -> bool:
        """Drop what was written from a place on, and with it the token that reaches over it.

        What stands before the place in that token may take more tokens than it: returns whether there was room for all.
        """
        n_most = min(max_tokens, self.state.n_context_max - start)
        tokens = self.tokens[start:]
        n = next(i for i, end in enumerate(ends) if end > at)

        def spell(vocab: _core.Vocab) -> tuple[int, list[int], bool]:
            n_kept = _n_whole(vocab, tokens[:n])
            text = written[ends[n_kept - 1] if n_kept else 0 : at]
            rest = inner_tokens(text, "text", vocab).tolist() if text else []
            if n_kept + len(rest) <= n_most:
                return n_kept, rest, True
            return n_kept, rest[: _n_whole(vocab, rest[: n_most - n_kept])], False

        n_kept, rest, is_whole = self._native.with_vocab(spell)
        self._put(start + n_kept, rest)
        return is_whole

    def _written(self, start: int) -> str:
        """Return what the tokens behind the first ones spell."""
        tokens = self.tokens[start:]
        return self._native.with_vocab(lambda vocab: vocab.detokenize(tokens)).decode(errors="replace")

    def _put(self, n_kept: int, tokens: Sequence[int]) -> None:
        """Put tokens in the place of all behind the first ones."""
        array = np.array(tokens, np.int32)

        def replaced() -> None:
            self._replace()
            self._prompt = self._prompt[:n_kept]

        self._change(
            lib.token_trie_stream_append,
            n_kept,
            ffi.from_buffer("llama_token[]", array) if len(array) else ffi.NULL,
            len(array),
            after=replaced,
        )

    def fork(self) -> Self:
        """Make a second handle, whose sequence goes on from here: same text, trie, grammar and draws.

        The two share the context, and the cache of what their sequences begin with alike: nothing is evaluated twice,
        and n_ctx is what all forks hold together. (Of recurrent and hybrid models, each has a copy of its state.) Each
        may be forked again, and is closed by itself; what they share goes with the last.

        Raises
        ------
        ArgumentError
            The handle is closed.
        BusyError
            It, or another fork of it, is in a call. As they share a context, one of them is at a time.
        """
        wait_for_dropped()
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._begin(self._native.fork())
        return other

    def set_payload(self, payload: str | bytes | Mapping[str, Any] | None) -> None:
        """Give the sets of a TokenTreePayload, one a descriptor's path, to choose from by `path`; None takes them away.

        All are read now, at once; to set one of them later takes no time. The trie that is set stays.

        Raises
        ------
        TokenTrieError
            What `TokenTrie.from_payload` raises. The sets before are kept.
        """
        read = ffi.NULL if payload is None else json_of(payload)
        sets: dict[str | None, TokenTrie] = {}
        if payload is not None:
            tries = self._native.with_vocab(lambda vocab: _core.tries_by_path(read, vocab))
            sets |= {path: TokenTrie.of_core(trie) for path, trie in tries.items()}

        def keep() -> None:
            self._sets = sets

        self._change(lib.token_trie_stream_set_payload, read, 0 if payload is None else len(read), after=keep)

    @contextmanager
    def _restored(self) -> Iterator[list[int]]:
        """Give the sequence; put it and the trie back if what is done with them fails."""
        before = self.tokens
        put_back, n_changes = self._set, self._n_changes
        try:
            yield before
        except BaseException:
            if self._n_changes == n_changes:
                raise  # nor does a span, or a grammar, begin anew
            with suppress(TokenTrieError):
                n_same = common_prefix(np.array(self.tokens, np.int32), np.array(before, np.int32))
                self._put(n_same, before[n_same:])
                if put_back is None:
                    self.clear_token_trie()
                else:
                    self._put_set(put_back)
            raise

    def _with_model(self, use: Callable[[_core.Vocab, dict[object, Any]], T]) -> T:
        """Let work be done on the vocabulary, and with what is remembered of the model."""
        if self._llm is None:
            return self._native.with_vocab(lambda vocab: use(vocab, self._known))
        with lease(self._llm):
            return use(vocab_of(self._llm), attachment(self._llm).known)


def behind(vocab: _core.Vocab, before: list[int], text: bytes) -> tuple[int, list[int]]:
    """Return how many tokens stay, and those that follow them, where a text is written behind."""
    seam = find_seam(vocab, before, False)
    if not seam.tail and not vocab.is_control(before[-1]):
        seam = inner_seam(vocab, [])  # nor does a space come between, where what stands before is no text
    tokens = tokenize_text(vocab, seam.text + text, "text", begins=False)
    n_same = common_prefix(np.array(seam.tail, np.int32), np.array(tokens, np.int32))
    return len(before) - len(seam.tail) + n_same, tokens[n_same:]


def _n_whole(vocab: _core.Vocab, tokens: list[int]) -> int:
    """Return how many of the first tokens there are until the last that ends no character halfway."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    n = 0
    for i, token in enumerate(tokens):
        decoder.decode(vocab.detokenize([token]))
        n = n if decoder.getstate()[0] else i + 1
    return n


def _check_stops(stop: str | Sequence[str]) -> list[str]:
    if not isinstance(stop, (str, list, tuple)):
        raise ArgumentError(f"stop: {type(stop).__name__} where a text or a list of texts belongs")
    stops = [stop] if isinstance(stop, str) and stop else [] if isinstance(stop, str) else list(stop)
    for i, text in enumerate(stops):
        if not encode(text, f"stop[{i}]"):
            raise ArgumentError(f"stop[{i}]: empty")
    return stops
