from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import llama_cpp
import pytest
from grammar_regex import as_regex
from token_trie.records.gbnf import Chars, Either, Grammar, Repeat, Rule, Sequence, TextLiteral, read_pattern
from token_trie.records.nodes import VALUE, grammar_of
from token_trie.records.schema import read_schema

SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]},
    {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}},
    {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}], "items": False},
    {"type": "array", "maxItems": 0},
    {"type": "object", "additionalProperties": {"enum": [1, 2]}, "minProperties": 1, "maxProperties": 2},
    {"anyOf": [{"const": "a"}, {"type": "string", "maxLength": 1}, {"type": "integer", "minimum": 1, "maximum": 3}]},
]
ITEMS = [{}, [], "a", "aa", 1, 2, 3, None]
VALUES: list[Any] = [*ITEMS, *(list(v) for n in (1, 2, 3) for v in itertools.product([1, 2, 3], repeat=n))]
VALUES += [
    dict(zip(keys, values, strict=True))
    for n in (1, 2, 3)
    for keys in itertools.combinations("abc", n)
    for values in itertools.product([1, 2, 3], repeat=n)
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_a_grammar_takes_what_is_valid_by_the_schema(schema: Any) -> None:
    pattern = as_regex(grammar_of(read_schema(schema)))
    validator = jsonschema.Draft202012Validator(schema)
    is_closed = {**schema, "additionalProperties": False} if "properties" in schema else schema
    exact = jsonschema.Draft202012Validator(is_closed)
    for value in VALUES:
        is_taken = pattern.fullmatch(json.dumps(value, separators=(",", ":"))) is not None
        assert is_taken == exact.is_valid(value)
        assert not is_taken or validator.is_valid(value)


@pytest.mark.parametrize(
    "expression",
    [
        VALUE,
        TextLiteral('q"b\\n\n\x00\x7f[]-ä😀'),
        Chars(((0, 0x1F), (0x5D, 0x5D), (0x1F600, 0x1F600))),
        Repeat(Sequence((TextLiteral("a"), Repeat(Either((TextLiteral("b"), TextLiteral(""))), 0, 1000))), 0, 1000),
        Either((Sequence(()), Rule(TextLiteral("a")))),
        read_pattern(r"^\W\W-\W{2}[^\s]$").content,
    ],
)
def test_llama_cpp_reads_what_is_printed(precise: Any, expression: Any) -> None:
    printed = Grammar(expression)
    vocab = llama_cpp.llama_model_get_vocab(precise.model)
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, f"root ::= {printed.body}\n{printed.rules}".encode(), b"root")
    assert sampler
    llama_cpp.llama_sampler_free(sampler)


def test_more_repetitions_than_llama_cpp_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 1000 times"):
        Repeat(TextLiteral("a"), 0, 1001)
