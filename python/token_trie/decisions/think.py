"""Thinking first: free text up to a marker, then the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from token_trie.errors import ArgumentError, CancelledError, InternalError
from token_trie.llama.query import Sampling
from token_trie.llama.span import SpanOptions
from token_trie.llama.stream import Stream
from token_trie.llama.text import append
from token_trie.native.checks import check_counts, check_numbers
from token_trie.native.core import _core
from token_trie.sets.spelling import inner_tokens
from token_trie.sets.trie import TokenTrie


@dataclass(frozen=True)
class Think(Sampling):
    """Let the model write freely before it answers.

    The thought ends at the marker. If the marker is a text, any tokens may spell it. After `max_tokens` or `seconds`,
    the missing part of the marker is forced. The model cannot end its text before the marker.
    """

    marker: str | Sequence[int] = "\nAnswer:"
    """Tokens, or a text, in which names of control tokens become control tokens."""
    max_tokens: int = 256
    """Largest number of tokens, without the marker; 0: the marker alone."""
    seconds: float | None = None
    """Time limit, checked every few tokens; None, the default: no limit. Thoughts with a time limit cannot run in
    batches: `choose_many` refuses them."""
    margin: float = 0.5
    """For `decide` only: the model thinks if the two best probabilities, without a thought, differ by less than
    this."""
    share: float = 0.2
    """For `decide` only: the share of decisions that may think. If n decisions were made in this process with this
    Llama (or this handle on a file) and a `Think` of this share, at most ``share * n`` of them, rounded up, think.
    Among the questions about one state, the closest ones think."""

    def __post_init__(self) -> None:
        if not len(self.marker):
            raise ArgumentError("think: the marker is empty")
        check_counts(0, max_tokens=self.max_tokens)
        self.check_sampling(draws=False)
        check_numbers(margin=self.margin, share=self.share, seconds=0.0 if self.seconds is None else self.seconds)
        if self.seconds is not None and not self.seconds >= 0:
            raise ArgumentError(f"seconds: {self.seconds} is below 0")
        for name in ("margin", "share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ArgumentError(f"{name}: {getattr(self, name)} is not between 0 and 1")


def check_think(think: object) -> None:
    """Raise ArgumentError unless it is a `Think` or None."""
    if not (think is None or isinstance(think, Think)):
        raise ArgumentError(f"think: {type(think).__name__} where a Think belongs")


def marker_tokens(think: Think, vocab: _core.Vocab) -> list[int]:
    """Return the tokens of the marker; ArgumentError or VocabularyError if it has none."""
    tokens: list[int] = inner_tokens(think.marker, "think: marker", vocab, special=True).tolist()
    return tokens


def any_set(marker: list[int]) -> TokenTrie:
    """Return a set for the stream during a thought; its span never begins."""
    return TokenTrie.from_sequences({"": marker[:1]})


def think_first(stream: Stream, think: Think, seed: int | None = None) -> str:
    """Let the model think after the sequence, which then ends in the marker; return the thought's text.

    On failure the sequence keeps what was written so far, and the trie may be replaced.
    """
    marker = stream.with_vocab(lambda vocab: marker_tokens(think, vocab))
    if seed is not None:
        stream.set_seed(seed)
    stream.set_trie(any_set(marker), rules=SpanOptions(start_after=marker, max_before=think.max_tokens))
    start = stream.raw_state.n_tokens
    found = _write(stream, think, start)
    if stream.is_cancelled:
        raise CancelledError("the thought was cancelled")
    tokens = stream.tokens[start:]
    if found:
        append(stream, think.marker)
    elif tokens[-len(marker) :] == marker:
        tokens = tokens[: -len(marker)]
    else:
        raise InternalError(f"the thought ended as {stream.state} without its marker")
    return stream.detokenize(tokens)


_CHECK_EVERY = 8
"""Tokens between two checks of the clock."""


def _write(stream: Stream, think: Think, start: int) -> bool:
    """Let the model write up to the marker; return whether the caller must append it, as its tokens are missing."""
    stops = [think.marker] if isinstance(think.marker, str) else []
    until = None if think.seconds is None else time.monotonic() + think.seconds
    while True:
        most = 2**31 - 1 if until is None else _CHECK_EVERY
        found = stream.steps.generate_until(stops, most, think.settled(draws=False))
        if found is not None or until is None or stream.state.stop != "max_tokens":
            return found is not None
        if stops and _cut_at(stream, start, stops[0]):
            return True
        if time.monotonic() >= until:
            return True


def _cut_at(stream: Stream, start: int, marker: str) -> bool:
    """Remove a marker text after a position, with all text after it; return whether it was found."""
    tokens = stream.tokens
    text = stream.detokenize(tokens[start:])
    if marker not in text:
        return False
    before = text[: text.index(marker)]
    n_kept = next(n for n in range(len(tokens), start - 1, -1) if before.startswith(stream.detokenize(tokens[start:n])))
    stream.splice(n_kept, ())
    rest = before[len(stream.detokenize(tokens[start:n_kept])) :]
    if rest:
        append(stream, rest)
    return True
