"""Schemas as programs have them, written after public reports: supported ones, and refused ones."""

from __future__ import annotations

from typing import Any

import jsonschema

TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0, "maximum": 9}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def text(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


KEPT: dict[str, dict[str, Any]] = {
    # Formats that are kept to, and formats that are annotations
    "email": of(to=text(format="email")),
    "email of a length": of(to=text(format="email", minLength=3, maxLength=254)),
    "host": of(host=text(format="hostname", maxLength=20)),
    "addresses": of(v4=text(format="ipv4"), v6=text(format="ipv6")),
    "link": of(link=text(format="uri", description="Where it is", maxLength=60)),
    "duration": of(wait=text(format="duration")),
    "moment": of(at=text(format="date-time"), day=text(format="date"), hour=text(format="time")),
    "identity": of(id=text(format="uuid")),
    "pointer": of(path=text(format="json-pointer", maxLength=20)),
    "upload": of(file=text(format="binary", maxLength=9), secret=text(format="password", maxLength=9)),
    "byte": of(data=text(format="byte", contentEncoding="base64", maxLength=8)),
    "number formats": of(a={**COUNT, "format": "int32"}, b={"type": "number", "format": "double", "maximum": 3}),
    "unknown format": of(color=text(format="x-color", maxLength=7)),
    "empty format": of(color=text(format="", maxLength=7)),
    "reference": of(ref=text(format="uri-reference", maxLength=7), iri=text(format="iri", maxLength=7)),
    "format and pattern": of(zip=text(format="zip", pattern="^[0-9]{5}$")),
    "format of anything": {"properties": {"a": {"format": "phone", "maxLength": 5}}, "required": ["a"]},
    # Annotations
    "nullable": of(nick={**TEXT, "nullable": True, "maxLength": 5}),
    "enum descriptions": of(level={"enum": ["low", "high"], "enumDescriptions": ["little", "much"]}),
    "enum names": of(level={"enum": [1, 2], "enumNames": ["one", "two"], "x-enum-varnames": ["A", "B"]}),
    "markdown": of(note=text(markdownDescription="**b**", maxLength=4)),
    "docs": {**of(n=COUNT), "externalDocs": {"url": "https://example.org"}, "xml": {"name": "n"}},
    "form": of(n={**COUNT, "ui:widget": "range", "order": 3, "propertyOrder": 1, "errorMessage": "no"}),
    "editor": of(n={**COUNT, "defaultSnippets": [], "allowComments": True, "suggestSortText": "a"}),
    "titles": {**of(n={**COUNT, "title": "N"}), "title": "T", "$comment": "c", "examples": [{"n": 1}]},
    "strict inside": {**of(n=COUNT), "strict": True, "name": "n"},
    "discriminator": {
        "discriminator": {"propertyName": "kind"},
        "oneOf": [of(kind={"const": "a"}, n=COUNT), of(kind={"const": "b"}, ok={"type": "boolean"})],
    },
    "then alone": {**of(n=COUNT), "then": {"required": ["m"]}, "else": False},
    "old id": {**of(n=COUNT), "id": "thing", "$schema": "http://json-schema.org/draft-07/schema#"},
    "content": of(page=text(contentMediaType="text/html", contentSchema={"type": "string"}, maxLength=5)),
    # Never, as zod writes it, and old forms
    "never": {**of(n=COUNT), "properties": {"n": COUNT, "gone": {"not": {}}}},
    "optional": of(n={"anyOf": [{"not": {}}, COUNT]}),
    "not false": of(n={**COUNT, "not": False}),
    "dynamic map": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": COUNT},
    "keys of an enum": {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": COUNT},
    "keys of a pattern": {
        "type": "object",
        "patternProperties": {"^[a-z]{1,4}$": COUNT},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "keys beside": {**of(n=COUNT), "patternProperties": {"^x-": {}}},
    "short keys": {"propertyNames": {"maxLength": 3}, "additionalProperties": COUNT, "maxProperties": 3},
    "names that hold": {**of(n=COUNT), "propertyNames": {"pattern": "^[a-z]+$"}},
    "unevaluated": {"type": "object", "properties": {"n": COUNT}, "unevaluatedProperties": False},
    "nothing unevaluated": {"type": "object", "unevaluatedProperties": False},
    "needed anyway": {**of(a=COUNT, b=COUNT), "dependentRequired": {"a": ["b"]}},
    "pair": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **of(at={"type": "array", "items": [COUNT, COUNT], "additionalItems": False, "minItems": 2}),
    },
    # Patterns and lengths
    "slug": of(slug=text(pattern="^[a-z0-9-]+$", minLength=3, maxLength=12)),
    "letters": of(code=text(pattern="^[A-Z]*$", minLength=2)),
    "phone": of(phone=text(pattern=r"^\+?[0-9][0-9 -]{4,14}[0-9]$")),
    "long": of(name=text(pattern="^[A-Z][a-z]+( [A-Z][a-z]+)*$", maxLength=15)),
    "chosen by pattern": of(unit={"enum": ["mm", "cm", "Inch"], "pattern": "^[a-z]+$"}),
    "version": of(v=text(pattern=r"^v?[0-9]{1,3}(\.[0-9]{1,3}){0,2}(-[a-z]{1,5})?$")),
    # Composition
    "referred": {**of(a={"$ref": "#/$defs/n", "description": "d"}), "$defs": {"n": COUNT}},
    "definitions": {**of(a={"$ref": "#/definitions/n"}), "definitions": {"n": {"type": "boolean"}}},
    "all of one": {**of(a={"allOf": [{"$ref": "#/$defs/n"}], "default": 3, "title": "A"}), "$defs": {"n": COUNT}},
    "perhaps": of(a={"anyOf": [TEXT | {"maxLength": 4}, {"type": "null"}], "default": None}),
    "several kinds": of(a={"type": ["integer", "null"], "minimum": 0, "maximum": 9}),
    "list": of(tags={"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1}),
    "nested": of(box=of(size=COUNT, lid=of(open={"type": "boolean"}))),
    "recursive": {
        **of(tree={"$ref": "#/$defs/t"}),
        "$defs": {"t": {"properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 1}}}},
    },
    "exclusive": of(n={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 5}),
    "price": of(price={"type": "number", "minimum": 0.5, "maximum": 99.99}),
    "all of two": of(a={"allOf": [{"properties": {"b": COUNT}}, {"properties": {"c": COUNT}, "required": ["c"]}]}),
    "one or the other": {**of(a=COUNT), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "condition": {**of(a=COUNT), "if": {"required": ["a"]}, "then": {"maxProperties": 1}},
    "negation": of(a={**COUNT, "not": {"const": 3}}, b={**text(maxLength=9), "not": {"enum": ["none", "n/a"]}}),
    "containing": of(a={"type": "array", "items": {"enum": [1, 2, 3]}, "contains": {"const": 3}, "maxContains": 2}),
    "kinds of payment": {
        **of(by={"enum": ["card", "cash"]}),
        "properties": {"by": {"enum": ["card", "cash"]}, "number": text(pattern="^[0-9]{4}$"), "change": COUNT},
        "if": {"properties": {"by": {"const": "card"}}},
        "then": {"required": ["number"]},
        "else": {"required": ["change"]},
    },
    "beside a reference": {**of(a={"$ref": "#/$defs/n", "maximum": 3}), "$defs": {"n": COUNT}},
    "by name": {
        **of(a={"$ref": "n.json"}, b={"$ref": "#m"}),
        "$id": "https://example.org/a",
        "$defs": {"n": {"$id": "n.json", **COUNT}, "m": {"$anchor": "m", "type": "null"}},
    },
    "pattern beside": {**of(n=COUNT), "additionalProperties": True, "patternProperties": {"^n": {"maximum": 2}}},
    "one needs another": {"type": "object", "properties": {"a": COUNT, "b": COUNT}, "dependentRequired": {"a": ["b"]}},
    "free": {**of(any={"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2})},
}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "lookahead": ("/properties/a/pattern", of(a=text(pattern="^(?=.*[0-9]).{8}$"))),
    "different": ("/properties/a/uniqueItems", of(a={"type": "array", "items": COUNT | TEXT, "uniqueItems": True})),
    "steps": ("/properties/a/multipleOf", of(a={"type": "number", "multipleOf": 0.01})),
    "all of two": ("/properties/a/allOf", of(a={"allOf": [of(b=COUNT), of(c=COUNT)]})),
    "both may hold": ("/properties/a/oneOf/1", of(a={"oneOf": [{"type": "integer"}, {"type": "number"}]})),
    "two patterns": ("/patternProperties", {"type": "object", "patternProperties": {"^a": COUNT, "^b": COUNT}}),
}


def check(written: Any, schema: dict[str, Any]) -> None:
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator(schema, format_checker=validator.FORMAT_CHECKER).validate(written)
