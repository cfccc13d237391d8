"""Structure is decided by what the model would write next, values by their whole texts: by brute force."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import llama_cpp
import numpy as np
import pytest
from oracle import logits, logprobs
from tiny_model import write_tiny_model
from token_trie import fill
from token_trie.decisions.options import RecordOptions
from token_trie.plan import run
from token_trie.records.fill import read_template, record_request
from token_trie.records.nodes import COMPACT, SPACED, Layout
from token_trie.records.tool_prompt import CallTemplate
from token_trie.records.tools import read_tools, tool_request

FLAG, UNIT = {"type": "boolean"}, {"enum": ["celsius", "fahrenheit", "kelvin"]}
SCHEMA = {
    "type": "object",
    "properties": {
        "is_sure": FLAG,
        "a_key_that_the_model_never_proposed": FLAG,
        "unit": {"anyOf": [UNIT, {"type": "null"}]},
        "flags": {"anyOf": [FLAG, {"type": "array", "items": FLAG, "maxItems": 2}]},
    },
    "required": ["flags"],
    "additionalProperties": False,
}
PROMPTS = [f"{word} no. {n}\nAnswer:\n" for word in ("Oslo", "yes", "The butter", "{}") for n in range(6)]


OPTIONAL = ["is_sure", "a_key_that_the_model_never_proposed"]


def _texts() -> Iterator[str]:
    """Return all records, with marks around the values that are chosen; a field may be null that the schema has not."""
    flags = ["<true>", "<false>"]
    units = ['"<celsius>"', '"<fahrenheit>"', '"<kelvin>"', "null"]
    lists = [*flags, "[]", *(f"[{','.join(some)}]" for n in (1, 2) for some in itertools.product(flags, repeat=n))]
    for values in itertools.product([None, *flags, "null"], [None, *flags, "null"], [None, *units]):
        named = zip([*OPTIONAL, "unit"], values, strict=True)
        fields = [f'"{name}":{value}' for name, value in named if value is not None]
        yield from ("{" + ",".join([*fields, f'"flags":{items}']) + "}" for items in lists)


def _expected(llm: Any, prompt: list[int]) -> str:
    """Write the record token by token; where a value begins, take the value of the highest probability."""
    every = {}
    for marked in _texts():
        tokens = llm.tokenize(marked.replace("<", "").replace(">", "").encode(), add_bos=False)
        every[marked] = tokens
    left, written = every, list[int]()
    while len(left) > 1:
        n = len(written)
        following = {tokens[n] for tokens in left.values()}
        if len(following) > 1:
            llm.reset()
            llm.eval([*prompt, *written])
            row = logits(llm)
            best = max(following, key=lambda token: row[token])
            begun = len(llm.detokenize(written))
            values = {marked: value for marked in left if (value := _value_at(marked, begun)) is not None}
            if any(left[marked][n] == best for marked in values):
                scores = {}
                for marked, value in values.items():
                    if value not in scores:
                        n_value = _n_tokens(llm, left[marked][n:], len(value))
                        scores[value] = sum(logprobs(llm, [*prompt, *written], tuple(left[marked][n : n + n_value])))
                chosen = max(scores, key=lambda value: scores[value])
                left = {marked: left[marked] for marked, value in values.items() if value == chosen}
            else:
                left = {marked: tokens for marked, tokens in left.items() if tokens[n] == best}
        written.append(next(iter(left.values()))[len(written)])
        before, name = _without_null(llm.detokenize(written).decode())
        if name is not None:
            passed = [f'"{each}"' for each in OPTIONAL[: OPTIONAL.index(name) + 1]]
            left = {marked: tokens for marked, tokens in every.items() if _goes_on(marked, before, passed)}
            written = llm.tokenize(before.encode(), add_bos=False)
    return next(iter(left)).replace("<", "").replace(">", "")


def _without_null(text: str) -> tuple[str, str | None]:
    """Return a text before an optional field that is null at its end, and the field's name; or the text and None."""
    for name in OPTIONAL:
        if text.endswith(field := f'"{name}":null'):
            return text.removesuffix(field), name
    return text, None


def _goes_on(marked: str, before: str, passed: list[str]) -> bool:
    """Return whether a record begins with a text, and has no field that was passed after it."""
    text = marked.replace("<", "").replace(">", "")
    return text.startswith(before) and not any(name in text[len(before) :] for name in passed)


def _value_at(marked: str, begun: int) -> str | None:
    """Return the value that begins after so many characters."""
    at = 0
    for i, char in enumerate(marked):
        if char == "<" and at == begun:
            return marked[i + 1 : marked.index(">", i)]
        at += char not in "<>"
    return None


def _n_tokens(llm: Any, tokens: list[int], n_bytes: int) -> int:
    return next(n for n in range(1, len(tokens) + 1) if len(llm.detokenize(tokens[:n])) >= n_bytes)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_structure_is_decided_token_by_token_and_values_as_a_whole(byte_level: Any, prompt: str) -> None:
    request = record_request(read_template(SCHEMA), RecordOptions(max_nodes=None))
    record = run(byte_level, prompt, replace(request, layout=COMPACT).plan)
    assert record.text == _expected(byte_level, byte_level.tokenize(prompt.encode()))


def test_the_prompts_give_different_records(byte_level: Any) -> None:
    records = {fill(byte_level, prompt, SCHEMA, indent=None).text for prompt in PROMPTS}
    assert len(records) > 2


def test_the_layout_is_decided_once_and_kept(byte_level: Any) -> None:
    seen = set()
    for prompt, seed in itertools.product(PROMPTS, range(8)):
        record = fill(byte_level, prompt, SCHEMA, mode="sampled", seed=seed)
        lines = json.dumps(record.value, indent=2)
        flags = json.dumps(record.value["flags"])  # a list or not
        short = re.sub(r"\[[^\]]*\]", lambda _, flags=flags: flags, lines)
        texts = [json.dumps(record.value), json.dumps(record.value, separators=(",", ":")), lines, short]
        assert record.text in texts
        seen.add(texts.index(record.text))
    assert len(seen) > 2


# Tokens of large vocabularies.
ENDS = ['"]', '"],', '"]}', '"]}}', '"],"', "}}", "}}}", "]}", "]}}", "},", "},{", ',"', '",', '", "', "],", '],"']
ENDS += ['"},', '"},"', "[]}"]
seen: set[str] = set()
NAMES: dict[str, tuple[Any, list[str]]] = {
    "k": ({"const": "a"}, ['"a"']),
    "l": ({"type": "boolean"}, ["true", "false"]),
    "area": ({"enum": ["x", 3, 71]}, ['"x"', "3", "71"]),
}
Parts = tuple[str, ...]


def _optional(*names: str) -> dict[str, Any]:
    return {name: NAMES[name][0] for name in names}


def _fields(names: list[str], comma: str, colon: str, before: str) -> Iterator[Parts]:
    """Yield the parts of an object's optional fields, and its end; each field is absent, null, or has a value."""
    for values in itertools.product(*([None, "null", *NAMES[name][1]] for name in names)):
        parts: list[str] = []
        for name, value in zip(names, values, strict=True):
            is_first = all(part == "null" for part in parts[1::2])
            key = (before if is_first else comma) + f'"{name}"{colon}'
            parts += [] if value is None else [key, value]
        yield (*parts, "}")


def _lists(items: list[Parts], comma: str, n_max: int) -> Iterator[Parts]:
    """Yield the parts of lists of up to n_max items."""
    for some in (s for n in range(n_max + 1) for s in itertools.product(items, repeat=n)):
        parts: list[str] = []
        for first, *others in some:
            parts += [(comma if parts else "") + first, *others]
        yield (*parts, "]")


def _spelled(llm: Any, text: Parts, k: int, end: str) -> Iterator[list[int]]:
    """Yield the beginnings of all spellings of a text that cover its parts up to k."""
    whole, begin = "".join(text) + end + "\n", len("".join(text[: k + 1]))
    signs = re.compile(r"\W*").match(whole, begin)
    assert signs is not None
    for cut in (*range(begin, signs.end() + 1), len(whole)):
        yield _tokens(llm, whole[:cut])


@cache
def _tokens(llm: Any, text: str) -> list[int]:
    tokens: list[int] = llm.tokenize(text.encode(), add_bos=False)
    return tokens


def _ended(llm: Any, prompt: list[int], texts: list[Parts], lead: str, end: str) -> str:
    """Write a text part by part, by what the tokens of all spellings of the next parts are worth together."""
    left, k = [(lead, *text) for text in texts], 0
    while len(left) > 1:
        rows = [(text[k], row) for text in left for row in _spelled(llm, text, k, end)]
        n = 0
        while len({part for part, _ in rows}) > 1:
            following = {row[n] for _, row in rows}
            if len(following) > 1:
                llm.reset()
                llm.eval([*prompt, *rows[0][1][:n]])
                scores = logits(llm)
                ways = {token: frozenset(part for part, row in rows if row[n] == token) for token in following}
                worth = {way: sum(np.exp(scores[t]) for t in ways if ways[t] == way) for way in ways.values()}
                best = max(following, key=lambda token: (worth[ways[token]], scores[token]))
                rows = [(part, row) for part, row in rows if row[n] == best]
            n += 1
        chosen = rows[0][0]
        left = [text for text in left if text[k] == chosen]
        if chosen == "null":  # the field is left out, with its key
            k -= 1
            left = [(*text[:k], *text[k + 2 :]) for text in left]
        else:
            k += 1
    return "".join(left[0][1:])


@pytest.fixture(scope="module", params=range(8))
def with_ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a model with the tokens of `ENDS`."""
    path = tmp_path_factory.mktemp("ends") / "model.gguf"
    write_tiny_model(path, is_bpe=True, words=ENDS, seed=request.param)
    yield (llm := llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, verbose=False))
    llm.close()


def check_ends(llm: Any, of: str, layout: Layout, is_call: bool, prompts: list[str]) -> None:
    comma, colon = layout.comma(0), layout.colon
    item: dict[str, Any] = {"const": "a"}
    items: list[Parts] = [('"a"',)]
    n_max = 2 if of == "texts" else 1
    if of == "objects":
        item = {"type": "object", "properties": _optional("k", "l")}
        items = [("{", *rest) for rest in _fields(["k", "l"], comma, colon, "")]
    schema = {
        "type": "object",
        "properties": {"list": {"type": "array", "items": item, "maxItems": n_max}, **_optional("area", "l")},
        "required": ["list"],
    }
    begin, rests = f'{{"list"{colon}[', [*_fields(["area", "l"], comma, colon, comma)]
    texts = [(begin, *some, *rest) for some in _lists(items, comma, n_max) for rest in rests]
    options = RecordOptions(mode="greedy")
    for prompt in prompts:
        if is_call:
            template = CallTemplate('{"name":"', '","arguments":', "}", layout)
            tool = {"type": "function", "function": {"name": "do", "parameters": schema}}
            request: Any = tool_request(read_tools([tool]), options, template)
            lead, end = '{"name":"do","arguments":', "}"
        else:
            request, lead, end = replace(record_request(read_template(schema), options), layout=layout), "", ""
        text = run(llm, prompt, request.plan).text
        assert text == _ended(llm, llm.tokenize(prompt.encode()), texts, lead, end)
        seen.add(text)


WRAPS = pytest.mark.parametrize("is_call", [False, True], ids=["record", "call"])
LAYOUTS = pytest.mark.parametrize("layout", [COMPACT, SPACED], ids=["compact", "spaced"])


@WRAPS
@LAYOUTS
@pytest.mark.parametrize("of", ["texts", "objects"])
def test_a_list_or_an_object_ends_by_the_sum_of_all_spellings(
    with_ends: Any, of: str, layout: Layout, is_call: bool
) -> None:
    check_ends(with_ends, of, layout, is_call, PROMPTS[::4])


@WRAPS
@LAYOUTS
def test_real_models_end_lists_by_the_sum_of_all_spellings(llm: Any, layout: Layout, is_call: bool) -> None:
    check_ends(llm, "texts", layout, is_call, ["The list, as JSON: a, a. The area: x.\n"])


def test_the_models_end_records_in_different_ways() -> None:
    assert len(seen) > 10
