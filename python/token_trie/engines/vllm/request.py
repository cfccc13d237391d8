"""The set and options of a request, ``extra_args["token_trie"]``, and the engine's vocabulary."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.engines.matcher import TrieMatcher
from token_trie.errors import ArgumentError, PayloadError, VocabularyError
from token_trie.llama.span import STEP_MODES, SpanOptions
from token_trie.native.checks import encode, lookup
from token_trie.native.core import _core
from token_trie.sets.choices import read_choices
from token_trie.sets.lru import Memory
from token_trie.sets.spelling import Spelling, find_seam, inner_tokens, joined, spell
from token_trie.sets.trie import TokenTrie

_log = logging.getLogger("token_trie.vllm")


class EngineVocabulary:
    """The vocabulary and tokenizer of an engine; a `Speller`.

    Parameters
    ----------
    size : int
        Number of columns of the engine's logits.
    tokenizer : vllm.tokenizers.TokenizerLike, optional
        Without it, texts are refused, and the fingerprint of a set cannot be checked.
    """

    def __init__(self, size: int, tokenizer: Any | None) -> None:
        self.size = size
        self._tokenizer = tokenizer
        self._sets: Memory[TokenTrie] = Memory(128, 500_000)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; ArgumentError if there is none."""
        if self._tokenizer is None:
            raise ArgumentError("the engine has no tokenizer for texts; give token sequences, by a payload")
        return self._tokenizer

    @cached_property
    def _controls(self) -> frozenset[int]:
        added = getattr(self.tokenizer, "added_tokens_decoder", {})  # most are not in all_special_ids, as with Llama 3
        return frozenset(self.tokenizer.all_special_ids).union(i for i, token in added.items() if token.special)

    def is_control(self, token: int) -> bool:
        """Tell whether a token is a control token."""
        return token in self._controls

    def tokenize(
        self, texts: Sequence[bytes], what: str, special: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Tokenize texts; VocabularyError names a text that the vocabulary cannot spell."""
        rows = self.tokenizer([text.decode() for text in texts], add_special_tokens=False)["input_ids"]
        for i, (text, row) in enumerate(zip(texts, rows, strict=True)):
            # SentencePiece tokenizers add a space before a text.
            if self.detokenize(row, special) not in (text, b" " + text):
                raise VocabularyError(f"{what}[{i}]: cannot be spelled in this vocabulary")
        return joined(rows)

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> bytes:
        """Return the text of tokens; invalid characters become U+FFFD."""
        shown = [token for token in map(int, tokens) if special or not self.is_control(token)]
        pieces = self.tokenizer.convert_ids_to_tokens(shown)
        text: str = self.tokenizer.convert_tokens_to_string(pieces) if pieces else ""
        return text.encode()

    def fingerprint(self) -> str:
        """Return the fingerprint that sets made here carry, ``""`` without a tokenizer."""
        return self._fingerprints[0] if self._tokenizer is not None else ""

    @cached_property
    def _fingerprints(self) -> list[str]:
        """Fingerprints that a set for this vocabulary may have: GGUF files differ in two ways.

        They list all columns of the logits, with placeholder names for those without a token, or only the tokens; and
        they write runs of SentencePiece's space marks as they are, or as spaces if these are added tokens, as Gemma's.
        """
        names = {token: name for name, token in self.tokenizer.get_vocab().items()}
        n_tokens = max(names, default=-1) + 1
        texts = [names.get(token, f"[PAD{token}]") for token in range(max(n_tokens, self.size))]
        spaced = [" " * len(text) if len(text) > 1 and not text.strip("\u2581") else text for text in texts]
        lengths = dict.fromkeys((self.size, n_tokens))
        return [_hash_texts(some[:n]) for some in (texts, spaced) for n in lengths]

    def check(self, trie: TokenTrie) -> None:
        """Raise VocabularyError if a set was made for another vocabulary."""
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

        The tokens of the prompt cannot change any more. If the prompt would merge with a text, the texts are spelled
        separately.
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
    """Return the fingerprint that token_trie.h defines: of the number of texts, and the length and bytes of each."""
    hashed = hashlib.sha256(struct.pack("<I", len(texts)))
    for text in map(str.encode, texts):
        hashed.update(struct.pack("<I", len(text)) + text)
    return f"sha256:{hashed.hexdigest()}"


KEY = "token_trie"
FOLDER = "TOKEN_TRIE_SETS"
"""Environment variable: the folder of named sets. If it is set, every file must be in this folder."""

_SETS = ("choices", "payload", "file", "name")
_TEXT_OPTIONS = ("separator", "start_after")
_MATCHER_OPTIONS = tuple(
    field.name for field in fields(SpanOptions) if field.name not in ("end_tokens", *_TEXT_OPTIONS)
)
_OPTIONS = ("mode", "path", "leading_space", *_MATCHER_OPTIONS, *_TEXT_OPTIONS)

_files: Memory[TokenTrie] = Memory(128, 1 << 30)


@dataclass(frozen=True)
class TrieRequest:
    """The set and the options of a request."""

    source: str
    """The key of the set in the request."""
    given: Any
    options: Mapping[str, Any]
    is_greedy: bool
    may_open: bool
    """Whether any file may be opened: objects come from the program that runs the engine, texts from any client."""

    def set_for(self, vocabulary: EngineVocabulary, prompt: list[int]) -> TokenTrie:
        """Return the set for a vocabulary and a prompt; errors as for `matcher`."""
        path = self.options.get("path")
        if self.source == "choices":
            texts = read_choices(self.given).texts
            return vocabulary.set_of(texts, prompt, self.options.get("leading_space"))
        if self.source == "payload":
            return TokenTrie.from_payload(self.given, path)
        file = _named(self.given) if self.source == "name" else _allowed(self.given, self.may_open)
        return _read_set(file, path)

    def matcher(self, vocabulary: EngineVocabulary, prompt: list[int], end_tokens: Sequence[int]) -> TrieMatcher:
        """Make a matcher after a prompt, with the engine's end tokens; TokenTrieError if they do not fit."""
        trie = self.set_for(vocabulary, prompt)
        vocabulary.check(trie)
        options = {name: self.options[name] for name in _MATCHER_OPTIONS if name in self.options}
        for name in _TEXT_OPTIONS:
            given = self.options.get(name)
            if given is None:
                continue
            is_text = isinstance(given, str)
            options[name] = inner_tokens(given, name, vocabulary, special=True).tolist() if is_text else given
        if options.get("on_complete") != "release":
            options["end_tokens"] = sorted(end_tokens)
        return TrieMatcher(trie, vocabulary.size, **options)


def read_request(params: Any) -> TrieRequest | None:
    """Read the set of ``SamplingParams``, None for none; TokenTrieError if it is wrong or contradicts other options."""
    given = (params.extra_args or {}).get(KEY)
    if given is None:
        return None
    is_text = isinstance(given, str)
    if is_text:
        given = _parse(given) if given.lstrip().startswith("{") else {"name": given}
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{KEY}: {type(given).__name__} where an object, its JSON or a name belongs")
    if "descriptors" in given:
        given = {"payload": given}
    for key in given:
        if key not in (*_SETS, *_OPTIONS):
            raise ArgumentError(f"{KEY}: unknown key {key!r}; there are {', '.join((*_SETS, *_OPTIONS))}")
    sources = [key for key in _SETS if key in given]
    if len(sources) != 1:
        named = " and ".join(sources) or "none"
        raise ArgumentError(f"{KEY}: one of {', '.join(_SETS)} or a payload belongs there, not {named}")
    options = {key: value for key, value in given.items() if key in _OPTIONS}
    if options.get("path") is not None:
        encode(options["path"], "path")
    mode = options.get("mode")
    is_greedy = mode is not None and lookup(mode, STEP_MODES, "mode") == STEP_MODES["greedy"]
    _check_others(params, options.get("on_complete") == "release")
    return TrieRequest(sources[0], given[sources[0]], options, is_greedy, may_open=not is_text)


def _check_others(params: Any, releases: bool) -> None:
    if params.structured_outputs is not None:
        raise ArgumentError(f"{KEY}: beside structured_outputs; a request has one constraint")
    if params.min_tokens > 0:
        raise ArgumentError(f"{KEY}: beside min_tokens, which forbids the end where nothing else may follow")
    if params.ignore_eos and not releases:
        raise ArgumentError(f"{KEY}: beside ignore_eos, by which an answer would not end; on_complete release may")


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{KEY}: {error}") from error


def _named(name: object) -> Path:
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise ArgumentError(f"{KEY}: {name!r} is no name of a set")
    folder = os.environ.get(FOLDER)
    if not folder:
        raise ArgumentError(f"{KEY}: a name, {name!r}, where {FOLDER} names no folder to look in")
    return Path(folder, f"{name}.json")


def _allowed(file: object, may_open: bool) -> Path:
    if not isinstance(file, (str, os.PathLike)):
        raise ArgumentError(f"file: {type(file).__name__} where a path belongs")
    encode(os.fspath(file), "file")
    folder = os.environ.get(FOLDER)
    if folder and not Path(file).resolve().is_relative_to(Path(folder).resolve()):
        raise ArgumentError(f"file: {str(file)!r} is outside the folder that {FOLDER} names")
    if not folder and not may_open:
        raise ArgumentError(f"file: files are opened for no text, unless {FOLDER} names their folder")
    return Path(file)


def _read_set(file: Path, path: Any) -> TokenTrie:
    try:
        now = file.stat()
        if not stat.S_ISREG(now.st_mode):
            raise ArgumentError(f"file: {str(file)!r} is no file")
        key = (str(file), now.st_mtime_ns, now.st_size, now.st_ino, path)
        return _files.get(key, now.st_size, lambda: TokenTrie.from_payload(file.read_bytes(), path))
    except OSError as error:
        raise ArgumentError(f"{KEY}: {file.name}: {error.strerror}") from error
    except PayloadError as error:
        raise PayloadError(f"{file.name}: {error}") from error
