"""Makes flat schemas of one that combines others, so that only flat ones are read.

{"properties": {"k": {"enum": ["a", "b"]}, "n": {}}, "required": ["k"],      k, which is a, and n
 "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["n"]}}   k, which is not a, and perhaps n

An alternative is a schema without allOf, anyOf, oneOf, if, not and $ref. Where several hold together they are merged,
keyword by keyword; a property of both becomes `Both`, which is expanded when it is read. What an alternative allows is
valid by the schema; so is all that is valid, but for unlisted properties.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import reduce
from math import lcm
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

from token_trie.records.keywords import EXCEPT, KINDS, UNSEEN, KeywordError, is_false, matched_names, normal, refuse
from token_trie.records.nodes import common, inside

_MAX_ALTERNATIVES, _MAX_COMBINED, _MAX_STEP = 64, 100_000, 10**15
_CONDITIONAL = ("dependentRequired", "dependentSchemas", "dependencies")
_COMBINING = ("allOf", "not", "if", *_CONDITIONAL, "oneOf", "anyOf", "$ref")
_GREATEST = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"}
_LEAST = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"}
PARTS = ("properties", "patternProperties", "additionalProperties", "prefixItems", "items")


class Both(dict[str, Any]):
    """An ``allOf`` that a merge made: nothing may be valid by it."""


class Alternative(NamedTuple):
    """A flat schema."""

    schema: dict[str, Any]
    places: dict[str, str]
    """The pointer to the schema that a keyword comes from."""
    n_references: int = 0
    """References that lead to it."""
    excluded: tuple[tuple[str, Any], ...] = ()
    """Other schemas of a ``oneOf``, each with its pointer, by which no value of it may be valid."""


_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SCHEMAS = frozenset({"items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties"}).union(
    {"unevaluatedProperties", "propertyNames", "not", "if", "then", "else"}
)


class References:
    """The schemas that a schema has, by their addresses."""

    def __init__(self, root: Any) -> None:
        self._is_old = isinstance(root, dict) and "/draft-0" in str(root.get("$schema"))
        self._known: dict[str, tuple[Any, str]] = {"": (root, "")}
        self._places: dict[int, tuple[str, str, Any]] = {}  # pointers and bases, with the schemas, which keep their ids
        self._walk(root, "", "")

    def _walk(self, schema: Any, pointer: str, base: str) -> None:
        if not isinstance(schema, dict) or id(schema) in self._places:
            return
        own = schema.get("$id")
        if isinstance(own, str) and not (self._is_old and "$ref" in schema):  # which then hides what is beside it
            address = _joined(base, own)
            base = base if own.startswith("#") else address.rstrip("#")
            self._known.setdefault(address.rstrip("#"), (schema, pointer))
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self._known.setdefault(f"{base}#{schema[keyword]}", (schema, pointer))
        self._places[id(schema)] = pointer, base, schema
        for keyword in (EXCEPT, UNSEEN):  # no keywords of JSON Schema
            schema.pop(keyword, None)
        for keyword, part in schema.items():
            at = inside(pointer, keyword)
            if keyword in _MAPS and isinstance(part, dict):
                for name, each in part.items():
                    self._walk(each, inside(at, name), base)
            elif keyword in _LISTS and isinstance(part, list):
                for i, each in enumerate(part):
                    self._walk(each, f"{at}/{i}", base)
            elif keyword in _SCHEMAS:
                self._walk(part, at, base)

    def pointer_to(self, schema: Any, default: str) -> str:
        """Return the pointer to a part of the schema, or the default for another schema."""
        return self._places[id(schema)][0] if id(schema) in self._places else default

    def _base_of(self, schema: Any, default: str) -> str:
        return self._places[id(schema)][1] if id(schema) in self._places else default

    def find(self, schema: dict[str, Any], pointer: str) -> tuple[Any, str]:
        """Return the schema that the ``$ref`` of a schema names, and its pointer; ArgumentError if it names none."""
        ref = schema["$ref"]
        if not isinstance(ref, str):
            raise refuse(f"{pointer}/$ref", f"{ref!r} is no text")
        base, _, fragment = _joined(self._base_of(schema, ""), ref).partition("#")
        address = base if fragment == "" or fragment.startswith("/") else f"{base}#{fragment}"
        if address not in self._known:
            where = "places of the same schema (#/…, its $id, $anchor) are"
            raise refuse(f"{pointer}/$ref", f"{ref!r} is not supported; {where}")
        found, at = self._known[address]
        for part in unquote(fragment).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and re.fullmatch("[0-9]{1,9}", name) and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise refuse(f"{pointer}/$ref", f"{ref!r} leads nowhere")
            at = f"{at}/{part}"
            base = self._base_of(found, base)
        self._walk(found, at, base)
        return found, at


def _joined(base: str, reference: str) -> str:
    """Return the address of a reference; a fragment also goes with a base that is no path, such as a URN."""
    try:
        return base + reference if reference.startswith("#") else urljoin(base, reference)
    except ValueError:
        return reference


class Expander:
    """Expands schemas; `kept` reads a schema without what may be left out."""

    def __init__(self, references: References, kept: Callable[..., list[Alternative]]) -> None:
        self._find, self._kept = references.find, kept
        self._n_combined = 0

    def expand(self, schema: Any, pointer: str, followed: tuple[str, ...] = ()) -> list[Alternative]:
        """Return the alternatives of a schema; none if nothing is valid. KeywordError where it cannot be expanded."""
        if schema is True:
            return [Alternative({}, {})]
        if is_false(schema):
            return []
        if not isinstance(schema, dict):
            raise refuse(pointer, f"must be a schema, not {type(schema).__name__}")
        self._n_combined += bool(combining(schema))
        if self._n_combined > _MAX_COMBINED:
            raise refuse(pointer, f"more than {_MAX_COMBINED:,} schemas are combined")
        return self._kept(lambda kept: self._expand(kept, pointer, followed), schema, pointer)

    def _expand(self, schema: dict[str, Any], pointer: str, followed: tuple[str, ...]) -> list[Alternative]:
        own = normal(schema, pointer)
        found = [Alternative(own, dict.fromkeys(own, pointer))]
        for keyword, alternatives in self._combined(schema, pointer, followed):
            found = self._products(found, alternatives, f"{pointer}/{keyword}")
            if len(found) > _MAX_ALTERNATIVES:
                raise KeywordError(f"{pointer}/{keyword}", f"more than {_MAX_ALTERNATIVES} alternatives with it")
        return [_evaluated(each, schema, pointer) for each in found]

    def _products(self, these: list[Alternative], those: list[Alternative], pointer: str) -> list[Alternative]:
        """Return the alternatives where one of these and one of those hold together."""
        n_parts = sum(max(map(_n_parts, each), default=0) for each in (these, those))
        n = len(these) * len(those) * n_parts
        if self._n_combined + n > _MAX_COMBINED:
            raise KeywordError(pointer, f"more than {_MAX_COMBINED:,} schemas and properties are combined with it")
        self._n_combined += n
        return [each for a in these for b in those if (each := _merge(a, b, pointer)) is not None]

    def _combined(
        self, schema: dict[str, Any], pointer: str, followed: tuple[str, ...]
    ) -> Iterable[tuple[str, list[Alternative]]]:
        """Yield each keyword that combines schemas, with the alternatives of which one holds."""
        if "$ref" in schema:
            part, at = self._find(schema, pointer)
            if at in followed:
                raise refuse(f"{pointer}/$ref", f"{schema['$ref']!r} leads back to itself")
            alternatives = self.expand(part, at, (*followed, at))
            yield "$ref", [each._replace(n_references=each.n_references + 1) for each in alternatives]
        for i, part in enumerate(_schemas(schema, "allOf", pointer)):
            yield "allOf", self.expand(part, f"{pointer}/allOf/{i}", followed)
        for keyword in ("anyOf", "oneOf"):
            parts = _schemas(schema, keyword, pointer)
            if not parts:
                continue
            among: list[Alternative] = []
            for i, part in enumerate(parts):
                others = [(f"{pointer}/{keyword}/{j}", other) for j, other in enumerate(parts) if j != i]
                for each in self.expand(part, f"{pointer}/{keyword}/{i}", followed):
                    excluded = (*each.excluded, *others) if keyword == "oneOf" else each.excluded
                    among.append(each._replace(excluded=excluded))
            yield keyword, among
        if "not" in schema and schema["not"] is not False and not is_false(schema["not"]):
            yield "not", self._without(schema["not"], f"{pointer}/not", followed)
        cases: list[Alternative] = []
        if "if" in schema and schema.keys() & {"then", "else"}:
            condition = f"{pointer}/if"
            yes = self.expand(schema["if"], condition, followed)
            no = self._without(schema["if"], condition, followed)
            for keyword, those in (("then", yes), ("else", no)):
                told = self.expand(schema.get(keyword, True), f"{pointer}/{keyword}", followed)
                cases += self._products(those, told, condition)
            yield "if", cases
        for keyword in _CONDITIONAL:
            if not isinstance(schema.get(keyword, {}), dict):
                raise refuse(f"{pointer}/{keyword}", f"must be an object, not {type(schema[keyword]).__name__}")
            for name, part in schema.get(keyword, {}).items():
                if isinstance(part, list):
                    part = {"required": part}
                there: dict[str, Any] = {"type": "object", "required": [name], "allOf": [part]}
                there |= {UNSEEN: True} if keyword == "dependencies" else {}  # which draft 2020-12 does not know
                absent = {"properties": {name: False}}
                at = inside(f"{pointer}/{keyword}", name)
                yield keyword, [*self.expand(there, at, followed), *self.expand(absent, at, followed)]

    def _without(self, schema: Any, pointer: str, followed: tuple[str, ...]) -> list[Alternative]:
        """Return the alternatives of what is not valid by a schema."""
        if is_false(schema):
            return [Alternative({}, {})]
        found: list[Alternative] = []
        for part in self._opposites(schema, pointer) if schema is not True else ():
            found += self.expand(part, pointer, followed)
        return found

    def _opposites(self, schema: Any, pointer: str) -> list[Any]:
        """Return schemas, of which one is valid where this one is not; KeywordError if they cannot be told."""
        if not isinstance(schema, dict):
            raise refuse(pointer, f"must be a schema, not {type(schema).__name__}")
        found: list[Any] = []
        own = normal(schema, pointer)
        if "contains" in own and own.keys() & {"minContains", "maxContains"}:
            raise KeywordError(pointer, "of contains with a number it is not supported")
        for keyword, value in own.items():
            found += _opposites_of(keyword, value, pointer)
        if "$ref" in schema:
            found.append({"not": self._find(schema, pointer)[0]})
        found += [{"not": part} for part in _schemas(schema, "allOf", pointer)]
        if parts := _schemas(schema, "anyOf", pointer):
            found.append({"allOf": [{"not": part} for part in parts]})
        if "not" in schema and schema["not"] is not False:
            found.append({"allOf": [schema["not"], {UNSEEN: True}]})
        decisive = {"oneOf", *_CONDITIONAL} | ({"if"} if schema.keys() & {"then", "else"} else set())
        if left := schema.keys() & decisive:
            raise KeywordError(pointer, f"of {min(left)} it is not supported")
        return found


def combining(schema: dict[str, Any]) -> list[str]:
    """Return the keywords by which a schema combines others."""
    return [keyword for keyword in _COMBINING if keyword in schema]


def means_object(schema: dict[str, Any]) -> bool:
    """Return whether a flat schema without a type has properties, by which people mean an object."""
    return any(part is not False for part in (schema.get("properties") or {}).values())


def _schemas(schema: dict[str, Any], keyword: str, pointer: str) -> Sequence[Any]:
    parts = schema.get(keyword, [])
    if not isinstance(parts, list) or (keyword in schema and not parts):
        raise refuse(f"{pointer}/{keyword}", "no schemas")
    return parts


def _evaluated(alternative: Alternative, schema: dict[str, Any], pointer: str) -> Alternative:
    """Read what the schema says of parts that nothing has evaluated as what it says of all others."""
    flat, changes = alternative.schema, {}
    for keyword, others in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if schema.get(keyword, True) is not True and (UNSEEN in flat or others not in flat):
            if UNSEEN in flat or (others == "items" and "contains" in flat):
                raise KeywordError(f"{pointer}/{keyword}", "beside not, if or contains it is not supported")
            changes[others] = schema[keyword]
    if not changes:
        return alternative
    return alternative._replace(schema=flat | changes, places=alternative.places | dict.fromkeys(changes, pointer))


def _n_parts(alternative: Alternative) -> int:
    """Return about how much it is to merge it, in properties."""
    names, patterns = (len(alternative.schema.get(keyword, ())) for keyword in ("properties", "patternProperties"))
    return 1 + names + 10 * (1 + names) * patterns


def _merge(a: Alternative, b: Alternative, pointer: str) -> Alternative | None:
    """Return what holds where both do; None if nothing can."""
    these, those = a.schema, b.schema
    merged = {**these, **those}
    merged.pop("const", None)  # the enum has it
    for keyword in these.keys() & those.keys() & merged.keys() - {*PARTS}:
        merged[keyword] = _merged(keyword, these[keyword], those[keyword], pointer)
    if merged.get("type") == [] or merged.get("enum") == []:
        return None
    _merge_properties(these, those, merged, pointer)
    properties = merged.get("properties", {})
    is_object = means_object(merged) if "type" not in merged else merged["type"] == ["object"]
    if is_object and any(properties.get(name) is False for name in merged.get("required", [])):
        return None
    _merge_items(these, those, merged)
    n_references = a.n_references + b.n_references
    return Alternative(merged, a.places | b.places, n_references, (*a.excluded, *b.excluded))


def _merged(keyword: str, this: Any, that: Any, pointer: str) -> Any:
    if keyword in _GREATEST:
        return max(this, that)
    if keyword in _LEAST:
        return min(this, that)
    if keyword == "type":
        this, that = ({*kinds, *(["integer"] if "number" in kinds else [])} for kinds in (this, that))
        return [kind for kind in KINDS if kind in this & that and (kind != "integer" or "number" not in this & that)]
    if keyword == "enum":
        return common(this, that)
    if keyword in ("required", EXCEPT):
        return [*this, *(each for each in that if keyword == EXCEPT or each not in this)]
    if keyword in ("uniqueItems", UNSEEN):
        return this or that
    if keyword == "multipleOf":
        one, two = (Fraction(repr(step)) for step in (this, that))
        n = one.denominator * two.denominator
        step = Fraction(lcm(int(one * n), int(two * n)), n)
        if step > _MAX_STEP:
            raise KeywordError(pointer, f"a common multiple above {_MAX_STEP:,} is not supported")
        return int(step) if step.denominator == 1 else float(step)
    if keyword == "propertyNames":
        return both(this, that)
    if this == that and type(this) is type(that):
        return this
    raise KeywordError(pointer, f"two values of {keyword}, which hold together, are not supported")


def both(*schemas: Any) -> Any:
    """Return the schema that is valid where all are."""
    if any(map(is_false, schemas)):
        return False
    parts: list[Any] = []
    for schema in schemas:
        for part in schema["allOf"] if isinstance(schema, Both) else [schema]:
            if part is not True and part != {} and part not in parts:
                parts.append(part)
    given = [[part["const"]] if "const" in part else part.get("enum") for part in parts if isinstance(part, dict)]
    chosen = [values for values in given if isinstance(values, list)]
    if chosen and not reduce(lambda one, other: common(one, other), chosen):
        return False
    return Both(allOf=parts) if len(parts) > 1 else parts[0] if parts else True


def _merge_properties(these: dict[str, Any], those: dict[str, Any], merged: dict[str, Any], pointer: str) -> None:
    if not any(keyword in schema for schema in (these, those) for keyword in PARTS[:3]):
        return
    patterns, others = [each.get("patternProperties", {}) for each in (these, those)], "additionalProperties"
    more = [each.get(others, True) for each in (these, those)]
    names = {**these.get("properties", {}), **those.get("properties", {})}
    if names or "properties" in merged:
        a, b = (_of_names(names, each, pointer) for each in (these, those))
        merged["properties"] = {
            name: a[name] if b[name] is True else b[name] if a[name] is True else both(a[name], b[name])
            for name in names
        }
    if any(patterns):
        if any(found and other is not True for found, other in zip(patterns, reversed(more), strict=True)):
            raise KeywordError(pointer, "patternProperties beside additionalProperties of another are not supported")
        merged["patternProperties"] = {
            pattern: both(*(found.get(pattern, True) for found in patterns))
            for pattern in {**patterns[0], **patterns[1]}
        }
    if others in merged:
        merged[others] = both(*more)


def _of_names(names: Iterable[str], schema: dict[str, Any], pointer: str) -> dict[str, Any]:
    """Return what a flat schema says of properties; what patterns say is merged where they are read."""
    more = schema.get("additionalProperties", True)
    own: dict[str, Any] = schema.get("properties", {})
    return dict.fromkeys(names, more) | dict.fromkeys(matched_names([*names], schema, pointer), True) | own


def _merge_items(these: dict[str, Any], those: dict[str, Any], merged: dict[str, Any]) -> None:
    heads = [each.get("prefixItems", []) for each in (these, those)]
    items = [each.get("items", True) for each in (these, those)]
    if any(heads):
        merged["prefixItems"] = [
            both(*(head[i] if i < len(head) else item for head, item in zip(heads, items, strict=True)))
            for i in range(max(map(len, heads)))
        ]
    if "items" in merged:
        merged["items"] = both(*items)


def _opposites_of(keyword: str, value: Any, pointer: str) -> list[Any]:
    """Return schemas, of which one is valid where a keyword of a flat schema does not hold."""
    if keyword == "type":
        kept = [kind for kind in KINDS if kind not in value and not (kind == "integer" and "number" in value)]
        return [{"type": [kind for kind in kept if kind != "number" or "integer" not in value]}] if kept else []
    if keyword == "enum":
        return [{EXCEPT: value}]
    if keyword == "required":
        return [{"type": "object", "properties": {name: False}} for name in value]
    if keyword == "properties":
        return [
            {"type": "object", "properties": {name: {"not": part}}, "required": [name], UNSEEN: True}
            for name, part in value.items()
        ]
    if keyword == "prefixItems":
        return [
            {"type": "array", "prefixItems": [True] * i + [{"not": part}], "minItems": i + 1, UNSEEN: True}
            for i, part in enumerate(value)
        ]
    if keyword == "contains":
        return [{"type": "array", "items": {"not": value}, UNSEEN: True}]
    if keyword == "items":
        return [{"type": "array", "contains": {"not": value}, UNSEEN: True}]
    for end, kind in (("Length", "string"), ("Items", "array"), ("Properties", "object")):
        if keyword == f"max{end}":
            return [{"type": kind, f"min{end}": int(value) + 1}]
        if keyword == f"min{end}":
            return [{"type": kind, f"max{end}": int(value) - 1}] if value else []
    beyond = {"minimum": "exclusiveMaximum", "maximum": "exclusiveMinimum"}
    beyond |= {"exclusiveMinimum": "maximum", "exclusiveMaximum": "minimum"}
    if keyword in beyond:
        return [{"type": "number", beyond[keyword]: value}]
    if keyword in ("const", "minContains", "maxContains", UNSEEN):
        return []
    if keyword == "additionalProperties" and value is True:
        return []
    raise KeywordError(pointer, f"of {keyword} it is not supported")
