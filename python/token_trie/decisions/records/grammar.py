"""Grammars of the slots, made by llama-cpp-python's own converter of JSON Schema."""

from __future__ import annotations

import json
import re
from typing import Any

from llama_cpp.llama_grammar import json_schema_to_gbnf

from token_trie.decisions.records.plan import Rules, Slot

# Where the converter's rules let something be written that JSON, or what reads it, does not take: control characters
# and single surrogates in a string, numbers beyond all bounds, and days that are in no calendar.
_CHAR = r'[^"\\\x00-\x1F\x7F\uD800-\uDFFF] | "\\" ["\\/bfnrt]'
_EXPONENT = ("([eE] [-+]? integral-part)?", "([eE] [-+]? [0-9] [0-9]?)?")
_DAY = (
    '( ( "0" [13578] | "1" [02] ) "-" ( "0" [1-9] | [12] [0-9] | "3" [01] )'
    ' | ( "0" [469] | "11" ) "-" ( "0" [1-9] | [12] [0-9] | "30" )'
    ' | "02-" ( "0" [1-9] | "1" [0-9] | "2" [0-8] ) )'
)
_LEAP = '( [1-9] [0-9] ( "0" [48] | [2468] [048] | [13579] [26] ) | ( [2468] [048] | [13579] [26] ) "00" ) "-02-29"'
_FIXED = {"space": '""', "char": _CHAR, "date": f'[1-9] [0-9] [0-9] [0-9] "-" {_DAY} | {_LEAP}'}

# Characters behind a value that a token may go on with; what reaches over its end is cut off again.
BEHIND = r"[ \t\r\n,}\]:] [\x00-\U0010FFFF]*"

LENGTHS = {"date": (10, 10), "uuid": (36, 36), "time": (9, 18), "date-time": (20, 29)}
"""Formats of strings that have a grammar, and how many characters these have."""


def text_of(rules: Rules) -> str:
    """Spell rules."""
    return "\n".join(f"{name} ::= {body}" for name, body in rules)


def content_of(schema: dict[str, Any]) -> tuple[str, Rules]:
    """Return what may stand between the quotes of a string, and the rules of that."""
    rules = _rules_of(schema)
    body = rules.pop("root")
    while body in rules:
        body = rules[body]
    quoted = re.fullmatch(r'"\\"" (.*) "\\"" space', body, re.DOTALL)
    assert quoted is not None, body
    return quoted[1], tuple(rules.items())


def any_of(schema: Any, begins_with: str) -> Slot:
    """Return a value by a schema that the converter reads whole."""
    rules = _rules_of(schema)
    body = rules.pop("root")
    return Slot(body, tuple(rules.items()), begins_with)


def _rules_of(schema: Any) -> dict[str, str]:
    lines = json_schema_to_gbnf(json.dumps(schema)).splitlines()
    rules = dict(line.split(" ::= ", 1) for line in lines)
    for name in rules.keys() & _FIXED.keys():
        rules[name] = _FIXED[name]
    return {name: body.replace(*_EXPONENT) for name, body in rules.items()}
