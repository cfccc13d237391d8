"""Grammars as regular expressions of Python; a grammar must not refer to itself."""

from __future__ import annotations

import re

from token_trie.records.gbnf import Chars, Either, Expression, Repeat, Rule, Sequence, TextLiteral


def as_regex(expression: Expression) -> re.Pattern[str]:
    return re.compile(_spell(expression))


def _spell(expression: Expression) -> str:
    if isinstance(expression, TextLiteral):
        return re.escape(expression.text)
    if isinstance(expression, Chars):
        return "[" + "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in expression.ranges) + "]"
    if isinstance(expression, Sequence):
        return "".join(map(_spell, expression.parts))
    if isinstance(expression, Either):
        return "(?:" + "|".join(map(_spell, expression.parts)) + ")"
    if isinstance(expression, Repeat):
        return f"(?:{_spell(expression.part)}){{{expression.low},{'' if expression.high is None else expression.high}}}"
    assert isinstance(expression, Rule)
    return _spell(expression.body)
