"""Texts that begin as one before did, tokenized from where they differ.

    before   … play_music ⏎⏎ Request: wake me ⏎ Action:
    now      … play_music ⏎⏎ Request: call Tom at 3 ⏎ Action:
    a line   ^ a         ^ m          ^ first difference

Kept is what was before ``m``, the last beginning of a line that both have. What follows is tokenized together with the
line ``a`` before it, and has to agree with that one's tokens, which is the proof that the whole would give just these:

- Tokenizers that merge pairs of neighbours (BPE, SentencePiece) do so by a fixed order. Whether a merge reaches over a
  place depends on the two stretches beside it, as far as the places next to it that no merge reaches over. Beside ``m``
  these are ``[a, m)``, which is the same before and now, and what follows, whose tokens are computed with it.
- BPE splits texts into words beforehand, by patterns that do not look back. Where a line begins with something other
  than white space a word begins too, or the tokens of the longer word are merged as above.

Where the tokens disagree, or the tokenizer is of another kind, the whole is tokenized.
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
        """Return the tokens of a text, as ``tokenize`` would give them; ``piece`` has the text of a token."""
        with self._lock:
            known = list(self._known.items())
        n_same, before, tokens = max(
            ((_common_length(text, before), before, tokens) for before, tokens in known),
            key=lambda one: one[0],
            default=(0, b"", []),
        )
        if n_same == len(text) == len(before):
            with self._lock:
                self._known[text] = self._known.pop(text, tokens)  # as the last
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
        return None  # little would be gained
    first, after = (_count_to(before, tokens, place, piece) for place in (a, m))
    if first is None or after is None:
        return None
    new = tokenize(text[a:])
    return tokens[:first] + new if new[: after - first] == tokens[first:after] else None


def _count_to(text: bytes, tokens: list[int], place: int, piece: Piece) -> int | None:
    """Count the tokens before a place of a text, from the end; None where a token reaches over it."""
    at, n = len(text), len(tokens)
    while at > place and n > 0:
        n -= 1
        spelled = piece(tokens[n])
        if not text.endswith(spelled, 0, at):
            return None
        at -= len(spelled)
    return n if at == place else None


def _line_before(text: bytes, end: int) -> int:
    """Return the last place before the end at which a line begins, with something on it; 0 where there is none."""
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
