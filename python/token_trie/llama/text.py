"""Text in a sequence: appended, or written by the model."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from token_trie.errors import ArgumentError
from token_trie.llama.contexts import common_prefix
from token_trie.llama.query import Sampling
from token_trie.llama.stream import Stream
from token_trie.native.core import _core
from token_trie.native.options import check_counts, encode
from token_trie.sets.prompt import tokenize_text
from token_trie.sets.tokenization import check_tokens, find_seam, inner_seam

if TYPE_CHECKING:
    from token_trie.llama.query import SamplingKeywords


@dataclass(frozen=True, kw_only=True)
class TextOptions(Sampling):
    """Options of `StreamHandle.text`.

    Parameters
    ----------
    stop : str or sequence of str
        The text ends before any of these texts, even inside a token. They do not become part of the sequence.
    """

    stop: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        self.check_sampling(draws=False)
        self.check_drawn(draws=False)
        object.__setattr__(self, "stop", _check_stops(self.stop))


@dataclass(frozen=True)
class Text:
    """Text that the model has written."""

    text: str
    """The text, without the stop string."""
    tokens: list[int]
    stop: str
    """Why it ended: "string", "end", "max_tokens", "complete" for a finished grammar, or "cancelled"."""
    stop_string: str | None
    """The stop string that was found."""
    n_prompt: int
    """Number of tokens before it."""

    def __str__(self) -> str:
        return self.text

    @property
    def message(self) -> dict[str, str]:
        """The assistant's message in OpenAI's format."""
        return {"role": "assistant", "content": self.text}


def append(stream: Stream, text: str | Sequence[int]) -> None:
    """Add text or tokens to the sequence, as of `StreamHandle.append`."""
    with stream.own():
        before = stream.tokens
        if not before:
            raise ArgumentError("nothing to append to: prefill first")
        if isinstance(text, str):
            encoded = encode(text, "text")
            n_kept, tokens = stream.with_vocab(lambda vocab: tokenize_after(vocab, before, encoded))
        elif isinstance(text, (bytes, bytearray)) or not isinstance(text, (Sequence, np.ndarray)):
            raise ArgumentError(f"text must be str or token ids, not {type(text).__name__}")
        else:
            n_kept, tokens = len(before), check_tokens(text, stream.with_vocab(len), "text")
        stream.splice(n_kept, tokens)


def tokenize_after(vocab: _core.Vocab, before: list[int], text: bytes) -> tuple[int, list[int]]:
    """Tokenize a text after a sequence: return the number of tokens kept of the sequence, and the tokens after them."""
    return join_after(vocab, before, lambda lead: tokenize_text(vocab, lead + text, "text", begins=False))


def join_after(vocab: _core.Vocab, before: list[int], tokenize: Callable[[bytes], list[int]]) -> tuple[int, list[int]]:
    """Do as `tokenize_after`; `tokenize` returns the tokens of the text together with a given text before it."""
    seam = find_seam(vocab, before, False)
    if not seam.tail and not vocab.is_control(before[-1]):
        seam = inner_seam(vocab, [])  # no space comes between, even if the sequence ends in a token without text
    tokens = tokenize(seam.text)
    n_same = common_prefix(seam.tail, tokens)
    return len(before) - len(seam.tail) + n_same, tokens[n_same:]


def write_text(stream: Stream, max_tokens: int, options: TextOptions) -> Text:
    """Let the model write, as of `StreamHandle.text`."""
    check_counts(0, max_tokens=max_tokens)
    stops = options.stop
    with stream.own():
        if options.seed is not None:
            stream.set_seed(options.seed)
        stream.clear_span()
        start = stream.raw_state.n_tokens
        most = min(max_tokens, max(stream.n_ctx_max - start, 0) or max_tokens)  # a text ends where the context is full
        found = stream.generate_until(stops, most, options.settled(draws=False))
        tokens = stream.tokens[start:]
        text = stream.with_vocab(lambda vocab: text_of(vocab, tokens))
        return Text(text, tokens, stream.state.stop, None if found is None else stops[found], start)


def text_of(vocab: _core.Vocab, tokens: Sequence[int]) -> str:
    """Return the text of tokens, without an unfinished character at the end."""
    return codecs.utf_8_decode(vocab.detokenize(tokens), "replace", False)[0]


def _check_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(stop, (str, list, tuple)):
        raise ArgumentError(f"stop must be a text or a list of texts, not {type(stop).__name__}")
    stops = ((stop,) if stop else ()) if isinstance(stop, str) else tuple(stop)
    for i, text in enumerate(stops):
        if not encode(text, f"stop[{i}]"):
            raise ArgumentError(f"stop[{i}]: empty")
    return stops


if TYPE_CHECKING:  # by scripts/keywords

    class TextKeywords(SamplingKeywords, total=False):
        """Keywords of `TextOptions`."""

        stop: str | Sequence[str]
