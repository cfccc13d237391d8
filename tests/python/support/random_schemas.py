"""Random JSON Schemas of all that records support, and whether the grammar of llama.cpp takes what was written."""

from __future__ import annotations

import copy
import random
from typing import Any

import llama_cpp
from llama_cpp.llama_grammar import json_schema_to_gbnf

WORDS = ["red", "green", "blue", "yes", "no", "Paris", "grün", "a b", "x/y", "A", "Oslo", "-"]
PATTERNS = ["^[a-c]{2,4}$", "^(yes|no)$", "^[A-Z][a-z]{0,3}-[0-9]{2}$", "^x?y{1,2}$"]


class RandomSchema:
    """One schema; required fields come first, as llama.cpp's own grammar of an object wants them.

    for_llama leaves out what that grammar takes for something else: quotes in keys, constants other than scalars.
    """

    def __init__(self, seed: int, *, for_llama: bool) -> None:
        self._rng = random.Random(seed)
        self._for_llama = for_llama
        self._recurses = self._rng.random() < 0.15

    def make(self) -> dict[str, Any]:
        if not self._recurses:
            return self._any(2)
        item = {
            "type": "object",
            "properties": {"v": self._any(0), "next": {"$ref": "#/$defs/item"}},
            "required": ["v"],
        }
        root = {"type": "object", "properties": {"item": {"$ref": "#/$defs/item"}}, "required": ["item"]}
        return {**root, "$defs": {"item": item}}

    def _any(self, depth: int) -> dict[str, Any]:
        kinds = [self._values, self._string, self._number, self._integer, self._boolean, self._constant, self._optional]
        if depth:
            kinds += 2 * [self._object, self._array] + [self._map, self._union]
        schema: dict[str, Any] = self._rng.choice(kinds)(depth)
        return schema

    def _values(self, _: int) -> dict[str, Any]:
        values: list[Any] = self._rng.sample(WORDS, self._rng.randint(1, 5))
        if self._rng.random() < 0.2:
            values += self._rng.sample([0, 1, 10, -2, 1.5, None, True], 3)
        return {"enum": values}

    def _constant(self, _: int) -> dict[str, Any]:
        constants = [*WORDS, 3, None, False]
        return {"const": self._rng.choice(constants if self._for_llama else [*constants, [1, "a"], {"k": [True]}])}

    def _boolean(self, _: int) -> dict[str, Any]:
        return {"type": "boolean"}

    def _string(self, _: int) -> dict[str, Any]:
        choice = self._rng.random()
        if choice < 0.2:
            return {"type": "string", "pattern": self._rng.choice(PATTERNS)}
        if choice < 0.4:
            return {"type": "string", "format": self._rng.choice(["date", "time", "date-time", "uuid"])}
        low = self._rng.randint(0, 3)
        return {"type": "string", "minLength": low, "maxLength": low + self._rng.randint(0, 6)}

    def _integer(self, _: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "integer"}
        low = self._rng.choice([-150, -1, 0, 1, 7])
        if self._rng.random() < 0.7:
            schema[self._rng.choice(["minimum", "exclusiveMinimum"])] = low
        if self._rng.random() < 0.7:
            schema[self._rng.choice(["maximum", "exclusiveMaximum"])] = low + self._rng.choice([2, 5, 120, 5000])
        return schema

    def _number(self, _: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "number"}
        low = self._rng.choice([-3, 0, 1, 40])
        if self._rng.random() < 0.5:
            schema[self._rng.choice(["minimum", "exclusiveMinimum"])] = low
        if self._rng.random() < 0.5:
            schema[self._rng.choice(["maximum", "exclusiveMaximum"])] = low + self._rng.choice([1, 100])
        return schema

    def _optional(self, _: int) -> dict[str, Any]:
        kind = self._rng.choice([self._integer, self._string, self._boolean, self._number])(0)
        return {"anyOf": [kind, {"type": "null"}]}

    def _union(self, depth: int) -> dict[str, Any]:
        tagged = [
            {"type": "object", "properties": {"kind": {"const": name}, "v": self._any(depth - 1)}, "required": ["kind"]}
            for name in self._rng.sample(WORDS, 2)
        ]
        return {self._rng.choice(["anyOf", "oneOf"]): [*tagged, self._rng.choice([{"type": "null"}, self._integer(0)])]}

    def _object(self, depth: int) -> dict[str, Any]:
        known = ["city", "unit", "n", "ä", "list", "x y", *([] if self._for_llama else ['quo"te', "back\\slash"])]
        names = self._rng.sample(known, self._rng.randint(0, 4))
        required = names[: self._rng.randint(0, len(names))]
        schema = {"type": "object", "properties": {name: self._any(depth - 1) for name in names}, "required": required}
        if self._rng.random() < 0.5:
            schema["additionalProperties"] = False
        return schema

    def _map(self, depth: int) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self._any(depth - 1), "maxProperties": 2}

    def _array(self, depth: int) -> dict[str, Any]:
        low = self._rng.randint(0, 2)
        if self._rng.random() < 0.4:
            values = self._rng.sample(WORDS, 4)
            return {"type": "array", "items": {"enum": values}, "minItems": low, "maxItems": 3, "uniqueItems": True}
        return {"type": "array", "items": self._any(depth - 1), "minItems": low, "maxItems": low + 2}


def grammar_takes(llm: Any, schema: dict[str, Any], text: str, dumps: Any) -> bool:
    """Whether llama.cpp's grammar of a whole schema takes a text, and may end behind it."""
    vocab = llama_cpp.llama_model_get_vocab(llm.model)
    gbnf = json_schema_to_gbnf(dumps(schema)).encode()
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, gbnf, b"root")
    assert sampler
    tokens = llm.tokenize(text.encode(), add_bos=False, special=False)
    while llm.detokenize(tokens)[:1] == b" ":
        # SentencePiece puts a space before a text; a line break takes it.
        line = llm.tokenize(b"\n", add_bos=False)
        tokens = llm.tokenize(b"\n" + text.encode(), add_bos=False, special=False)[len(line) :]
    try:
        for token in [*tokens, llm.token_eos()]:
            one = (llama_cpp.llama_token_data * 1)(llama_cpp.llama_token_data(token, 1.0, 0.0))
            array = llama_cpp.llama_token_data_array(one, 1, -1, False)
            llama_cpp.llama_sampler_apply(sampler, array)
            if one[0].logit == float("-inf"):
                return False
            if token != llm.token_eos():
                llama_cpp.llama_sampler_accept(sampler, token)
        return True
    finally:
        llama_cpp.llama_sampler_free(sampler)


JUNK: list[Any] = [None, True, False, 0, -1, 3.5, 1e300, 10**30, "", "x", "^(", [], {}, [[]], ["a"], ["string", "null"]]
JUNK += [{"a": 1}, {"type": "string"}, {"$ref": "#"}, {"$ref": "#/$defs/item"}]
KEYWORDS = "type enum const anyOf oneOf allOf $ref properties required additionalProperties items prefixItems minItems"
KEYWORDS += (
    " maxItems uniqueItems minLength maxLength pattern format minimum maximum multipleOf $defs maxProperties not"
)


def spoil(schema: dict[str, Any], seed: int) -> Any:
    """Put up to three things into a schema that may not belong there."""
    rng = random.Random(seed)
    whole = {"schema": schema}
    for _ in range(rng.randint(1, 3)):
        parts: list[tuple[Any, Any]] = [(whole, "schema")]
        for parent, key in parts:
            child = parent[key]
            parts += (
                [(child, k) for k in (child if isinstance(child, dict) else range(len(child)))]
                if (isinstance(child, (dict, list)))
                else []
            )
        parent, key = rng.choice(parts)
        junk = copy.deepcopy(rng.choice(JUNK))
        if isinstance(parent[key], dict) and rng.random() < 0.6:
            parent[key][rng.choice(KEYWORDS.split())] = junk
        else:
            parent[key] = junk
    return whole["schema"]
