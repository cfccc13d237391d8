"""Tokens of a text that begins like an earlier text; only the end that differs is tokenized.

    before   … play_music ⏎⏎ Request: wake me ⏎ Action:
    now      … play_music ⏎⏎ Request: call Tom at 3 ⏎ Action:
    a line   ^ a         ^ m          ^ first difference

Let ``m`` be the last beginning of a line that both texts have. The tokens before ``m`` are kept. The text behind it is
tokenized together with the line ``[a, m)`` before it. If that line gets the same tokens as before, then the whole text
would get just these tokens:

- Tokenizers that merge pairs of neighbours (BPE, SentencePiece) merge in a fixed order. Whether a merge crosses a
  position depends on the text on both sides, up to the next positions that no merge crosses. At ``m``, this is the line
  ``[a, m)``, the same in both texts, and the text behind ``m``, which is tokenized together with it.
- BPE first splits a text into words, by patterns that do not look back. A line that begins with something other than
  white space begins a word, or the tokens of a longer word are merged as above.

If the line gets other tokens, or the tokenizer is of another kind, the whole text is tokenized.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Tokenize = Callable[[bytes], list[int]]
Piece = Callable[[int], bytes]

_KEPT = 4


class Retokenizer:
    """The last texts of one model, with their tokens."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[int]] = {}
        self._lock = threading.Lock()

    def tokens_of(self, text: bytes, tokenize: Tokenize, piece: Piece) -> list[int]:
        """Return the tokens of a text, as ``tokenize`` would give them; ``piece`` gives the text of a token."""
        with self._lock:
            known = list(self._known.items())
        n_same, before, tokens = max(
            ((_common_length(text, before), before, tokens) for before, tokens in known),
            key=lambda one: one[0],
            default=(0, b"", []),
        )
        if n_same == len(text) == len(before):
            with self._lock:
                self._known[text] = self._known.pop(text, tokens)  # now the newest
            return tokens.copy()
        found = _from_the_difference(text, n_same, before, tokens, tokenize, piece)
        if found is None:
            found = tokenize(text)
        with self._lock:
            self._known[text] = found
            while len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
        return found.copy()


def _from_the_difference(
    text: bytes, n_same: int, before: bytes, tokens: list[int], tokenize: Tokenize, piece: Piece
) -> list[int] | None:
    m = _line_before(text, n_same)
    a = _line_before(text, m)
    if a == 0 or 2 * a < len(text):
        return None  # the end is most of the text
    first, after = (_count_to(before, tokens, position, piece) for position in (a, m))
    if first is None or after is None:
        return None
    new = tokenize(text[a:])
    return tokens[:first] + new if new[: after - first] == tokens[first:after] else None


def _count_to(text: bytes, tokens: list[int], position: int, piece: Piece) -> int | None:
    """Count the tokens before a position of a text; None where a token crosses it."""
    at, n = len(text), len(tokens)
    while at > position and n > 0:
        n -= 1
        spelled = piece(tokens[n])
        if not text.endswith(spelled, 0, at):
            return None
        at -= len(spelled)
    return n if at == position else None


def _line_before(text: bytes, end: int) -> int:
    """Return where the last line begins before the end that does not begin with white space; 0 where there is none."""
    at = text.rfind(b"\n", 0, max(end - 1, 0)) + 1
    while at > 0 and text[at : at + 1].isspace():
        at = text.rfind(b"\n", 0, at - 1) + 1
    return at


def _common_length(a: bytes, b: bytes) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
