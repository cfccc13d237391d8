"""Structure is decided by what the model would write next, values by their whole texts: by brute force."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from oracle import logits, logprobs
from token_trie import fill
from token_trie.decisions.options import RecordOptions
from token_trie.plan import run
from token_trie.records.fill import read_template, record_request
from token_trie.records.nodes import COMPACT

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


def _texts() -> Iterator[str]:
    """Return all records, with marks around the values that are chosen."""
    flags = ["<true>", "<false>"]
    units = ['"<celsius>"', '"<fahrenheit>"', '"<kelvin>"', "null"]
    lists = [*flags, "[]", *(f"[{','.join(some)}]" for n in (1, 2) for some in itertools.product(flags, repeat=n))]
    for sure, key, unit in itertools.product([None, *flags], [None, *flags], [None, *units]):
        named = {"is_sure": sure, "a_key_that_the_model_never_proposed": key, "unit": unit}
        fields = [f'"{name}":{value}' for name, value in named.items() if value is not None]
        yield from ("{" + ",".join([*fields, f'"flags":{items}']) + "}" for items in lists)


def _expected(llm: Any, prompt: list[int]) -> str:
    """Write the record token by token; where a value begins, take the value of the highest probability."""
    left = {}
    for marked in _texts():
        tokens = llm.tokenize(marked.replace("<", "").replace(">", "").encode(), add_bos=False)
        left[marked] = tokens
    written: list[int] = []
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
        written.append(next(iter(left.values()))[n])
    return next(iter(left)).replace("<", "").replace(">", "")


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
