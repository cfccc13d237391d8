"""Tokenization of choices after a prompt, and checks of given token ids."""

from __future__ import annotations

import itertools
import operator
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, LimitError, VocabularyError
from token_trie.native.options import encode


class Speller(Protocol):
    """A vocabulary that tokenizes texts: a ``_core.Vocab`` of llama.cpp, or one of another engine."""

    def tokenize(
        self, texts: Sequence[bytes], what: str, special: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return the tokens of all texts and the offset of each text; with `special`, also control tokens."""
        ...

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> bytes:
        """Return the text of tokens; without `special`, control tokens have no text."""
        ...

    def is_control(self, token: int) -> bool:
        """Return whether a token is not text."""
        ...

    def fingerprint(self) -> str:
        """Return the fingerprint of the vocabulary, ``""`` if unknown."""
        ...


class Seam(NamedTuple):
    """The end of a prompt that the tokenization of a following text depends on."""

    tail: tuple[int, ...]
    """The last tokens; empty if choices are tokenized as at the start of an answer."""
    text: bytes
    """The text that tokenizes to them."""
    takes_space: bool
    """Whether written text has a space between this prompt and a word."""


def check_texts(texts: Sequence[str]) -> list[bytes]:
    """Return choices as UTF-8; ArgumentError if one is empty, or contains a NUL or a lone surrogate."""
    try:
        encoded = list(map(str.encode, texts))
    except (TypeError, UnicodeEncodeError):
        encoded = []
    if not encoded or any(b"\0" in text for text in encoded):
        encoded = [encode(text, f"choices[{i}]") for i, text in enumerate(texts)]  # raises for the wrong one
    if b"" in encoded:
        raise ArgumentError(f"choices[{encoded.index(b'')}]: empty")
    return encoded


def find_seam(vocab: Speller, prompt: list[int], leading_space: bool | None) -> Seam:
    """Find the seam at the end of a prompt, in its last line, or in less if that is long."""
    if leading_space is not None and not isinstance(leading_space, bool):
        raise ArgumentError(f"leading_space: {leading_space!r} is not True, False or None")
    line = _last_line(vocab, prompt)
    takes_space = leading_space
    if takes_space is None:
        takes_space = _takes_space(vocab.detokenize(line).decode(errors="ignore"))
    tail, text = _tail(vocab, line) if line else ((), b"")
    return Seam(tail, text, takes_space)


def inner_seam(vocab: Speller, before: Sequence[int]) -> Seam:
    """Find the seam inside a text: the shortest end that the tokenization of a following text depends on."""
    end: list[int] = []
    for token in reversed(before[-64:]):
        if vocab.is_control(token):
            break
        end.insert(0, token)
    return Seam(*_tail(vocab, end, (2, 8, 64)), False)


def spell(
    vocab: Speller, seam: Seam, texts: Sequence[str], *, all_spaced: bool, is_whole: bool
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], int]:
    """Tokenize choices after a seam; return their tokens, the offset of each, and by how many the prompt is shorter.

    `all_spaced`: whether the seam's space comes before every choice, even one that begins with white space. `is_whole`:
    whether the tail is the whole prompt; then part of it must stay.
    """
    written = [seam.text + text for text in _following(seam, texts, all_spaced=all_spaced)]
    tokens, offsets = vocab.tokenize(written, "choices")
    n_same = _common_prefix(np.array(seam.tail, np.int32), tokens, offsets)
    if is_whole and seam.tail and n_same == 0:
        raise VocabularyError(
            "the whole prompt merges with the choices; let it begin with more text, or give leading_space"
        )
    return *_drop_each(tokens, offsets, n_same), len(seam.tail) - n_same


def _following(seam: Seam, texts: Sequence[str], *, all_spaced: bool) -> list[bytes]:
    """Return choices as written after a seam; parameters as of `spell`."""
    encoded = check_texts(texts)
    if not seam.takes_space:
        return encoded
    bare = set() if all_spaced else {c for c in {choice[0] for choice in texts} if c.isspace() or _is_wide(c)}
    if not bare:
        return [b" " + text for text in encoded]
    return [text if choice[0] in bare else b" " + text for choice, text in zip(texts, encoded, strict=True)]


def _last_line(vocab: Speller, prompt: list[int]) -> list[int]:
    """Return the tokens of the prompt's last line that is not white space, or those after its last control token.

    Tokenizers do not merge across control tokens; those that split texts, split at the start of a line.
    """
    later = b""
    for i in range(len(prompt) - 1, -1, -1):
        if vocab.is_control(prompt[i]):
            return prompt[i + 1 :]
        piece = vocab.detokenize(prompt[i : i + 1])
        if piece.endswith(b"\n") and later and not later[:1].isspace():
            return prompt[i + 1 :]
        later = piece or later
    return prompt


def _tail(vocab: Speller, line: list[int], lengths: Sequence[int] = ()) -> tuple[tuple[int, ...], bytes]:
    """Return the last tokens, and a text that tokenizes to exactly these.

    If there is no such text: a line break if the tokenizer puts a space before a text, otherwise nothing.
    """
    if _ends_inside_character(vocab.detokenize(line[-_MAX_CHARACTER:])):
        lengths = ()  # a following text would become the end of the character
    elif not lengths:
        lengths = (len(line), 16, 64) if len(line) <= 64 else (16, 64, len(line))
    for length in lengths:
        tail = line[-length:]
        text = vocab.detokenize(tail)
        # SentencePiece puts a space before a text; a tail that begins with a space must not get a second one.
        for candidate in (text, text.removeprefix(b" ")):
            if candidate and _spells(vocab, tail, candidate):
                return tuple(tail), candidate
        # A tail that begins inside a word must not get a space, so it goes before a line break.
        lead = line_break(vocab)
        if lead and text and _spells(vocab, [*lead, *tail], _LINE + text):
            return (*lead, *tail), _LINE + text
    lead = line_break(vocab)
    return lead, _LINE if lead else b""


_LINE = b"\n"
_MAX_CHARACTER = 4
"""Bytes of the longest character in UTF-8, and so its largest number of tokens."""


def _ends_inside_character(text: bytes) -> bool:
    """Return whether a text ends inside a character."""
    return text[-1:] >= b"\xc0" or text[-2:-1] >= b"\xe0" or text[-3:-2] >= b"\xf0"


def line_break(vocab: Speller) -> tuple[int, ...]:
    """Return the tokens of a line break if the tokenizer puts a space before a text; otherwise none."""
    tokens = vocab.tokenize([_LINE], "line")[0].tolist()
    return tuple(tokens) if vocab.detokenize(tokens) != _LINE else ()


def _spells(vocab: Speller, tokens: list[int], text: bytes) -> bool:
    try:
        spelled, _ = vocab.tokenize([text], "prompt")
    except (VocabularyError, LimitError):
        return False
    return bool(spelled.tolist() == tokens)


_OPENING = frozenset("([{<¿¡“‘«„/\\#@$-")
_PAIRED = frozenset("\"'`*_~|")
_TAG = re.compile(r"<[^<>\s]+>$")


def _takes_space(prompt: str) -> bool:
    """Return whether written text has a space between this prompt and a word."""
    line = prompt.split("\n")[-1]
    if not line or line[-1].isspace() or line[-1] in _OPENING or _TAG.search(line) or _is_wide(line[-1]):
        return False
    mark = line[len(line.rstrip(line[-1])) :]
    return line[-1] not in _PAIRED or line.count(mark) % 2 == 0


def _is_wide(char: str) -> bool:
    """Return whether a character belongs to a script that is written without spaces."""
    return unicodedata.east_asian_width(char) in "WF"


def _common_prefix(tail: npt.NDArray[np.int32], tokens: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]) -> int:
    """Count the tail's tokens with which all sequences begin; each sequence keeps at least one token."""
    limit = min(len(tail), int(np.diff(offsets).min()) - 1)
    for n in range(limit):
        if (tokens[offsets[:-1] + n] != tail[n]).any():
            return n
    return max(limit, 0)


def _drop_each(
    tokens: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], n: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return the sequences without their first n tokens."""
    position = np.arange(len(tokens)) - np.repeat(offsets[:-1], np.diff(offsets))
    return tokens[position >= n], offsets - n * np.arange(len(offsets))


Tokens: TypeAlias = Sequence[int] | npt.NDArray[np.int32]


def to_tokens(tokens: object, what: str) -> npt.NDArray[np.int32]:
    """Return token ids as an array; ArgumentError if they are not token ids."""
    try:
        array = np.asarray(tokens)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{what}: not a sequence of token ids ({error})") from error
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ArgumentError(f"{what}: not a sequence of token ids")
    if array.dtype != np.int32:
        limits = np.iinfo(np.int32)
        if array.max() > limits.max or array.min() < limits.min:
            raise ArgumentError(f"{what}: a token id does not fit 32 bits")
        array = array.astype(np.int32)
    return array


def to_token(token: object, n_vocab: int) -> int:
    """Return a token id, also of numpy or torch, as an int; an error if it is not a token id."""
    try:
        number = operator.index(token)  # type: ignore[arg-type]
    except TypeError as error:
        raise ArgumentError(f"token_id must be a token id, not {type(token).__name__}") from error
    if not 0 <= number < n_vocab:
        raise VocabularyError(f"token_id: {number} is outside the vocabulary ({n_vocab} tokens)")
    return number


def joined(rows: Sequence[Tokens]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Concatenate sequences (all lists or all arrays); return their tokens and offsets."""
    are_arrays = bool(rows) and isinstance(rows[0], np.ndarray)
    tokens = np.concatenate(rows) if are_arrays else np.fromiter(itertools.chain.from_iterable(rows), np.int32)
    return tokens, np.cumsum([0, *map(len, rows)], dtype=np.int64)


def check_tokens(prompt: Sequence[Any], n_vocab: int, what: str = "prompt") -> list[int]:
    """Return token ids as a list; an error names the first that is wrong or outside the vocabulary."""
    # Prompts are long, so the usual case is checked by loops in C.
    if (
        _has_end(prompt)
        and set(map(type, prompt)) <= {int}
        and min(prompt, default=0) >= 0
        and max(prompt, default=0) < n_vocab
    ):
        return list(prompt)
    tokens = []
    for i, token in enumerate(prompt):
        if not isinstance(token, (int, np.integer)) or isinstance(token, bool):
            raise ArgumentError(f"{what}[{i}] must be a token id or a chat message, not {type(token).__name__}")
        if not 0 <= token < n_vocab:
            raise VocabularyError(f"{what}[{i}]: {token} is outside the vocabulary ({n_vocab} tokens)")
        tokens.append(int(token))
    return tokens


def check_start(tokens: Sequence[int], start_token: int | None) -> None:
    """Raise ArgumentError if a set has a start token and the prompt does not end in it."""
    if start_token is not None and (len(tokens) == 0 or tokens[-1] != start_token):
        ending = f"ends in token {tokens[-1]}" if len(tokens) else "is empty"
        raise ArgumentError(f"prompt: {ending}; the set begins after its start token, {start_token}")


def _has_end(prompt: Sequence[Any]) -> bool:
    """Return whether a sequence is short enough to read; a range may be practically endless."""
    try:
        return len(prompt) < 2**24
    except OverflowError:
        return False


def inner_tokens(given: str | Tokens, what: str, vocab: Speller, *, special: bool = False) -> npt.NDArray[np.int32]:
    """Return token ids. A text is tokenized as part of another; with `special`, also into control tokens.

    ArgumentError or VocabularyError, beginning with `what`, for what is no tokens or cannot be spelled.
    """
    if not isinstance(given, str):
        return to_tokens(given, what)
    text = encode(given, what)

    def tokenize(text: bytes) -> npt.NDArray[np.int32]:
        return vocab.tokenize([text], what, special)[0]

    tokens = tokenize(text)
    if vocab.detokenize(tokens.tolist(), special=True) != text:
        # SentencePiece puts a space before a text, so the text is tokenized after a line break.
        line, both = tokenize(_LINE), tokenize(_LINE + text)
        tokens = both[len(line) :]
        if not np.array_equal(both[: len(line)], line) or vocab.detokenize(tokens.tolist(), special=True) != text:
            raise VocabularyError(f"{what}: cannot be spelled alone in this vocabulary; give its tokens")
    return tokens
