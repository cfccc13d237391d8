"""Schemas that combine others: what can be written by them, and that it is valid."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from combined_schemas import VALUES, combined_schema
from hypothesis import given, settings
from hypothesis import strategies as st
from token_trie import ArgumentError
from token_trie.records.schema import read_schema

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))
bench = pytest.importorskip("bench.admits", reason="needs the source tree")

KIND = {"properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer"}}, "required": ["kind"]}
IS_A = {"properties": {"kind": {"const": "a"}}}
NAMED = {
    "$id": "https://example.org/s",
    "properties": {
        "a": {"$ref": "item"},
        "b": {"$ref": "https://example.org/item#small"},
        "c": {"$ref": "urn:x:1#/items"},
    },
    "$defs": {
        "of a path": {"$id": "item", "type": "null", "$defs": {"s": {"$anchor": "small", "const": 1}}},
        "of none": {"$id": "urn:x:1", "items": {"const": 2}},
    },
}


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_what_can_be_written_is_valid(rng: random.Random) -> None:
    check(combined_schema(rng), None)


@settings(max_examples=100)
@given(st.randoms(use_true_random=False))
def test_what_is_left_out_of_a_schema_is_told(rng: random.Random) -> None:
    check(combined_schema(rng), [])


def check(schema: Any, ignored: list[str] | None) -> None:
    try:
        node = read_schema(schema, ignored)
    except ArgumentError:
        return
    if not ignored:
        assert wrong(schema, node, VALUES) == []


def wrong(schema: Any, node: Any, values: list[Any]) -> list[Any]:
    """Return the values that can be written and are not valid."""
    validator = jsonschema.Draft202012Validator(schema)
    return [value for value in values if bench.admits(node, value) and not validator.is_valid(value)]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"minimum": 2}, [2, 3.5, "a", None, [1], {"a": 1}]),
        ({"required": ["a"]}, [{"a": []}, "a", 1]),
        ({"items": {"const": 1}}, [[], [1, 1], {"b": 1}, "a"]),
        ({"format": "date"}, ["2024-02-29", 1, {}]),
        ({"properties": {"a": {"minLength": 2}}}, [{}, {"a": "ab"}, {"a": 3}]),
        ({"allOf": [{"maximum": 30}, {"minimum": 20}]}, [25, "a"]),
        (
            {"allOf": [{"multipleOf": 4, "maximum": 99}, {"multipleOf": 6, "minimum": 0}], "type": "integer"},
            [0, 12, 96],
        ),
        ({"allOf": [KIND, {"properties": {"m": {"const": 1}}}], "required": ["m"]}, [{"kind": "b", "m": 1}]),
        ({**KIND, "anyOf": [{"required": ["n"]}, IS_A]}, [{"kind": "a"}, {"kind": "b", "n": 1}]),
        ({**KIND, "if": IS_A, "then": {"required": ["n"]}}, [{"kind": "a", "n": 1}, {"kind": "b"}]),
        ({**KIND, "if": IS_A, "else": {"required": ["n"]}}, [{"kind": "a"}, {"kind": "b", "n": 1}]),
        ({**KIND, "not": IS_A}, [{"kind": "b"}, {"kind": "b", "n": 1}]),
        ({"not": {"type": ["integer", "string"]}}, [None, True, [1], {}]),
        ({"not": {"enum": ["ab", "ac", True, None]}}, [False, [], 3]),
        ({"type": "string", "not": {"enum": ["ab", 'a"', ""]}}, ["a", "b", "abc", 'a"b', "\\"]),
        ({"type": "string", "maxLength": 3, "not": {"enum": ["ab", "c", "abc"]}}, ["", "a", "abd", "xyz", "cc"]),
        ({"type": "string", "maxLength": 2000, "not": {"const": "ab"}}, ["", "a", "abd"]),
        ({"type": "array", "not": {"items": {"const": 1}}}, [["a"], [1, 1, "a"]]),
        ({"$ref": "#/$defs/a", "maximum": 5, "$defs": {"a": {"type": "integer", "minimum": 1}}}, [1, 5]),
        ({"$ref": "#n", "$defs": {"a": {"$anchor": "n", "const": 1}}}, [1]),
        (NAMED, [{"a": None, "b": 1, "c": 2}]),
        ({"contains": {"const": 1}}, [[1], [2, 1], "a"]),
        (
            {"items": {"enum": [1, 2]}, "contains": {"const": 1}, "maxContains": 2, "minContains": 2},
            [[1, 1], [2, 1, 2, 1]],
        ),
        ({"type": "object", "properties": {"ab": {}}, "patternProperties": {"b$": {"const": 1}}}, [{"ab": 1}]),
        ({**KIND, "dependentRequired": {"kind": ["n"]}}, [{"kind": "a", "n": 1}]),
        ({**KIND, "dependentSchemas": {"n": IS_A}}, [{"kind": "a", "n": 1}, {"kind": "b"}]),
        (
            {"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}], "unevaluatedProperties": False},
            [{"a": 1, "b": 2}],
        ),
        (
            {"oneOf": [{"required": ["a"], "properties": {"a": {}}}, {"required": ["b"], "properties": {"b": {}}}]},
            [{"a": 1}],
        ),
        (
            {**KIND, "oneOf": [IS_A, {"properties": {"kind": {"const": "b"}}, "required": ["n"]}]},
            [{"kind": "b", "n": 1}],
        ),
        ({"prefixItems": [{"const": 1}, False]}, [[], [1]]),
    ],
)
def test_these_values_can_be_written(schema: Any, values: list[Any]) -> None:
    node = read_schema(schema)
    assert [value for value in values if not bench.admits(node, value)] == []
    assert wrong(schema, node, [*values, *VALUES]) == []


def test_many_conditions_on_one_property_are_as_many_alternatives() -> None:
    names = [f"k{i}" for i in range(20)]
    fields = {"kind": {"enum": names}, **{name: {"const": 1} for name in names}}
    conditions = [{"if": {"properties": {"kind": {"const": name}}}, "then": {"required": [name]}} for name in names]
    node = read_schema({"properties": fields, "required": ["kind"], "allOf": conditions})
    assert bench.admits(node, {"kind": "k7", "k7": 1})
    assert not bench.admits(node, {"kind": "k7", "k8": 1})


def test_many_patterns_stand_beside_many_properties() -> None:
    fields = {f"p{i}": {} for i in range(500)}
    patterns = {f"^p{i}$": {"const": i} for i in range(100)}
    node = read_schema({"properties": fields, "patternProperties": patterns})
    assert bench.admits(node, {"p7": 7, "p400": None})
    assert not bench.admits(node, {"p7": 8})


def test_a_reference_that_leads_through_a_merge_ends_at_the_maximum_depth() -> None:
    tree = {"allOf": [{"$ref": "#/$defs/node"}, {"properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}]}
    schema = {**tree, "$defs": {"node": {"properties": {"v": {"const": 1}, "next": {}}, "required": ["v", "next"]}}}
    node = read_schema(schema)
    assert bench.admits(node, {"v": 1, "next": {"v": 1, "next": None}})
    with pytest.raises(ArgumentError, match="leads back to itself"):
        read_schema({"allOf": [{"$ref": "#"}, {"type": "null"}]})


@pytest.mark.parametrize("keyword", ["allOf", "anyOf"])
def test_schemas_that_multiply_are_refused_at_once(keyword: str) -> None:
    defs: dict[str, Any] = {"d15": {"allOf": [{"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}] * 20}}
    for i in range(15):
        next_one = {"$ref": f"#/$defs/d{i + 1}"}
        defs[f"d{i}"] = {keyword: [next_one, {**next_one, "properties": {"a": next_one}}]}
    schema = {"$ref": "#/$defs/d0", "type": "object", "$defs": defs}
    began = time.process_time()
    with pytest.raises(ArgumentError, match=r"schema#.*(more than|two ways to go on)"):
        read_schema(schema)
    assert time.process_time() - began < 5


def test_what_would_take_long_to_combine_or_match_is_refused() -> None:
    names = {f"p{i}": {"type": "string"} for i in range(300)}
    needed = {"dependentRequired": {f"p{i}": [f"p{i + 1}"] for i in range(299)}}
    with pytest.raises(ArgumentError, match="more than 100,000 schemas and properties are combined"):
        read_schema({"properties": names, **needed})
    ignored: list[str] = []
    read_schema({"properties": names, **needed}, ignored)
    assert [one.split(":")[0] for one in ignored] == ["schema#/dependentRequired"]
    with pytest.raises(ArgumentError, match="more than 50,000 properties times patterns"):
        read_schema({"properties": names, "patternProperties": {f"^p{i}$": {"maxLength": i} for i in range(200)}})
