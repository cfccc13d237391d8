"""Choices tokenized as they really follow one.

Tokenizers merge across the seam between prompt and answer: ``"Answer: "`` followed by ``yes`` is not the tokens of the
two, for models spell ``" yes"`` with one token. So each choice is tokenized together with the end of the prompt. Where
the prompt's own last tokens come out differently, the seam moves left: the prompt loses these tokens and each choice
begins with the text of them.

    prompt   "Answer: "              [Answer] [:] [ ]
    choices  "Answer: yes"           [Answer] [:] [ yes]
             "Answer: no"            [Answer] [:] [ no]
    seam     after two tokens        prompt [Answer] [:], choices [ yes] and [ no]; it has moved by one

With ``tokenization="any"`` choices are texts, to be spelled in any way, and the seam stays where the prompt ends; or,
healed, one token before:

    prompt   "Answer: "              [Answer] [:]
    texts    " yes", " no"           [ ] [yes], [ y] [es], [ yes], ...
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, LimitError, VocabularyError
from token_trie.native.arguments import encode

Tokenization: TypeAlias = Literal["canonical", "any"]


class Speller(Protocol):
    """A vocabulary that texts are spelled in: of a llama.cpp model, which is a ``_core.Vocab``, or of another engine.

    What throws there, throws here.
    """

    def tokenize(
        self, texts: Sequence[bytes], what: str, special: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Spell texts: all their tokens, and where each text's begin; with `special`, into control tokens too."""
        ...

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> bytes:
        """Return the text of tokens; that of control tokens is empty, but for `special`."""
        ...

    def is_control(self, token: int) -> bool:
        """Tell whether a token is no text."""
        ...

    def fingerprint(self) -> str:
        """Tell what vocabulary this is, ``""`` if unknown."""
        ...


def check_tokenization(tokenization: object) -> None:
    """Raise ArgumentError unless there is such a one."""
    if not isinstance(tokenization, str) or tokenization not in ("canonical", "any"):
        raise ArgumentError(f"tokenization: {tokenization!r} is none of 'canonical', 'any'")


@dataclass(frozen=True)
class Seam:
    """The end of a prompt: all of it that the spelling of what follows depends on."""

    tail: tuple[int, ...]
    """Its last tokens; none where what follows is spelled as the start of an answer."""
    text: bytes
    """What tokenizes to these."""
    takes_space: bool
    """Whether written text has a space between this prompt and a word."""


class Spelling(NamedTuple):
    """Choices as token sequences."""

    tokens: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    n_moved: int
    """Tokens by which the seam has moved left: they are taken from the prompt, and begin the choices."""


def check_texts(texts: Sequence[str]) -> list[bytes]:
    """UTF-8 bytes of choices.

    Raises
    ------
    ArgumentError
        One is empty or holds a NUL or a lone surrogate.
    """
    encoded = [encode(text, f"choices[{i}]") for i, text in enumerate(texts)]
    if b"" in encoded:
        raise ArgumentError(f"choices[{encoded.index(b'')}]: empty")
    return encoded


def find_seam(vocab: Speller, prompt: list[int], leading_space: bool | None) -> Seam:
    """Find what the spelling behind a prompt depends on: of its last line, or of less where that is long."""
    if leading_space is not None and not isinstance(leading_space, bool):
        raise ArgumentError(f"leading_space: {leading_space!r} is not True, False or None")
    line = _last_line(vocab, prompt)
    takes_space = leading_space
    if takes_space is None:
        takes_space = _takes_space(vocab.detokenize(line).decode(errors="ignore"))
    tail, text = _tail(vocab, line) if line else ((), b"")
    return Seam(tail, text, takes_space)


def inner_seam(vocab: Speller, before: Sequence[int]) -> Seam:
    """Find the shortest end of a text by which what is written on behind it is spelled."""
    end: list[int] = []
    for token in reversed(before[-64:]):
        if vocab.is_control(token):
            break
        end.insert(0, token)
    return Seam(*_tail(vocab, end, (2, 8, 64)), False)


def spell(vocab: Speller, seam: Seam, texts: Sequence[str], *, all_spaced: bool, is_whole: bool) -> Spelling:
    """Tokenize choices behind a seam; see the module's top.

    Parameters
    ----------
    all_spaced : bool
        Whether the space that the seam takes stands before every choice, one that begins with white space too.
    is_whole : bool
        Whether the tail is the whole prompt, which then must not move into the choices.
    """
    written = [seam.text + text for text in following(seam, texts, all_spaced=all_spaced)]
    tokens, offsets = vocab.tokenize(written, "choices")
    n_same = _common_prefix(np.array(seam.tail, np.int32), tokens, offsets)
    if is_whole and seam.tail and n_same == 0:
        raise VocabularyError(
            "the whole prompt merges with the choices; let it begin with more text, or give leading_space"
        )
    return Spelling(*_drop_each(tokens, offsets, n_same), len(seam.tail) - n_same)


def take_back(vocab: Speller, prompt: list[int]) -> tuple[str, int]:
    """Text of a prompt's last token, for choices to begin with, and how many tokens that is.

    Where it begins inside a character, those before it are taken back too. None is, where the prompt ends inside a
    character, which no text begins with the half of, or in a control token.
    """
    line = _last_line(vocab, prompt)
    for n_taken in range(1, min(len(line), _LONGEST_CHARACTER) + 1):
        try:
            taken = vocab.detokenize(line[-n_taken:]).decode()
        except UnicodeDecodeError:
            continue
        if n_taken == len(prompt):
            raise VocabularyError("prompt: to take its last token back leaves nothing; let it begin with more text")
        return taken, n_taken
    return "", 0


def following(seam: Seam, texts: Sequence[str], *, all_spaced: bool) -> list[bytes]:
    """Return choices as they are written behind a seam; parameters as for `spell`."""
    encoded = check_texts(texts)
    if not seam.takes_space:
        return encoded
    return [
        b" " + text if all_spaced or not (choice[0].isspace() or _is_wide(choice[0])) else text
        for choice, text in zip(texts, encoded, strict=True)
    ]


def _last_line(vocab: Speller, prompt: list[int]) -> list[int]:
    """End of the prompt that begins a line, with something on it, or follows a control token.

    Tokenizers merge nothing across control tokens, and split texts, if at all, where a line begins.
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
    """Last tokens and their text, which tokenizes to just these.

    If there are none such, a line break, where the tokenizer would put a space before what follows; else none at all.
    """
    if _ends_inside_character(vocab.detokenize(line[-_LONGEST_CHARACTER:])):
        lengths = ()  # a text behind it would be read as the rest of the character
    elif not lengths:
        lengths = (len(line), 16, 64) if len(line) <= 64 else (16, 64, len(line))
    for length in lengths:
        tail = line[-length:]
        text = vocab.detokenize(tail)
        # SentencePiece puts a space before a text; a tail that begins with one must not get another.
        for candidate in (text, text.removeprefix(b" ")):
            if candidate and _spells(vocab, tail, candidate):
                return tuple(tail), candidate
        # And one that begins inside a word must not get any: a line break takes it.
        lead = line_break(vocab)
        if lead and text and _spells(vocab, [*lead, *tail], _LINE + text):
            return (*lead, *tail), _LINE + text
    lead = line_break(vocab)
    return lead, _LINE if lead else b""


_LINE = b"\n"
_LONGEST_CHARACTER = 4
"""In bytes, and so in the tokens that it may lie in."""


def _ends_inside_character(text: bytes) -> bool:
    """Whether one of the last bytes begins a character of more bytes than there are."""
    return any(byte >= least for byte, least in zip(reversed(text[-3:]), (0xC0, 0xE0, 0xF0), strict=False))


def line_break(vocab: Speller) -> tuple[int, ...]:
    """Tokens of a line break where the tokenizer puts a space before a text; else none."""
    tokens = vocab.tokenize([_LINE], "line")[0].tolist()
    return tuple(tokens) if vocab.detokenize(tokens) != _LINE else ()


def _spells(vocab: Speller, tokens: list[int], text: bytes) -> bool:
    try:
        spelled, _ = vocab.tokenize([text], "prompt")
    except (VocabularyError, LimitError):
        return False
    return bool(np.array_equal(spelled, tokens))


_OPENING = frozenset("([{<¿¡“‘«„/\\#@$-")
_PAIRED = frozenset("\"'`*_~|")
_TAG = re.compile(r"<[^<>\s]+>$")


def _takes_space(prompt: str) -> bool:
    """Whether written text has a space between this prompt and a word."""
    line = prompt.split("\n")[-1]
    if not line or line[-1].isspace() or line[-1] in _OPENING or _TAG.search(line) or _is_wide(line[-1]):
        return False
    mark = line[len(line.rstrip(line[-1])) :]
    return line[-1] not in _PAIRED or line.count(mark) % 2 == 0


def _is_wide(char: str) -> bool:
    """Whether a character belongs to a script that is written without spaces."""
    return unicodedata.east_asian_width(char) in "WF"


def _common_prefix(tail: npt.NDArray[np.int32], tokens: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]) -> int:
    """How many of the tail's tokens all sequences begin with, so that each keeps at least one token."""
    limit = min(len(tail), int(np.diff(offsets).min()) - 1)
    for n in range(limit):
        if (tokens[offsets[:-1] + n] != tail[n]).any():
            return n
    return max(limit, 0)


def _drop_each(
    tokens: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], n: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Sequences without their first n tokens."""
    position = np.arange(len(tokens)) - np.repeat(offsets[:-1], np.diff(offsets))
    return tokens[position >= n], offsets - n * np.arange(len(offsets))
