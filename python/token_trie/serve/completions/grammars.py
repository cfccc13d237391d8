"""Grammars of strangers, within limits: llama.cpp reads them by recursion, to the end of the stack."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from token_trie.errors import GrammarError
from token_trie.native.arguments import encode
from token_trie.native.core import Llama, llama_cpp, vocab_of
from token_trie.serve.refusal import Place, invalid

_BYTES, _RULES, _DEPTH, _TIMES = 64 << 10, 1000, 100, 1000

_PARTS = re.compile(
    r"""
    \#[^\n]* | "(?:[^"\\]|\\.|\\\Z)*(?:"|\Z) | \[(?:[^\]\\]|\\.|\\\Z)*(?:\]|\Z)
    # Comments, texts and classes, whose inside is none. One without an end matches up to the end of all: else the regex
    # would look for that end again from each of its characters.
    | \{\s*(?P<least>\d*)\s*,?\s*(?P<most>\d*) | (?P<rule> ::=) | (?P<opens> \() | (?P<closes> \))
    """,
    re.VERBOSE | re.DOTALL,
)


_WAYS, _VALUES = 256, 25_000


def check_schema(schema: Any, place: Place) -> None:
    """Refuse a JSON Schema with so many values, or alternatives, that to tell them apart takes long."""
    level, n_values, n_pairs = [schema], 0, 0
    while level:
        n_values += len(level)
        if n_values > _VALUES:
            raise invalid(f"more than {_VALUES:,} values, keys and keywords", place, "too_long")
        for each in level:
            for name in ("oneOf", "anyOf") if isinstance(each, dict) else ():
                n_pairs += len(each[name]) ** 2 if isinstance(each.get(name), list) else 0
                if n_pairs > _WAYS**2:
                    raise invalid(f"{name}: more than {_WAYS} schemas, or as many pairs of them", place, "too_long")
        level = [v for each in level for v in _values(each)]


def _values(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def check_gbnf(text: str, place: Place) -> None:
    """Refuse a GBNF grammar of too many bytes, rules, levels or repetitions."""
    if len(text.encode(errors="surrogatepass")) > _BYTES:
        raise invalid(f"more than {_BYTES:,} bytes", place, "too_long")
    n_rules = depth = deepest = 0
    for part in _PARTS.finditer(text):
        n_rules += part.lastgroup == "rule"
        depth += (part.lastgroup == "opens") - (part.lastgroup == "closes")
        deepest = max(deepest, depth)
        least, most = part["least"] or "0", part["most"] or str(_TIMES)
        # llama.cpp counts from the one to the other, past the end of its integers where there is no way.
        if max(len(least), len(most)) > len(str(_TIMES)) or not int(least) <= int(most) <= _TIMES:
            raise invalid(f"{part[0]}}}: from 0 to {_TIMES:,} times, in this order", place, "too_long")
    if n_rules > _RULES:
        raise invalid(f"more than {_RULES:,} rules", place, "too_long")
    if deepest > _DEPTH:
        raise invalid(f"parentheses more than {_DEPTH} deep", place, "too_long")


def require_parsed(llm: Llama, text: str) -> None:
    """Raise GrammarError, with the reason, for a GBNF grammar that llama.cpp cannot parse.

    It prints the reason, and all of the grammar with it, to standard error, where nothing of a request is to stand.
    """
    given = encode(text, "grammar")
    if not given:
        return
    with _errors() as file:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab_of(llm).address, given, b"root")
        if sampler:
            llama_cpp.llama_sampler_free(sampler)
            return
        file.seek(0)
        said = file.read(_SAID).decode(errors="replace").splitlines()
    _, _, why = (said[0] if said else "").partition("error parsing grammar: ")
    raise GrammarError(f"gbnf: {why[:_SHOWN] or 'the grammar has no rule root, or a rule that begins with itself'}")


_SAID, _SHOWN = 1000, 120
_printing = threading.Lock()


@contextlib.contextmanager
def _errors() -> Iterator[BinaryIO]:
    """Let what the process prints to standard error go to a file, whoever prints it."""
    with _printing, tempfile.TemporaryFile() as file:
        try:
            kept = os.dup(2)
        except OSError:  # there is none
            yield file
            return
        try:
            os.dup2(file.fileno(), 2)
            yield file
        finally:
            os.dup2(kept, 2)
            os.close(kept)
