"""Text in the middle of a sequence: put behind what stands, or written by the model."""

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
from token_trie.native.checks import check_counts, encode
from token_trie.native.core import _core
from token_trie.sets.prompt import tokenize_text
from token_trie.sets.spelling import check_tokens, find_seam, inner_seam

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
        object.__setattr__(self, "stop", _check_stops(self.stop))


@dataclass(frozen=True)
class Text:
    """What `StreamHandle.text` has generated."""

    text: str
    """The text, without the stop string."""
    stop: str
    """Why it ended: "stop", "end", "max_tokens", "complete" under a grammar, or "cancelled"."""
    stop_string: str | None
    """The stop string that was found."""
    n_tokens: int
    """Number of tokens that were added to the sequence."""

    def __str__(self) -> str:
        return self.text


def append(stream: Stream, text: str | Sequence[int]) -> None:
    """Put text or tokens behind the sequence, as of `StreamHandle.append`."""
    with stream.own():
        before = stream.tokens
        if not before:
            raise ArgumentError("nothing to append to: prefill first")
        if isinstance(text, str):
            encoded = encode(text, "text")
            n_kept, tokens = stream.with_vocab(lambda vocab: behind(vocab, before, encoded))
        elif isinstance(text, (bytes, bytearray)) or not isinstance(text, (Sequence, np.ndarray)):
            raise ArgumentError(f"text: {type(text).__name__} where text or token ids belong")
        else:
            n_kept, tokens = len(before), check_tokens(text, stream.with_vocab(len), "text")
        stream.splice(n_kept, tokens)


def behind(vocab: _core.Vocab, before: list[int], text: bytes) -> tuple[int, list[int]]:
    """Return how many tokens stay, and those that follow them, where a text is written behind."""
    return behind_by(vocab, before, lambda lead: tokenize_text(vocab, lead + text, "text", begins=False))


def behind_by(vocab: _core.Vocab, before: list[int], tokenize: Callable[[bytes], list[int]]) -> tuple[int, list[int]]:
    """Do as `behind`, for a text that is tokenized together with the lead given, of what stands before."""
    seam = find_seam(vocab, before, False)
    if not seam.tail and not vocab.is_control(before[-1]):
        seam = inner_seam(vocab, [])  # nor does a space come between, where what stands before is no text
    tokens = tokenize(seam.text)
    n_same = common_prefix(np.array(seam.tail, np.int32), np.array(tokens, np.int32))
    return len(before) - len(seam.tail) + n_same, tokens[n_same:]


def write_text(stream: Stream, max_tokens: int, options: TextOptions) -> Text:
    """Let the model go on, as of `StreamHandle.text`."""
    check_counts(0, max_tokens=max_tokens)
    stops = options.stop
    with stream.own():
        if options.seed is not None:
            stream.set_seed(options.seed)
        stream.clear_span()
        start = stream.raw_state.n_tokens
        found = stream.steps.generate_until(stops, max_tokens, options.settled(draws=False))
        tokens = stream.tokens[start:]
        why = "stop" if found is not None else stream.state.stop
        written = stream.with_vocab(lambda vocab: vocab.detokenize(tokens))
        # Of a character that ends halfway, nothing.
        text = codecs.utf_8_decode(written, "replace", False)[0]
        return Text(text, why, None if found is None else stops[found], len(tokens))


def _check_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(stop, (str, list, tuple)):
        raise ArgumentError(f"stop: {type(stop).__name__} where a text or a list of texts belongs")
    stops = ((stop,) if stop else ()) if isinstance(stop, str) else tuple(stop)
    for i, text in enumerate(stops):
        if not encode(text, f"stop[{i}]"):
            raise ArgumentError(f"stop[{i}]: empty")
    return stops


if TYPE_CHECKING:  # by scripts/keywords

    class TextKeywords(SamplingKeywords, total=False):
        """Those of `TextOptions`."""

        stop: str | Sequence[str]
