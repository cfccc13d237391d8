"""Thinking first: free text up to a marker, then the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from token_trie.errors import ArgumentError
from token_trie.llama.query import Sampling
from token_trie.llama.text import tokenize_after
from token_trie.native.checks import check_counts, check_numbers
from token_trie.native.core import _core
from token_trie.native.ffi import lib
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
    """Time limit, checked every few tokens; None, the default: no limit. In a batch, the time includes the passes that
    also served other prompts."""
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
    """Return a set for the query of a thought; its span never begins."""
    return TokenTrie.from_sequences({"": marker[:1]})


def end_of_thought(
    vocab: _core.Vocab, think: Think, marker: list[int], tokens: list[int], start: int, seam: int, stop: int
) -> tuple[list[int], str] | None:
    """Find the end of a thought, which the model writes in one text or several.

    Parameters
    ----------
    marker
        The marker's tokens.
    start, seam
        Positions at which the thought and its last text begin.
    stop
        Why the last text ended, as enum token_trie_stop.

    Returns
    -------
    tuple or None
        The tokens up to and including the marker, and the text of the thought; None if it goes on.
    """

    def bytes_to(end: int) -> bytes:
        return vocab.detokenize(tokens[start:end])

    written, text = bytes_to(len(tokens)), str(think.marker).encode()
    end = next((i for i in range(start, len(tokens)) if tokens[i : i + len(marker)] == marker), -1)
    if seam > start and isinstance(think.marker, str):  # its text may have begun before the seam, in other tokens
        at = written.find(text)
        if at >= 0 and (end < 0 or at < len(bytes_to(end))):
            n_kept = next(n for n in range(len(tokens), start - 1, -1) if written[:at].startswith(bytes_to(n)))
            n_kept, more = tokenize_after(vocab, tokens[:n_kept], written[len(bytes_to(n_kept)) : at] + text)
            return tokens[:n_kept] + more, written[:at].decode(errors="replace")
    if end >= 0:
        return tokens[:end] + marker, bytes_to(end).decode(errors="replace")
    if stop == lib.TOKEN_TRIE_STOP_STRING:
        n_kept, more = tokenize_after(vocab, tokens, text)
        return tokens[:n_kept] + more, written.decode(errors="replace")
    return None
