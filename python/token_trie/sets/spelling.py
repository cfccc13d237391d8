"""Choices tokenized as they really follow one.

Tokenizers merge across the seam between prompt and answer: ``"Answer: "`` followed by ``yes`` is not the tokens of the
two, for models spell ``" yes"`` with one token. So each choice is tokenized together with the end of the prompt. Where
the prompt's own last tokens come out differently, the seam moves left: the prompt loses these tokens and each choice
begins with the text of them.

    prompt   "Answer: "              [Answer] [:] [ ]
    choices  "Answer: yes"           [Answer] [:] [ yes]
             "Answer: no"            [Answer] [:] [ no]
    seam     after two tokens        prompt [Answer] [:], choices [ yes] and [ no]

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

import llama_cpp
import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, LimitError, VocabularyError
from token_trie.native.arguments import encode
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.sets.prompt import Prompt, tokenize_prompt


@dataclass(frozen=True)
class FittedChoices:
    """Choices as token sequences that follow the first ``n_kept`` tokens of the prompt."""

    prompt: list[int]
    n_kept: int
    tokens: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]

    def require_whole_prompt(self) -> None:
        """Raise VocabularyError if the seam had to move."""
        if self.n_kept < len(self.prompt):
            raise VocabularyError(
                "the prompt's last tokens merge with the choices. Let the prompt end earlier (often: without its "
                "trailing space, which then belongs to the choices), or use choose(), which moves the seam by itself"
            )


@dataclass(frozen=True)
class SpelledChoices:
    """Choices as texts that follow the tokens kept of a prompt."""

    prompt: list[int]
    texts: list[str]


def fit_choices(
    llm: Llama,
    prompt: Prompt | None,
    choices: Sequence[str],
    *,
    leading_space: bool | None = None,
    room: int | None = None,
) -> FittedChoices:
    """Tokenize choices as they follow a prompt; see the module's top. ``prompt=None``: the start of an answer."""
    prompt_tokens, plain, following = _follow(llm, prompt, choices, leading_space, room)
    vocab = vocab_of(llm)
    tail, lead = _tail(vocab, plain)
    tokens, offsets = vocab.tokenize([lead + text for text in following], "choices")
    n_same = _common_prefix(np.asarray(tail, np.int32), tokens, offsets)
    n_kept = len(prompt_tokens) - len(tail) + n_same
    if prompt_tokens and n_kept == 0:
        raise VocabularyError(
            "the whole prompt merges with the choices; let it begin with more text, or give leading_space"
        )
    return FittedChoices(prompt_tokens, n_kept, *_drop_each(tokens, offsets, n_same))


def spell_choices(
    llm: Llama,
    prompt: Prompt | None,
    choices: Sequence[str],
    *,
    leading_space: bool | None = None,
    heal: bool = False,
    room: int | None = None,
) -> SpelledChoices:
    """Return choices as the texts that follow a prompt. With heal, its last token is taken back and begins each text.

    Where that token begins inside a character, those before it are taken back too; a control token never is. A prompt
    that is healed may end inside a word, so that no space is added of its own accord.
    """
    leading_space = False if heal and leading_space is None else leading_space
    prompt_tokens, plain, following = _follow(llm, prompt, choices, leading_space, room)
    n_taken, taken = 0, ""
    while heal and n_taken < len(plain):
        n_taken += 1
        try:
            taken = vocab_of(llm).detokenize(plain[-n_taken:]).decode()
            break
        except UnicodeDecodeError:
            continue
    if prompt_tokens and n_taken == len(prompt_tokens):
        raise VocabularyError("prompt: to take its last token back leaves nothing; let it begin with more text")
    return SpelledChoices(prompt_tokens[: len(prompt_tokens) - n_taken], [taken + text.decode() for text in following])


def _follow(
    llm: Llama, prompt: Prompt | None, choices: Sequence[str], leading_space: bool | None, room: int | None
) -> tuple[list[int], list[int], list[bytes]]:
    """Tokens of the prompt, those after its last control token, and the text of each choice that follows them."""
    if not isinstance(choices, (list, tuple)):
        raise ArgumentError(f"choices: {type(choices).__name__} where a list of texts belongs")
    if leading_space is not None and not isinstance(leading_space, bool):
        raise ArgumentError(f"leading_space: {leading_space!r} is not True, False or None")
    if len(choices) == 0:
        raise ArgumentError("choices: none given")
    encoded = [encode(choice, f"choices[{i}]") for i, choice in enumerate(choices)]
    if b"" in encoded:
        raise ArgumentError(f"choices[{encoded.index(b'')}]: empty")
    vocab = vocab_of(llm)
    prompt_tokens = [] if prompt is None else tokenize_prompt(llm, prompt, room)
    plain = _after_control_tokens(llm, prompt_tokens)
    if leading_space is None:
        takes_space = _takes_space(vocab.detokenize(plain).decode(errors="ignore"))
        spaces = [takes_space and not choice[0].isspace() and not _is_wide(choice[0]) for choice in choices]
    else:
        spaces = [leading_space] * len(choices)
    return prompt_tokens, plain, [b" " * space + text for space, text in zip(spaces, encoded, strict=True)]


def _after_control_tokens(llm: Llama, prompt: list[int]) -> list[int]:
    """End of the prompt that holds no control token; tokenizers merge nothing across those."""
    for i in range(len(prompt), 0, -1):
        if llama_cpp.llama_vocab_is_control(llm._model.vocab, prompt[i - 1]):
            return prompt[i:]
    return prompt


def _tail(vocab: _core.Vocab, tokens: list[int]) -> tuple[list[int], bytes]:
    """Last few tokens and their text, which tokenizes to just these; empty if there are none such."""
    for length in (16, 64, len(tokens)):
        tail = tokens[-length:]
        text = vocab.detokenize(tail)
        # SentencePiece puts a space before a text; a tail that begins with one must not get another.
        for candidate in (text, text.removeprefix(b" ")):
            if candidate and _spells(vocab, tail, candidate):
                return tail, candidate
    return [], b""


def _spells(vocab: _core.Vocab, tokens: list[int], text: bytes) -> bool:
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
