"""`TextHandle`: a sequence, and what the model writes behind it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from token_trie.errors import ArgumentError
from token_trie.llama.asynchronous import Asynchronous
from token_trie.llama.generation import Generation
from token_trie.llama.options import StreamOptions
from token_trie.llama.sampling import Sampling
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
    from token_trie.llama.sampling import SamplingKeywords
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
        """End and wait for a running call of another thread, then free the context. Closing twice does nothing.

        If it is called from a signal handler or a log callback during a call of the same thread, it returns at once,
        and the context is freed after that call.
        """
        self._stream.close()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a StreamHandle cannot be copied or pickled: its context is one; open another")

    def fork(self) -> Self:
        """Make a second handle that continues from here, with the same text, trie, grammar and random draws.

        Both share the context, and the cache of the common beginning of their sequences. Nothing is evaluated twice,
        and all forks together have `n_ctx` tokens. (With recurrent and hybrid models, each has a copy of its state.)
        Each can be forked again and must be closed; the last one that is closed frees what they share.

        Raises
        ------
        ArgumentError
            The handle is closed.
        BusyError
            The handle, or another fork of it, is in a call. Forks share a context, so only one works at a time.
        """
        stream = self._stream.fork()
        other = object.__new__(type(self))
        other._stream = stream
        return other

    def cancel(self) -> None:
        """End the running call of another thread, and any `generate` that has begun, within one forward pass."""
        self._stream.cancel()

    @property
    def tokens(self) -> list[int]:
        """The tokens of the sequence. Raises BusyError during a call of another thread."""
        return self._stream.tokens

    @property
    def state(self) -> StreamState:
        """The state of the stream."""
        return self._stream.state

    def prefill(self, prompt: Prompt) -> None:
        """Replace the sequence by this prompt and evaluate it; a beginning shared with the old one is kept.

        If the Llama itself has evaluated a longer beginning of the prompt, and is not in use, its cache is copied. The
        Llama does not change.

        Parameters
        ----------
        prompt : str, sequence of int, or sequence of chat messages
            A handle on a file takes text or tokens, but no messages.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError, CancelledError
        BusyError
            Another call is running, or another thread reads a generation. A generation of this thread ends.
        """
        self._stream.prefill(self._stream.tokenize(prompt))

    def append(self, text: str | Sequence[int]) -> None:
        """Add text or tokens to the sequence; they are evaluated together with what follows.

        A text is tokenized as it follows the sequence. If its beginning merges with the last tokens of the sequence,
        these tokens are replaced. Names of control tokens in it become control tokens. Trie and grammar start again.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError, BusyError
            As of `prefill`.
        """
        append(self._stream, text)

    def set_grammar(self, gbnf: str | None, root: str = "root") -> None:
        """Constrain what is generated from here on by a GBNF grammar; None removes it.

        While a trie is set, it replaces the grammar. Raises GrammarError if the grammar does not parse.
        """
        self._stream.set_grammar(gbnf, root)

    def set_seed(self, seed: int | None) -> None:
        """Restart random draws from a seed in [0, 2**32); None: a new seed each time."""
        self._stream.set_seed(seed)

    def set_payload(self, payload: str | bytes | Mapping[str, Any] | None) -> None:
        """Read the sets of a TokenTreePayload, one for each path, for the parameter `path`; None removes them.

        All sets are read now, so using one later takes no time. The trie that is set stays. Errors are those of
        `TokenTrie.from_payload`.
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
        """Constrain what is generated from here on by a trie, from its root.

        Parameters are those of `constrain`. The trie can also be a TokenTreePayload, as JSON or dict, with `path`.
        Without a trie, the set of `path` in the payload of `set_payload` is used, which takes no time.
        `StreamState.n_closed` counts the spans that `max_span` ended. Errors are those of `TokenTrie.from_payload` and
        `constrain`.
        """
        rules = SpanOptions.read("set_token_trie", options)
        self._stream.set_trie(self._stream.read_set(trie, path), mode, rules)

    def clear_token_trie(self) -> None:
        """Remove the trie; a grammar that was set before applies again."""
        self._stream.clear_span()

    @takes(Sampling)
    def generate(self, max_tokens: int = 2**31 - 1, **options: Unpack[SamplingKeywords]) -> Generation:
        """Generate token by token until the span is complete, the text ends, or max_tokens is reached; see `state`.

        Parameters
        ----------
        max_tokens : int
            Largest number of tokens.
        **options
            Those of `Sampling`.

        Returns
        -------
        Generation
            An iterator of `Step`, for ``for`` and for ``async for``.

        Raises
        ------
        ArgumentError
            An option is not a number, or not representable as a float.
        ArgumentError, ContextError, GrammarError, BusyError
            From the iterator; another call continues after the tokens that it yielded.
        """
        sampling = Sampling.read("generate", options)
        if sampling.seed is not None:
            self._stream.set_seed(sampling.seed)
        return Generation(self._stream, max_tokens, sampling.settled(draws=False))

    @takes(TextOptions)
    def text(self, max_tokens: int = 2**31 - 1, **options: Unpack[TextKeywords]) -> Text:
        """Let the model write text, freely or by the grammar that is set; a trie is removed first.

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
