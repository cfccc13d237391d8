"""Grammars of strangers, within limits: llama.cpp reads them by recursion, to the end of the stack."""

from __future__ import annotations

import re

from token_trie.serve.refusal import Place, invalid

_BYTES, _RULES, _DEPTH = 64 << 10, 1000, 100

_PARTS = re.compile(
    r"""
    \#[^\n]* | "(?:[^"\\]|\\.)*" | \[(?:[^\]\\]|\\.)*\]  # comments, texts and classes, whose inside is none
    | (?P<rule> ::=) | (?P<opens> \() | (?P<closes> \))
    """,
    re.VERBOSE | re.DOTALL,
)


def check_gbnf(text: str, place: Place) -> str:
    """Return a GBNF grammar; RefusedError for one of too many bytes, rules, or levels of parentheses."""
    if len(text.encode(errors="surrogatepass")) > _BYTES:
        raise invalid(f"more than {_BYTES:,} bytes", place, "too_long")
    n_rules = depth = deepest = 0
    for part in _PARTS.finditer(text):
        n_rules += part.lastgroup == "rule"
        depth += (part.lastgroup == "opens") - (part.lastgroup == "closes")
        deepest = max(deepest, depth)
    if n_rules > _RULES:
        raise invalid(f"more than {_RULES:,} rules", place, "too_long")
    if deepest > _DEPTH:
        raise invalid(f"parentheses more than {_DEPTH} deep", place, "too_long")
    return text
