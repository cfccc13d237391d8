"""An engine's vocabulary and tokenizer, with the methods that sets need."""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, VocabularyError
from token_trie.native.core import _core
from token_trie.sets.memory import Memory
from token_trie.sets.spelling import Spelling, find_seam, spell
from token_trie.sets.tokens import joined
from token_trie.sets.trie import TokenTrie

_log = logging.getLogger("token_trie.vllm")


class EngineVocabulary:
    """The tokens of a model, and how its tokenizer spells texts; a `Speller`.

    Parameters
    ----------
    size : int
        Columns of the engine's logits.
    tokenizer : vllm.tokenizers.TokenizerLike, optional
        Where the engine has one. Without it texts are refused, and a set's fingerprint cannot be checked.
    """

    def __init__(self, size: int, tokenizer: Any | None) -> None:
        self.size = size
        self._tokenizer = tokenizer
        self._sets: Memory[TokenTrie] = Memory(128, 500_000)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; ArgumentError where there is none."""
        if self._tokenizer is None:
            raise ArgumentError("the engine has no tokenizer for texts; give token sequences, by a payload")
        return self._tokenizer

    @cached_property
    def _controls(self) -> frozenset[int]:
        added = getattr(self.tokenizer, "added_tokens_decoder", {})  # most have no name, as of Llama 3
        return frozenset(self.tokenizer.all_special_ids).union(i for i, token in added.items() if token.special)

    def is_control(self, token: int) -> bool:
        """Tell whether a token is no text."""
        return token in self._controls

    def tokenize(
        self, texts: Sequence[bytes], what: str, special: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Spell texts; VocabularyError names the one that cannot be."""
        rows = self.tokenizer([text.decode() for text in texts], add_special_tokens=False)["input_ids"]
        for i, (text, row) in enumerate(zip(texts, rows, strict=True)):
            # SentencePiece vocabularies put a space before a text.
            if self.detokenize(row, special) not in (text, b" " + text):
                raise VocabularyError(f"{what}[{i}]: cannot be spelled in this vocabulary")
        return joined(rows)

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> bytes:
        """Return the text of tokens, with U+FFFD for what is no character."""
        shown = [token for token in map(int, tokens) if special or not self.is_control(token)]
        pieces = self.tokenizer.convert_ids_to_tokens(shown)
        text: str = self.tokenizer.convert_tokens_to_string(pieces) if pieces else ""
        return text.encode()

    def fingerprint(self) -> str:
        """Return the fingerprint that sets made here carry, ``""`` without a tokenizer."""
        return self._fingerprints[0] if self._tokenizer is not None else ""

    @cached_property
    def _fingerprints(self) -> list[str]:
        """Fingerprints that a set for this vocabulary may have: files for llama.cpp differ in two ways.

        They list all columns of the logits, with names of their own for those without a token, or the tokens alone; and
        they write SentencePiece's runs of spaces as such or as spaces, the latter where these are tokens that the
        model's makers added, such as Gemma's.
        """
        names = {token: name for name, token in self.tokenizer.get_vocab().items()}
        n_tokens = max(names, default=-1) + 1
        texts = [names.get(token, f"[PAD{token}]") for token in range(max(n_tokens, self.size))]
        spaced = [" " * len(text) if len(text) > 1 and not text.strip("\u2581") else text for text in texts]
        lengths = dict.fromkeys((self.size, n_tokens))
        return [_hash_texts(some[:n]) for some in (texts, spaced) for n in lengths]

    def check(self, trie: TokenTrie) -> None:
        """Raise VocabularyError for a set that was made for another vocabulary."""
        if not trie.vocab:
            return
        if self._tokenizer is None:
            _log.warning("a set carries a fingerprint, which cannot be checked: the engine has no tokenizer")
        elif trie.vocab not in self._fingerprints:
            raise VocabularyError(
                f"vocab: the set was made for another vocabulary ({trie.vocab}) than this model's "
                f"({self.fingerprint()}); build it again with this model"
            )

    def set_of(self, texts: tuple[str, ...], prompt: list[int], leading_space: bool | None) -> TokenTrie:
        """Build the set of texts as they follow a prompt, as `TokenTrie.from_choices` does.

        The engine has the prompt's tokens already. Where the prompt would merge with a text, the texts are spelled by
        themselves.
        """
        seam = find_seam(self, prompt, leading_space)

        def spelled() -> Spelling:
            try:
                spelling = spell(self, seam, texts, all_spaced=leading_space is True, is_whole=True)
            except VocabularyError:
                spelling = None
            if spelling is not None and not spelling.n_moved:
                return spelling
            alone = replace(seam, tail=(), text=b"")
            return spell(self, alone, texts, all_spaced=leading_space is True, is_whole=True)

        def make() -> TokenTrie:
            tokens, offsets, _ = spelled()
            return TokenTrie.of_core(_core.Trie.build(tokens, offsets, list(texts), self.fingerprint()))

        return self._sets.get((texts, seam, leading_space), len(texts), make)


def _hash_texts(texts: list[str]) -> str:
    """Hash as token_trie.h defines the fingerprint: their number, then the length and the bytes of each."""
    hashed = hashlib.sha256(struct.pack("<I", len(texts)))
    for text in map(str.encode, texts):
        hashed.update(struct.pack("<I", len(text)) + text)
    return f"sha256:{hashed.hexdigest()}"
