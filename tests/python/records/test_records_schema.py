from __future__ import annotations

import copy
import time
from typing import Any

import pytest
from random_schemas import RandomSchema, spoil
from token_trie import ArgumentError
from token_trie.records.gbnf import Grammar, Matcher
from token_trie.records.nodes import (
    Array,
    ChoiceNode,
    Layout,
    Map,
    Object,
    PendingValue,
    Slot,
    String,
    Union,
    continuations,
    grammar_of,
)
from token_trie.records.schema import MAX_DEPTH, read_schema

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"enum": [1, 2]}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["v", "kids"],
        }
    },
    "$ref": "#/$defs/node",
}


UNIQUE = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}


def begins(schema: Any) -> list[str]:
    return [each.text for each in continuations(PendingValue(read_schema(schema)), Layout())]


def test_each_kind_of_value_has_its_node() -> None:
    properties = {
        "a": {"enum": ["x", "y"]},
        "b": {"type": "integer", "minimum": 1, "maximum": 3},
        "c": {"type": "string"},
        "d": {"type": "number"},
        "e": {"type": "array", "items": {"type": "boolean"}},
        "f": {"type": "object", "additionalProperties": {"type": "string"}},
        "g": {"type": ["string", "null"]},
    }
    node = read_schema({"type": "object", "properties": properties, "required": ["a", "c"]})
    assert isinstance(node, Object)
    assert [(field.name, field.is_required) for field in node.fields] == [(k, k in "ac") for k in "abcdefg"]
    assert [type(field.node) for field in node.fields] == [ChoiceNode, ChoiceNode, String, Slot, Array, Map, Union]
    assert isinstance(node.fields[1].node, ChoiceNode)
    assert node.fields[1].node.values == (1, 2, 3)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": ["x", 1, None]}, ['"x"', "1", "null"]),
        ({"type": "integer", "exclusiveMinimum": 3, "maximum": 10, "multipleOf": 3}, ["6", "9"]),
        ({"type": "object", "properties": {"k": {"const": "v"}}, "required": ["k"]}, ['{"k":"v"']),
        ({"type": "object", "properties": {"k": {"const": "v"}}}, ["{"]),
        ({"type": "object", "properties": {}}, ["{"]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ['"', "null"]),
        ({"type": "string", "enum": ["a", "bb", 3], "minLength": 2}, ['"bb"']),
        ({"enum": ["ab", "a1", 3], "pattern": "^[a-z]+$"}, ['"ab"', "3"]),
        ({"allOf": [{"type": "boolean"}], "description": "x"}, ["true", "false"]),
        ({"const": 5, "x-note": 1}, ["5"]),
        ({"enum": [1, 1.0, True, 10**400], "type": "integer"}, ["1", str(10**400)]),
        ({"oneOf": [{"const": 1}, {"const": True}]}, ["1", "true"]),
        ({"type": ["number", "null"], "anyOf": [{"enum": [1]}, {"const": None}]}, ["1", "null"]),
        ({"$ref": "#/$defs/a%25b~1c", "$defs": {"a%b/c": {"type": "null"}}}, ["null"]),
        ({"type": ["integer", "number", "integer", "null"]}, ["", "null"]),
        ({"anyOf": [{"not": {}}, {"type": "null"}], "nullable": True}, ["null"]),
        (
            {"type": "boolean", "not": False, "if": {}, "enumDescriptions": 3, "markdown": ""},
            ["true", "false"],
        ),
        ({"type": "array", "items": [{"type": "null"}], "additionalItems": False, "minItems": 1}, ["["]),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 5}, ["4", "5"]),
        ({"type": "object", "properties": {}, "unevaluatedProperties": False, "patternProperties": {}}, ["{"]),
    ],
)
def test_a_value_begins_as_its_schema_says(schema: Any, expected: list[str]) -> None:
    assert begins(schema) == expected


def is_valid(schema: Any, text: str) -> bool:
    return bool(Matcher(grammar_of(read_schema(schema))).ends(text) >> len(text) & 1)


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"minimum": 0.5, "maximum": 1e10}, ["0.5", "12.5", "9999999999"], ["0.4", "-1", "10000000001"]),
        ({"exclusiveMinimum": -(10**12)}, ["-0.25", "12.5", "-999999999999"], ["-1000000000000"]),
        ({"minimum": 1.6e9, "maximum": 10**400}, ["1600000000", "1700000000"], ["1599999999.5", "12.5"]),
        ({"maximum": -0.5, "minimum": -1e300}, ["-0.5", "-12.25", "-5000000000"], ["-0.4", "0", "0.5"]),
    ],
)
def test_numbers_between_far_bounds_may_have_decimals(bounds: Any, inside: list[str], outside: list[str]) -> None:
    schema = {"type": "number", **bounds}
    assert [text for text in [*inside, *outside] if is_valid(schema, text)] == inside


def test_items_that_no_keyword_has_evaluated_are_known_before_draft_2020() -> None:
    schema = {"items": [{"type": "integer"}], "unevaluatedItems": False}
    assert is_valid(schema, "[1]")
    assert not is_valid(schema, "[1,2]")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({}, r"schema#: empty"),
        (False, r"schema#: nothing is valid"),
        ({"type": "text"}, r"schema#/type: must be one of"),
        ({"type": []}, r"schema#/type"),
        ({"type": "object", "patternProperties": {"^a": {}, "^b": {}}}, r"schema#/patternProperties: other than one"),
        ({"type": "object", "patternProperties": 3}, r"schema#/patternProperties: must be an object"),
        (
            {"type": "object", "properties": {"a": {}}, "propertyNames": {"pattern": "^b"}},
            r"schema#/propertyNames/const",
        ),
        ({"type": "object", "propertyNames": {"anyOf": [{}]}}, r"schema#/propertyNames: other than"),
        ({"type": "object", "propertyNames": {"type": "integer"}}, r"schema#/propertyNames: no name is allowed"),
        (
            {"type": "object", "propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"$ref": "#/$defs/n"}}},
            r"schema#/propertyNames: other than",
        ),
        ({"type": "object", "propertyNames": {"$ref": "#/$defs/n"}}, r"schema#/propertyNames/\$ref: .* leads nowhere"),
        ({"type": "array", "contains": {}, "maxItems": 3}, r"schema#/contains: beside other keywords of lists"),
        ({"items": False, "type": "array", "contains": {}}, r"schema#/contains: no item is valid by it"),
        ({"$dynamicRef": "#a"}, r"schema#/\$dynamicRef: '\$dynamicRef' is not supported"),
        ({"type": "integer", "divisibleBy": 2}, r"schema#/divisibleBy: 'divisibleBy' is not supported"),
        ({"properties": {"a": {"type": "null", "required": True}}}, r"schema#/properties/a/required: of draft 3"),
        ({"not": {}}, r"schema#: nothing is valid"),
        ({"anyOf": [{"not": {}}, False]}, r"schema#/anyOf/0: nothing is valid"),
        ({"not": {"pattern": "a"}}, r"schema#/not: of pattern it is not supported"),
        (
            {"type": "object", "properties": {"a/b": {"if": {"format": "date"}, "then": {}}}},
            r"schema#/properties/a~1b/if: of format it is not",
        ),
        ({"type": "integer", "not": {"const": 3}}, r"schema#/not: of values among free ones it is not supported"),
        ({"type": "null", "not": {"type": "null"}}, r"schema#/not: nothing is valid"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, r"schema#/allOf: two values of pattern, which hold together"),
        ({"allOf": [{"type": "string"}, {"pattern": "(?=a)"}]}, r"schema#/allOf/1/pattern: .* lookahead"),
        (
            {"properties": {"a": {"allOf": [{"type": "integer"}, {"type": "string"}]}}},
            r"schema#/properties/a/allOf: nothing is valid",
        ),
        (
            {"allOf": [{"properties": {"a": {"pattern": "(?=a)"}}}, {"required": ["a"]}]},
            r"schema#/allOf/0/properties/a/pattern: .* lookahead",
        ),
        (
            {"not": {"properties": {"a": {"const": 1}}}, "unevaluatedProperties": False},
            r"schema#/unevaluatedProperties: beside not, if or contains",
        ),
        ({"type": "object", "properties": 3}, r"schema#/properties: must be an object"),
        ({"type": "object", "required": "a"}, r"schema#/required: must be a list"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, r"schema#/required: 'a' is no property"),
        ({"type": "string", "format": "email", "minLength": 30}, r"schema#/format: 'email' and 30 or more characters"),
        ({"type": "string", "format": "uuid", "maxLength": 30}, r"schema#/format: 'uuid' and 0 to 30 characters"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, r"schema#/minLength: 3 characters at least and 2 at most"),
        ({"type": "string", "minLength": -1}, r"schema#/minLength: -1 is not a count"),
        ({"type": "string", "pattern": "(?=a)b"}, r"schema#/pattern: '\(\?=a\)b' is not supported: lookahead"),
        ({"type": "string", "pattern": r"[^\s\S]"}, r"schema#/pattern: .*a character that nothing is"),
        ({"type": "string", "pattern": "["}, r"schema#/pattern: '\[' is not supported"),
        ({"type": "string", "pattern": "^(ab)+$", "minLength": 3}, r"schema#/pattern: '.*' and 3 or more characters"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, r"schema#: no integer is from 2 to 1"),
        ({"type": "integer", "minimum": "2"}, r"schema#/minimum: '2' is not a number"),
        ({"type": "integer", "multipleOf": 0.5}, r"schema#/multipleOf: 0.5 is not supported"),
        ({"type": "integer", "minimum": 1, "maximum": 2, "multipleOf": 5}, r"schema#/multipleOf: no multiple of 5"),
        ({"type": "number", "multipleOf": 0.5}, r"schema#/multipleOf: 0.5 is not supported"),
        ({"type": "number", "multipleOf": 2}, r"schema#/multipleOf"),
        (
            {"type": "number", "minimum": 1, "exclusiveMaximum": 1},
            r"schema#: no number of 6 digits after the point is from 1 to 1",
        ),
        ({"enum": []}, r"schema#/enum: no values"),
        ({"enum": ["a"], "type": "integer"}, r"schema#/enum: no value keeps to"),
        ({"enum": [float("nan")]}, r"schema#: no JSON"),
        ({"enum": ["a" * 60 + "!"], "pattern": "^(a+)+$"}, r"schema#/enum: no value keeps to"),
        ({"const": "a" * 60 + "!", "pattern": "^(a|aa)+$"}, r"schema#/const: no value keeps to"),
        ({"enum": ["a"], "pattern": "(?=a)"}, r"schema#/pattern: '\(\?=a\)' is not supported: lookahead"),
        ({"enum": ["a"], "pattern": 3}, r"schema#/pattern"),
        ({"const": 1, "multipleOf": ""}, r"schema#/multipleOf: '' is no number above 0"),
        ({"type": "integer", "maximum": 10**30, "multipleOf": 3}, r"schema#/multipleOf: with more than 1,000 values"),
        ({"const": "\ud800"}, r"schema#: no JSON"),
        ({"anyOf": []}, r"schema#/anyOf: no schemas"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, r"schema#/oneOf/1: may be valid together with /0"),
        (
            {"oneOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"minLength": 3}]},
            r"schema#/oneOf/1: may be valid together with /0",
        ),
        (
            {"oneOf": [{"properties": {"a": {"minLength": 3}}, "required": ["a"]}, {"required": ["a"]}]},
            r"schema#/oneOf/1: may be valid together with /0",
        ),
        (
            {"anyOf": [{**UNIQUE, "maxItems": 2}, {"type": "array", "items": {"type": "null"}}]},
            r"schema#: two ways to go on begin alike, with \[, and no grammar says uniqueItems",
        ),
        (
            {"anyOf": [{"type": "string", "maxLength": 2000}, {"const": "abc"}]},
            r'schema#: two ways to go on begin alike, with ", and no grammar says more than 1000 times',
        ),
        ({"$ref": "http://example.org/x"}, r"schema#/\$ref: 'http://example.org/x' is not supported"),
        ({"$ref": "#/$defs/x"}, r"schema#/\$ref: '#/\$defs/x' leads nowhere"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, r"schema#/minItems: 3 at least and 2 at most"),
        (
            {"type": "array", "prefixItems": [{}], "items": False, "minItems": 2},
            r"schema#/minItems: 2 at least and 1 at most",
        ),
        (
            {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 3},
            r"schema#/minItems: 3 different ones of 2",
        ),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, r"schema#/uniqueItems: of items that"),
        ({"type": "object", "minProperties": 2}, r"schema#/minProperties"),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, r"schema#/minProperties"),
        ([], r"schema#: must be a schema, not list"),
        ({"type": "array", "uniqueItems": 1}, r"schema#/uniqueItems: 1 is neither"),
        ({"type": "array", "prefixItems": []}, r"schema#/prefixItems: no list of schemas"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "prefixItems": [{}]},
            r"schema#/prefixItems: http://json-schema.org/draft-07/schema# does not know it",
        ),
        (
            {**UNIQUE, "items": {"anyOf": [{"enum": ["a", "b", 1]}, {"enum": ["b", 1.0]}]}, "minItems": 4},
            r"schema#/minItems: 4 different ones of 3",
        ),
        ({"type": "integer", "minimum": 10**20}, r"schema#: integers of more than 18 digits"),
        ({"type": "string", "pattern": "^(a|b?)*$"}, r"schema#/pattern: .*what may be empty, any number of times"),
        ({"const": True, "enum": [1]}, r"schema#/const: no value keeps to"),
        ({"allOf": [{"multipleOf": 10**9 + n} for n in range(500)]}, r"schema#/allOf: a common multiple above"),
        ({"not": {"type": "string", "maxLength": int("9" * 4300)}}, r"schema#/not/minLength: 9{18} characters"),
        (
            {"type": "object", "properties": {"b": {}}, "required": ["b"], "propertyNames": {"const": "k"}},
            r"schema#/propertyNames/const: no value keeps to",
        ),
        (
            {"type": "object", "properties": {"b": {}}, "required": ["b"], "propertyNames": False},
            r"schema#/propertyNames: no name is allowed",
        ),
        (
            {"type": "object", "propertyNames": {"type": "number"}, "minProperties": 1},
            r"schema#/propertyNames: no name is allowed",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name_and_position(schema: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_schema(schema)


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"enum": [0.5, 0.25, 0.1, 0.3], "multipleOf": 0.05}, (0.5, 0.25, 0.1, 0.3)),
        ({"enum": [0.5, 1.25, 19.99], "multipleOf": 0.01}, (0.5, 1.25, 19.99)),
        ({"enum": [1, 2.5, 0.3], "multipleOf": 0.5}, (1, 2.5)),
        ({"enum": [1e-7, 1e22, 15], "multipleOf": 5}, (1e22, 15)),
    ],
)
def test_multiples_are_those_of_the_decimal_numbers(schema: Any, values: tuple[float, ...]) -> None:
    node = read_schema(schema)
    assert isinstance(node, ChoiceNode)
    assert node.values == values


def test_an_empty_list_of_properties_leaves_free_keys_as_they_are() -> None:
    free: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert grammar_as_text(read_schema({**free, "properties": {}})) == grammar_as_text(read_schema(free))
    assert grammar_as_text(read_schema({"type": "object", "properties": {}})) == grammar_as_text(Object(()))


@pytest.mark.parametrize("names", [False, {"const": "k", "enum": ["l"]}])
def test_where_no_name_is_allowed_the_object_is_empty(names: Any) -> None:
    node = read_schema({"type": "object", "additionalProperties": {"enum": [1]}, "propertyNames": names})
    assert isinstance(node, Object)
    assert node.fields == ()


def test_a_name_that_is_a_constant_is_the_only_one() -> None:
    node = read_schema({"type": "object", "additionalProperties": {"enum": [1]}, "propertyNames": {"const": "k"}})
    assert isinstance(node, Object)
    assert [(field.name, field.is_required) for field in node.fields] == [("k", False)]


def test_a_pattern_of_names_allows_the_names_that_are_required() -> None:
    schema = {"type": "object", "patternProperties": {"^S_": {}}, "additionalProperties": False, "minProperties": 1}
    assert isinstance(read_schema(schema), Map)
    part = {"minProperties": 1, "required": ["S_b", "n", "S_a"], "properties": {"n": {"const": 2}}}
    schema |= {**part, "patternProperties": {"^S_": {"enum": [1]}, "^T_": {}}}
    node = read_schema(schema)
    assert isinstance(node, Object)
    assert [(field.name, field.is_required) for field in node.fields] == [("n", True), ("S_b", True), ("S_a", True)]
    assert begins(schema) == ['{"n":2']
    for wrong, message in (
        ({"required": ["U_a"]}, "required: 'U_a' is no property"),
        ({"patternProperties": {"^S_": {"type": 3}}}, r"patternProperties/\^S_/type: must be one of .*, not 3"),
        ({"propertyNames": {"maxLength": 2}}, "propertyNames: 'S_b'|propertyNames"),
    ):
        with pytest.raises(ArgumentError, match=f"schema#/{message}"):
            read_schema(schema | wrong)


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_what_does_not_belong_into_a_schema_is_an_argument_error(first: int) -> None:
    n_refused = 0
    for seed in range(first, first + 100):
        schema = spoil(RandomSchema(seed, for_llama=False).make(), seed)
        try:
            read_schema(schema)
        except ArgumentError as error:
            n_refused += str(error).startswith("schema#")
    assert 50 < n_refused < 100


@pytest.mark.parametrize(("name", "given"), [("$except", ["a"]), ("$except", 1), ("$unseen", True)])
def test_what_alternatives_are_written_with_is_no_keyword(name: str, given: Any) -> None:
    schema = {"properties": {name: {"enum": ["a", "b"]}}, "unevaluatedProperties": False}
    spoilt = {**schema, "properties": {name: {"enum": ["a", "b"], name: given}}, name: given}
    assert grammar_as_text(read_schema(spoilt)) == grammar_as_text(read_schema(schema))


@pytest.mark.parametrize(
    ("schema", "ignored", "left"),
    [
        ({"type": "string", "pattern": "(?=a)", "maxLength": 3}, ["/pattern"], {"type": "string", "maxLength": 3}),
        ({"properties": {"a/b": {"not": {"pattern": "a"}}}}, ["/properties/a~1b/not"], {"properties": {"a/b": {}}}),
        (
            {"allOf": [{"type": "string", "pattern": "(?=a)"}, {"maxLength": 3}]},
            ["/allOf/0/pattern"],
            {"type": "string", "maxLength": 3},
        ),
        (
            {"type": "object", "properties": {"a": {"allOf": [{"type": "null"}, {"type": "string"}]}}},
            ["/properties/a/allOf"],
            {"type": "object", "properties": {"a": {}}},
        ),
        ({"anyOf": [{"type": "null"}], "oneOf": [{}, {}]}, ["/oneOf/1"], {"type": "null"}),
        (
            {"oneOf": [{"type": "integer"}, {"type": "number", "multipleOf": 0.5}]},
            ["/oneOf/1/multipleOf", "/oneOf/1"],
            {"anyOf": [{"type": "integer"}, {"type": "number"}]},
        ),
        (
            {"type": "object", "properties": {"oneOf": {"type": "string", "pattern": "(?=a)"}}},
            ["/properties/oneOf/pattern"],
            {"type": "object", "properties": {"oneOf": {"type": "string"}}},
        ),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "contains": {}, "maxItems": 3}}},
            ["/$defs/a/contains"],
            {"type": "array", "maxItems": 3},
        ),
        (
            {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"properties": {"c": {"pattern": "(?=a)"}}}}},
            ["/$defs/a b/properties/c/pattern"],
            {"properties": {"c": {}}},
        ),
        (
            {"properties": {"a": {"oneOf": [{}, {}]}}, "allOf": [{"properties": {"a": {"type": "string"}}}]},
            ["/properties/a/allOf/0/oneOf/1"],
            {"properties": {"a": {}}},
        ),
    ],
)
def test_what_cannot_be_kept_is_left_out_where_there_is_a_list_for_it(
    schema: Any, ignored: list[str], left: Any
) -> None:
    given = copy.deepcopy(schema)
    notes: list[str] = []
    node = read_schema(schema, notes)
    assert [note.partition(": ")[0].removeprefix("schema#") for note in notes] == ignored
    assert schema == given
    assert grammar_as_text(node) == grammar_as_text(read_schema(left))


DECIMAL = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]}


def test_an_alternative_that_is_not_supported_is_not_written() -> None:
    assert isinstance(read_schema(DECIMAL), Slot)
    assert begins({"anyOf": [*DECIMAL["anyOf"], {"type": "null"}]}) == ["", "null"]
    assert begins({"anyOf": [{"$ref": "#/$defs/a"}, {"const": 1}], "$defs": {"a": {"pattern": "(?=a)"}}}) == ["1"]
    text = DECIMAL["anyOf"][1]
    for schema in ({"anyOf": [text]}, {"anyOf": [text, {"type": "null"}]}, {"oneOf": DECIMAL["anyOf"]}):
        with pytest.raises(ArgumentError, match=r"schema#/(any|one)Of/\d/pattern: .* lookahead"):
            read_schema(schema)
    notes: list[str] = []
    assert isinstance(read_schema(DECIMAL, notes), Union)
    assert len(notes) == 1


def grammar_as_text(node: Any) -> Any:
    printed = Grammar(grammar_of(node))
    return printed.body, printed.rules


def test_a_recursion_is_followed_to_its_depth_and_left_out_there() -> None:
    node = read_schema(TREE)
    depth = 0
    while isinstance(node, Object):
        depth += 1
        kids = node.fields[1].node
        assert isinstance(kids, Array)
        assert (kids.max_items == 0) == (depth == MAX_DEPTH)
        node = kids.item  # type: ignore[assignment]
    assert depth == MAX_DEPTH


def test_a_recursion_without_an_end_is_refused() -> None:
    schema = {"$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}}
    with pytest.raises(ArgumentError, match="nothing can be written: every way leads through more than 16"):
        read_schema({**schema, "$ref": "#/$defs/a"})
    for loop in ({"$ref": "#"}, {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, {**TREE, "$ref": "#/$defs/node/$ref"}):
        with pytest.raises(ArgumentError, match=r"\$ref: '#.*' leads (back to itself|nowhere)"):
            read_schema(loop)


def test_a_recursion_through_many_alternatives_is_read_at_once() -> None:
    keys = [{"type": "object", "properties": {k: {"$ref": "#/$defs/t"}}, "required": [k]} for k in "abcdefgh"]
    schema = {"$defs": {"t": {"anyOf": [*keys, {"type": "null"}]}}, "$ref": "#/$defs/t"}
    assert begins(schema) == [*(f'{{"{k}":' for k in "abcdefgh"), "null"]


def test_alternatives_that_double_with_each_reference_are_refused_at_once() -> None:
    defs: dict[str, Any] = {"d15": {"enum": list(range(100))}}
    for i in range(15):
        defs[f"d{i}"] = {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}
    with pytest.raises(ArgumentError, match="alternatives, more than 100,000"):
        read_schema({"$ref": "#/$defs/d0", "$defs": defs})


def test_alternatives_that_begin_alike_run_under_one_grammar() -> None:
    assert isinstance(read_schema({"anyOf": [{"type": "integer"}, {"type": "number"}]}), Slot)
    kinds = [{"type": "object", "properties": {"n": {"type": kind}}, "required": ["n"]} for kind in ("string", "null")]
    assert isinstance(read_schema({"anyOf": kinds}), Union)
    same = [{"type": "object", "properties": {"n": {"type": "string"}, k: {"type": "null"}}} for k in "ab"]
    assert isinstance(read_schema({"anyOf": same}), Slot)
    tagged = [{"type": "object", "properties": {"n": {"type": "string"}, k: {"const": k}}} for k in "ab"]
    assert isinstance(read_schema({"anyOf": [{"type": "null"}, {"anyOf": tagged}]}), Union)


def test_alternatives_of_one_of_may_differ_in_a_field() -> None:
    options = [
        {"type": "object", "properties": {"kind": {"const": kind}, "n": {"type": "integer"}}, "required": ["kind"]}
        for kind in ("a", "b")
    ]
    assert begins({"oneOf": options}) == ['{"kind":"a"', '{"kind":"b"']
    chain = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert begins({"oneOf": [{"type": "null"}, chain]}) == ["null", '{"next":']
    one_of_two = [{"type": "object", "properties": {name: {}}, "required": [name]} for name in "ab"]
    assert begins({"oneOf": one_of_two}) == ['{"a":', '{"b":']  # properties that are not listed are not written
    # Without a type 5 is valid by both, and is never written.
    assert begins({"oneOf": [{k: v for k, v in option.items() if k != "type"} for option in options]}) == [
        '{"kind":"a"',
        '{"kind":"b"',
    ]
    assert begins({"oneOf": [{"enum": [1, 2]}, {"type": "integer", "minimum": 3, "maximum": 4}]}) == [*"1234"]
    # The multiples that are written end below, but not those that are valid.
    with pytest.raises(ArgumentError, match="/oneOf/1: may be valid together with /0"):
        read_schema({"oneOf": [{"type": "integer", "multipleOf": 10**8, "minimum": 0}, {"const": 10**9}]})


def test_all_patterns_of_a_schema_have_one_budget() -> None:
    fields = {f"f{i}": {"type": "string", "pattern": f"^{'a{1,999}b' * 10}{i}$"} for i in range(9)}
    where = r"schema#/properties/f4/pattern: the patterns up to here have 50,\d* states, more than 50,000"
    with pytest.raises(ArgumentError, match=where):
        read_schema({"type": "object", "properties": fields})
    read_schema({"type": "object", "properties": dict([*fields.items()][:4])})
    names = {"patternProperties": {"^" + "a{1,999}b" * 20: {"type": "null"}}}
    with pytest.raises(ArgumentError, match=r"schema#/prefixItems/2/propertyNames/pattern: the patterns up to here"):
        read_schema({"type": "array", "prefixItems": [names] * 3})


def test_a_schema_that_is_nested_too_deep_is_refused() -> None:
    schema: Any = {"type": "null"}
    for _ in range(3000):
        schema = {"allOf": [schema]}
    with pytest.raises(ArgumentError, match=r"schema#: (nested too deep|no JSON)"):
        read_schema(schema)


def test_white_space_is_as_json_dumps_has_it() -> None:
    node = read_schema({"type": "object", "properties": {"a": {"const": {"b": [1]}}}, "required": ["a"]})
    assert continuations(PendingValue(node), Layout(2))[0].text == '{\n  "a": {\n    "b": [\n      1\n    ]\n  }'


@pytest.mark.parametrize(
    ("example", "where", "first"),
    [
        ({"name": "", "age": 0}, "", "name"),
        ({"a": {"type": "string"}}, "", "a"),
        ({"title": "", "year": 0}, "", "year"),
        ({"type": "object", "properties": {"address": {"street": "", "zip": ""}}}, "/properties/address", "street"),
        ({"type": "array", "items": {"name": "string"}}, "/items", "name"),
    ],
)
def test_an_example_in_place_of_a_schema_is_refused_with_what_to_write(
    example: dict[str, Any], where: str, first: str
) -> None:
    what_to_write = rf'"properties": {{"{first}": {{"type": "string"}}, …}}, "required": \["{first}", …\]'
    with pytest.raises(ArgumentError, match=rf"schema#{where}: an example, .*{what_to_write}"):
        read_schema(example)
    read_schema({"type": "object", "properties": {"address": example}}, [])


def test_annotations_alone_allow_any_value() -> None:
    for schema in ({"title": "anything"}, {"description": "a note", "x-units": "m"}):
        assert read_schema(schema) is read_schema({"properties": {"a": {**schema, "nullable": True}}}).fields[0].node  # type: ignore[union-attr]


@pytest.mark.parametrize("unread", [{"allOf": 5}, {"anyOf": 3}, {"required": [{}]}, {"properties": 5}, {"enum": 5}])
def test_a_schema_that_was_left_out_proves_nothing(unread: dict[str, Any]) -> None:
    either = {"anyOf": [{"type": "integer"}, {"$dynamicRef": "#a", **unread}]}
    of_object = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    with pytest.raises(ArgumentError, match="/oneOf/1: may be valid together with /0"):
        read_schema({"oneOf": [of_object, either]})


def test_many_values_of_one_of_are_not_compared_for_minutes() -> None:
    options = [{"type": "integer", "minimum": 1000 * i, "maximum": 1000 * i + 999} for i in range(200)]
    began = time.process_time()
    with pytest.raises(ArgumentError, match="may be valid together"):
        read_schema({"oneOf": options})
    assert time.process_time() - began < 10
