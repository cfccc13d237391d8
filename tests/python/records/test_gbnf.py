from __future__ import annotations

import itertools
import json
import random
import re
import time

import jsonschema
import pytest
from grammar_regex import as_regex
from hypothesis import given, settings
from hypothesis import strategies as st
from token_trie.records import gbnf
from token_trie.records.gbnf import FORMATS, Grammar, Matcher, decimals, integers, read_pattern

TEXTS = ["".join(parts) for n in range(4) for parts in itertools.product('ab1 "\\ä-', repeat=n)]


def accepts(pattern: str, text: str) -> bool:
    return as_regex(read_pattern(pattern).content).fullmatch(json.dumps(text, ensure_ascii=False)[1:-1]) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        "^ab$",
        "^a",
        "a$",
        "",
        "^(?:ab|1)+$",
        "^[a-b]{2,4}$",
        r"^\d$",
        '^"$',
        r"^\\$",
        '^["]$',
        "^ä$",
        "^a?b*$",
        "1|^a|b$",
        r"\d",
        r"\D",
        r"[^\d]",
        r"^\w+$",
        r"^\W+$",
        r"[^\W]",
        r"^[^\w]$",
        r"^\s\S$",
        r"^[^\s]$",
        "^.$",
        "^[^a]$",
        "^(a|b|)$",
        "^ab$|^a1$",
        "^$|^a",
        "^a(b$|1)",
        "ab$|a1",
        "^(?:a|b)$|^1",
    ],
)
def test_a_pattern_is_a_grammar_of_its_texts_in_json(pattern: str) -> None:
    wanted = {text for text in TEXTS if re.search(pattern, text)}
    found = {text for text in TEXTS if accepts(pattern, text)}
    assert found <= wanted
    # Only characters that both readings of a class share are left.
    assert {text for text in wanted if text.isascii()} <= found


def finds(matcher: Matcher, text: str) -> bool:
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    return matcher.ends(written) >> len(written) == 1


@pytest.mark.parametrize(
    "pattern", ["", "a", "^a|b$", "^(?:ab|1)+$", "(a+)+b?$", "^.{2,3}$", "^[^a]{0,2}b", r"\\[^\d]?|\""]
)
def test_a_pattern_is_found_where_re_finds_it(pattern: str) -> None:
    matcher = Matcher(read_pattern(pattern).content)
    assert [t for t in TEXTS if finds(matcher, t)] == [t for t in TEXTS if re.search(pattern, t)]


@given(st.from_regex(r"\A(\^?\(?[ab.1](\)?[*+?]|\{1,3\})?\)?\$?\|?){1,6}\Z"), st.text("ab1", max_size=9))
def test_any_pattern_is_found_where_re_finds_it(pattern: str, text: str) -> None:
    try:
        matcher = Matcher(read_pattern(pattern).content)
    except ValueError:
        return
    assert finds(matcher, text) == (re.search(pattern, text) is not None)


@pytest.mark.parametrize(
    "pattern",
    ["^(a+)+$", "^(a|a)+$", "^(a|aa)+$", "(" * 20 + "a" + "+)" * 20 + "$", "(.*a){12}$", "^" + "a?b?" * 8 + "c$"],
)
def test_a_search_that_backtracking_never_ends_takes_no_time(pattern: str) -> None:
    started = time.perf_counter()
    assert not finds(Matcher(read_pattern(pattern).content), "a" * 60 + "!")
    assert time.perf_counter() - started < 1


def test_a_search_that_takes_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gbnf, "_MAX_STEPS", 2_000)
    matcher = Matcher(read_pattern("(a+)+$").content)
    assert not finds(matcher, "a" * 60 + "!")
    with pytest.raises(ValueError, match="too long"):
        finds(matcher, "a" * 1_000 + "!")


@pytest.mark.parametrize(
    "code", [*range(0x20), 0x7F, 0x85, 0xA0, 0x1680, 0x180E, 0x2003, 0x2028, 0x3000, 0xFEFF, 0x663]
)
@pytest.mark.parametrize("letter", "swdSWD")
def test_a_class_has_no_character_that_a_validator_refuses(letter: str, code: int) -> None:
    for pattern in (rf"^\{letter}$", rf"^[^\{letter}]$", rf"^[x\{letter}]$"):
        assert not accepts(pattern, chr(code)) or re.search(pattern, chr(code))


def test_a_control_character_is_escaped() -> None:
    assert as_regex(read_pattern("^\x00\n$").content).fullmatch(r"\u0000\n")


@pytest.mark.parametrize("pattern", ["^" + ".?" * 200 + "$", "^(a?a?){1}a*a?$", "^[ab]{1,2}[ab]+$"])
def test_repetitions_of_the_same_in_a_row_are_one(pattern: str) -> None:
    found = {text for text in TEXTS if accepts(pattern, text)}
    assert found == {text for text in TEXTS if re.search(pattern, text)}


@pytest.mark.parametrize("part", [r"\W", r"[^\s\d]", r"\Wa{2}", "[a-c]"])
def test_a_grammar_grows_with_its_pattern_by_a_few_bytes_a_character(part: str) -> None:
    sizes = []
    for n in (1, 101, 501):
        pattern = read_pattern(f"^{part * n}$")
        grammar = Grammar(pattern.content)
        sizes.append((pattern.n_states, len(grammar.body) + len(grammar.rules)))
    for one, hundred, five in zip(*sizes, strict=True):
        assert five - hundred == pytest.approx(4 * (hundred - one), rel=0.05)
        assert hundred - one < 100 * 20 * len(part)


def test_lengths_are_known_where_both_ends_are() -> None:
    assert read_pattern("^a{2,5}b?$")[2:] == (2, 6)
    assert read_pattern("^a{2,}$")[2:] == (2, None)
    assert read_pattern("a")[2:] == (1, None)


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
        ("(a*)*", "what may be empty, any number of times"),
        ("^((.?){9}){9}$", "81 parts in a row that may be empty"),
        ("^" + "a?.?" * 100 + "$", "200 parts in a row that may be empty, more than 16"),
        ("^(a?b?){20}(c?(d?e?|f)){30}$", "parts in a row that may be empty"),
        ("a" * 5001, "more than 5,000 characters"),
        ("".join(rf"[\W{a}{b}]" for a in "abcdefgh" for b in "abcdefgh"), "51,384 states, more than 50,000"),
        ("^" + "(a{1,999}b)" * 51 + "$", "51,155 states, more than 50,000"),
        (r"[^\s\S]", "a character that nothing is"),
        ("^[\x01-\x02]$", "a character that nothing is"),
        ("\ud800", "literal"),
        ("(", "missing"),
    ],
)
def test_what_no_grammar_says_is_named(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_pattern(pattern)


@pytest.mark.parametrize("name", ["date", "email", "ipv4", "ipv6", "uuid"])
@given(data=st.data())
@settings(max_examples=30)
def test_a_text_of_a_format_is_one_to_a_validator(name: str, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(re.compile(FORMATS[name].replace("$", r"\Z"), re.ASCII)))
    assert jsonschema.FormatChecker().conforms(text, name)


@pytest.mark.parametrize(
    ("name", "some", "others"),
    [
        ("email", ["ada@example.com", "a.b+c@mail.example.co.uk"], ["ada", "@example.com", "a@b", "a b@example.com"]),
        ("hostname", ["localhost", "a-b.example.com"], ["-a.com", "a-.com", "a..b", ""]),
        ("ipv6", ["::", "::1", "2001:db8::8:800:200c:417a", "1:2:3:4:5:6:7:8"], ["1::2::3", "1:2:3", "12345::"]),
        ("ipv4", ["127.0.0.1", "255.250.199.9"], ["256.1.1.1", "01.1.1.1", "1.1.1"]),
        (
            "uri",
            ["https://example.com/a?b=c#d", "mailto:a@b.c", "urn:a:b", "file:///a"],
            ["example.com", "a b:c", "x:%1"],
        ),
        ("duration", ["P3D", "PT5M", "P1Y2M3DT4H5M6S", "P2W"], ["P", "PT", "P1S", "3D", "P1Y2D"]),
        ("json-pointer", ["", "/a/~0b", "/"], ["a", "/~2"]),
        ("time", ["12:30:00Z", "23:59:59.123+01:00"], ["24:00:00Z", "12:30"]),
    ],
)
def test_a_format_is_as_its_standard_has_it(name: str, some: list[str], others: list[str]) -> None:
    assert [text for text in [*some, *others] if accepts(FORMATS[name], text)] == some


@pytest.mark.parametrize("seed", range(40))
def test_integers_are_those_between_the_bounds(seed: int) -> None:
    rng = random.Random(seed)
    low = rng.choice([-1, 1]) * rng.randrange(10 ** rng.randint(1, 4))
    high = low + rng.randrange(10 ** rng.randint(1, 4))
    pattern = re.compile(integers(low, high))
    near = {n for edge in (low, high, 0, -low, -high) for n in range(edge - 120, edge + 120)}
    near |= {rng.randint(-20000, 20000) for _ in range(300)}
    assert {n for n in near if pattern.fullmatch(str(n))} == {n for n in near if low <= n <= high}
    assert not pattern.fullmatch("-0")
    assert not pattern.fullmatch("07")


@pytest.mark.parametrize("seed", range(60))
def test_decimals_are_all_those_between_the_bounds(seed: int) -> None:
    rng = random.Random(seed)
    one = 10**6
    low = rng.choice([rng.randint(-12, 12) * one, rng.randint(-3 * one, 3 * one), rng.randint(-30, 30) * one // 10])
    high = low + rng.choice([0, 1, rng.randint(0, 40), rng.randint(0, 3 * one), rng.randint(1, 25) * one])
    pattern = re.compile(decimals(low, high))
    near = {
        n for edge in (low, high, 0) for n in [*range(edge - 12, edge + 13), edge - one, edge + one, edge + one // 2]
    }
    near |= {rng.randint(low - one, high + one) for _ in range(200)}
    for n in near:
        sign, (whole, part) = "-" if n < 0 else "", divmod(abs(n), one)
        full = f"{sign}{whole}.{part:06}"
        for text in {full, full.rstrip("0").rstrip("."), full.rstrip("0") + ("0" if part == 0 else "")}:
            assert (pattern.fullmatch(text) is not None) == (low <= n <= high), text
    assert not any(pattern.fullmatch(text) for text in ("-0", "-0.0", "00", "1.", ".5", "0.0000000"))
