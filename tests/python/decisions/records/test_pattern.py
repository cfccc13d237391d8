from __future__ import annotations

import pytest
from token_trie.decisions.records.pattern import read_pattern


@pytest.mark.parametrize(
    ("pattern", "content"),
    [
        ("^ab$", '"a" "b"'),
        ("^a", '"a" char*'),
        ("a$", 'char* "a"'),
        ("", "char* char*"),
        ("^(?:ab|c)+$", '( ( "a" "b" | "c" ) ){1,}'),
        ("^[a-c]{2,4}$", r"( [\x61-\x63] ){2,4}"),
        (r"^\d$", r"[\x30-\x39]"),
        ('^"$', r'"\\\""'),
        (r"^\\$", r'"\\\\"'),
        ("^\n$", r'"\\n"'),
        ('^["]$', r'"\\\""'),
        ("^ä$", '"ä"'),
    ],
)
def test_a_pattern_is_a_grammar_of_what_stands_in_json(pattern: str, content: str) -> None:
    assert read_pattern(pattern).content == content


def test_lengths_are_known_where_both_ends_are() -> None:
    assert read_pattern("^a{2,5}b?$")[1:] == (2, 6)
    assert read_pattern("^a{2,}$")[1:] == (2, None)
    assert read_pattern("a")[1:] == (1, None)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a$b", "a place inside"),
        (r"a\b", "a place inside"),
        ("(?!a)b", "lookahead"),
        (r"(a)\1", "a back reference"),
        ("(?i)a", "flags"),
        ("(?i:a)", "subpattern"),
        ("a{2000}", "more than 1000 times"),
        ("((a{40}b){30})", "more than 1000 times"),
        (r"[^\s\S]", "a character that nothing is"),
        ("\ud800", "literal"),
        ("(", "missing"),
    ],
)
def test_what_no_grammar_says_is_named(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_pattern(pattern)
