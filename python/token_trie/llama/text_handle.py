"""`TextHandle`: a sequence, and what the model writes behind it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from token_trie.errors import ArgumentError
from token_trie.llama.asynchronous import Asynchronous
from token_trie.llama.generation import Generation
from token_trie.llama.options import StreamOptions
from token_trie.llama.span import SpanOptions, StepMode
from token_trie.llama.state import StreamState
from token_trie.llama.stream import Stream
from token_trie.llama.text import Text, TextOptions, append, write_text
from token_trie.native.core import Llama
from token_trie.native.options import takes
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from token_trie.llama.options import StreamKeywords
    from token_trie.llama.span import SpanKeywords
    from token_trie.llama.text import TextKeywords


def cancel_of(handle: TextHandle, thread: int) -> None:
    """End what a thread is doing with a handle, for an async form."""
    handle._stream.cancel_of(thread)


class TextHandle:
    """What of a `StreamHandle` generates and holds; decisions come on top."""

    def __init__(self, llm: Llama | str | os.PathLike[str], **options: Unpack[StreamKeywords]) -> None:
        self._stream = Stream(llm, options=StreamOptions.read("StreamHandle", options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the context; a call that another thread is in ends first. Closing twice does nothing.

        From a signal's handler or a log callback inside a call of this very thread, it returns at once, and the context
        is freed after that call.
        """
        self._stream.close()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a StreamHandle cannot be copied or pickled: its context is one; open another")

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
        stream = self._stream.fork()
        other = object.__new__(type(self))
        other._stream = stream
        return other

    def cancel(self) -> None:
        """End what is under way in another thread, and any `generate` begun, within one forward pass."""
        self._stream.cancel()

    @property
    def tokens(self) -> list[int]:
        """The sequence; BusyError while a call is under way."""
        return self._stream.tokens

    @property
    def state(self) -> StreamState:
        """Where the stream stands."""
        return self._stream.state

    def prefill(self, prompt: Prompt) -> None:
        """Make the sequence this prompt, evaluated; what it shares with the one before is not evaluated again.

        Nor is what the Llama has evaluated: where that is more, and nobody is at work in it, it is copied. The Llama
        stays as it is.

        Parameters
        ----------
        prompt : str, sequence of int, or sequence of chat messages
            A handle on a file takes text or tokens, but no messages.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError, CancelledError
        BusyError
            Another call is under way, or a generation of another thread. One of this thread is over.
        """
        self._stream.prefill(self._stream.tokenize(prompt))

    def append(self, text: str | Sequence[int]) -> None:
        """Put text or tokens behind the sequence, to be evaluated with what follows.

        Text is tokenized as it follows what stands there; where its beginning merges with the last tokens, these are
        taken back. Names of control tokens in it become these. Trie and grammar begin anew.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError, BusyError
            As of `prefill`.
        """
        append(self._stream, text)

    def set_grammar(self, gbnf: str | None, root: str = "root") -> None:
        """Put what is generated from here on under a GBNF grammar; None for none. A trie takes its place while set.

        GrammarError where it does not parse.
        """
        self._stream.set_grammar(gbnf, root)

    def set_seed(self, seed: int | None) -> None:
        """Begin draws anew from a seed in [0, 2**32); None for others each time."""
        self._stream.set_seed(seed)

    def set_payload(self, payload: str | bytes | Mapping[str, Any] | None) -> None:
        """Give the sets of a TokenTreePayload, one a descriptor's path, to choose from by `path`; None takes them away.

        All are read now, at once; to set one of them later takes no time. The trie that is set stays. Errors are those
        of `TokenTrie.from_payload`.
        """
        self._stream.set_payload(payload)

    @takes(SpanOptions)
    def set_token_trie(
        self,
        trie: TokenTrie | str | bytes | Mapping[str, Any] | None = None,
        mode: StepMode | None = None,
        *,
        path: str | None = None,
        **options: Unpack[SpanKeywords],
    ) -> None:
        """Put what is generated from here on under a trie, from its root.

        Parameters are those of `constrain`, and a trie may also be a TokenTreePayload, as JSON or dict, with `path`.
        Without one, it is the set of `path` in the payload that `set_payload` was given, which takes no time.
        `StreamState.n_closed` counts the spans that `max_span` ended. Errors are those of `TokenTrie.from_payload` and
        `constrain`.
        """
        rules = SpanOptions.read("set_token_trie", options)
        self._stream.set_trie(self._stream.read_set(trie, path), mode, rules)

    def clear_token_trie(self) -> None:
        """Take the trie away; a grammar set before is back."""
        self._stream.clear_span()

    def generate(self, max_tokens: int = 2**31 - 1, temperature: float | None = None, top_p: float = 1.0) -> Generation:
        """Generate token by token until the span is complete, the text ends, or max_tokens are out: see `state`.

        Parameters
        ----------
        max_tokens : int
            Tokens at most.
        temperature : float, optional
            0, the default, takes the best token; above 0 draws, in free text and under a trie in sampled mode.
        top_p : float
            In (0, 1].

        Returns
        -------
        Generation
            An iterator of `Step`, for ``for`` and for ``async for``.

        Raises
        ------
        ArgumentError
            An option is no number, or one that no float holds.
        ArgumentError, ContextError, GrammarError, BusyError
            From the iterator; a further call goes on behind the tokens that it gave.
        """
        return Generation(self._stream, max_tokens, temperature, top_p)

    @takes(TextOptions)
    def text(self, max_tokens: int = 2**31 - 1, **options: Unpack[TextKeywords]) -> Text:
        """Let the model go on, freely or under the grammar that is set; a trie is taken away first.

        Parameters
        ----------
        max_tokens : int
            Tokens at most.
        **options
            Those of `TextOptions`.

        Raises
        ------
        ArgumentError
            An option is out of range, or a stop string empty.
        ContextError, GrammarError, BusyError
        """
        return write_text(self._stream, max_tokens, TextOptions.read("text", options))

    _form_of = Asynchronous(cancel_of)
    aprefill = _form_of(prefill)
    atext = _form_of(text)
