from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from arbitrary_schemas import ArbitrarySchema
from drawing import seeded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from token_trie import ArgumentError, LimitError, StreamHandle
from token_trie.records.schema import read_schema

LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.fixture(scope="module", params=["precise", "byte_level"])
def stream(request: pytest.FixtureRequest) -> Iterator[StreamHandle]:
    with StreamHandle(request.getfixturevalue(request.param), n_ctx=1024) as handle:
        yield handle


@settings(max_examples=150, suppress_health_check=LARGE)
@given(st.randoms(use_true_random=False), st.sampled_from(["sampled", "greedy", "exact"]), st.sampled_from([None, 1]))
def test_what_is_written_is_valid_or_the_schema_is_refused_before(
    stream: StreamHandle, rng: random.Random, mode: Any, indent: int | None
) -> None:
    check(stream, ArbitrarySchema(rng).make(), mode=mode, indent=indent, **seeded(mode, 1))


@settings(max_examples=150, suppress_health_check=LARGE)
@given(st.randoms(use_true_random=False), st.integers(0, 9))
def test_what_one_branch_of_a_union_writes_keeps_to_all_branches(
    stream: StreamHandle, rng: random.Random, seed: int
) -> None:
    check(stream, ArbitrarySchema(rng).make_union(), mode="sampled", seed=seed, temperature=3.0)


def check(stream: StreamHandle, schema: Any, **options: Any) -> None:
    stream.prefill("Begin\nJSON:")
    n_passes = stream.state.n_passes
    try:
        read_schema(schema)
    except ArgumentError:
        with pytest.raises(ArgumentError, match="schema#"):
            stream.fill(schema, **options)
        assert stream.state.n_passes == n_passes
        return
    with contextlib.suppress(LimitError):  # slots that nothing may cut may have no end
        record = stream.fill(schema, max_tokens=40, **options)
        # Definitions that nothing refers to are not read, and may be malformed.
        validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        validator(schema).validate(json.loads(record.text))


EMOJI = [{"type": "object", "properties": {"😀": {"type": kind}}} for kind in ("string", "null")]


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "integer", "enum": ["a", 1]}, {"type": "number", "maximum": 3}]},
        {"anyOf": EMOJI},
        {"anyOf": [{"type": "string", "maxLength": 2}, {"enum": ["😀😀", 'q"', "\\n\n"]}]},
        {
            "anyOf": [
                {"type": "object", "properties": {'a\\b"': {"type": "null"}}},
                {"type": "object", "maxProperties": 0},
            ]
        },
        {"anyOf": [{"type": "array", "maxItems": 2}, {"type": "array", "items": {"type": "null"}}]},
        {"anyOf": [{"items": {"type": "null"}, "maxItems": 1}, {"type": "array", "minItems": 2.0, "maxItems": 3}]},
        {"anyOf": [{"$ref": "#/$defs/value"}, {"type": "array"}], "$defs": {"value": {"type": "array", "maxItems": 1}}},
        {"type": "array", "items": {"enum": [1, 1.0, True]}, "uniqueItems": True, "minItems": 2},
        {"type": "string", "pattern": "^\x00$"},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2.0, "maxItems": 3},
        {"enum": [10**400, 1], "type": "integer"},
        {"type": "integer", "minimum": 1_600_000_000},
        {"type": "integer", "maximum": -(10**12)},
        {"type": "integer", "exclusiveMinimum": 10**15},
        {"type": "number", "exclusiveMinimum": 0.1, "maximum": 0.30000000000000004},
        {"type": "number", "minimum": 1_600_000_000.5},
    ],
    ids=str,
)
def test_what_once_came_out_invalid_is_valid(stream: StreamHandle, schema: Any) -> None:
    stream.prefill("Begin\nJSON:")
    for seed in range(3):
        with contextlib.suppress(LimitError), stream.fork() as fork:
            record = fork.fill(schema, mode="sampled", seed=seed, max_tokens=150)
            jsonschema.validate(json.loads(record.text), schema, cls=jsonschema.Draft202012Validator)
