"""The set and the rules of a request: ``extra_args["token_trie"]``, read and checked."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from token_trie.engines.matcher import TrieMatcher
from token_trie.engines.vllm.vocabulary import EngineVocabulary
from token_trie.errors import ArgumentError, PayloadError
from token_trie.llama.span import STEP_MODES, SpanOptions
from token_trie.native.arguments import encode, lookup
from token_trie.sets.choices import read_choices
from token_trie.sets.inner_text import inner_tokens
from token_trie.sets.memory import Memory
from token_trie.sets.trie import TokenTrie

KEY = "token_trie"
FOLDER = "TOKEN_TRIE_SETS"
"""Environment variable: the folder of named sets. Where it is set, every file must be in this folder."""

_SETS = ("choices", "payload", "file", "name")
_OF_TEXTS = ("separator", "start_after")
_OF_MATCHER = tuple(field.name for field in fields(SpanOptions) if field.name not in ("end_tokens", *_OF_TEXTS))
_OPTIONS = ("mode", "path", "leading_space", *_OF_MATCHER, *_OF_TEXTS)

_files: Memory[TokenTrie] = Memory(128, 1 << 30)


@dataclass(frozen=True)
class TrieRequest:
    """A set and its rules, as one request has them."""

    source: str
    """The key that the set was given by."""
    given: Any
    options: Mapping[str, Any]
    is_greedy: bool
    may_open: bool
    """Whether any file may be opened: objects come from the program that runs the engine, texts from anybody."""

    def set_for(self, vocabulary: EngineVocabulary, prompt: list[int]) -> TokenTrie:
        """Return the set, for a vocabulary and behind a prompt; errors as of `matcher`."""
        path = self.options.get("path")
        if self.source == "choices":
            texts = read_choices(self.given).texts
            return vocabulary.set_of(texts, prompt, self.options.get("leading_space"))
        if self.source == "payload":
            return TokenTrie.from_payload(self.given, path)
        file = _named(self.given) if self.source == "name" else _allowed(self.given, self.may_open)
        return _read_set(file, path)

    def matcher(self, vocabulary: EngineVocabulary, prompt: list[int], end_tokens: Sequence[int]) -> TrieMatcher:
        """Make a matcher behind a prompt, with the engine's end tokens; TokenTrieError: they do not fit."""
        trie = self.set_for(vocabulary, prompt)
        vocabulary.check(trie)
        options = {name: self.options[name] for name in _OF_MATCHER if name in self.options}
        for name in _OF_TEXTS:
            given = self.options.get(name)
            if given is None:
                continue
            is_text = isinstance(given, str)
            options[name] = inner_tokens(given, name, vocabulary, special=True).tolist() if is_text else given
        if options.get("on_complete") != "release":
            options["end_tokens"] = sorted(end_tokens)
        return TrieMatcher(trie, vocabulary.size, **options)


def read_request(params: Any) -> TrieRequest | None:
    """Read the set of ``SamplingParams``, None for none; TokenTrieError where it is wrong or contradicts others."""
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
