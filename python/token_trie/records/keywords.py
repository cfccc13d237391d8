"""The keywords of JSON Schema, and the nodes of values without parts: texts, numbers and choices."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from token_trie.errors import ArgumentError
from token_trie.records.gbnf import (
    CHAR,
    FORMATS,
    MAX_NUMBER,
    MAX_REPEATS,
    N_DECIMALS,
    Chars,
    Expression,
    Matcher,
    Repeat,
    Sequence,
    decimals,
    integers,
    other_texts,
    read_pattern,
)
from token_trie.records.nodes import (
    INTEGER,
    NUMBER,
    ChoiceNode,
    Node,
    Slot,
    String,
    common,
    distinct,
    type_of,
    types_in,
)

OF_KIND = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format", "x_verbatim"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"})
    | {"propertyNames", "patternProperties", "unevaluatedProperties", "dependentRequired"},
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"})
    | {"additionalItems", "unevaluatedItems", "contains"},
}
EXCEPT = "$except"
"""Values that a flat schema does not allow."""
UNSEEN = "$unseen"
"""Marks what `not` says of properties and items: it does not evaluate them."""
FLAT = frozenset({"type", "enum", "const", "minContains", "maxContains", EXCEPT, UNSEEN}).union(*OF_KIND.values()) - {
    "unevaluatedProperties",
    "unevaluatedItems",
    "additionalItems",
    "dependentRequired",
}
"""Keywords about the value itself, of which those of older drafts have a form in draft 2020-12."""
_COUNTS = [f"{end}{kind}" for end in ("min", "max") for kind in ("Length", "Items", "Properties", "Contains")]
VALIDATING = frozenset(
    {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "not", "if", "dependentSchemas", "dependencies"}
).union(*OF_KIND.values())
"""Keywords that decide which values are valid; others are annotations, except those of `UNSUPPORTED`."""
UNSUPPORTED = frozenset({"$dynamicRef", "$recursiveRef", "disallow", "extends", "divisibleBy"})
"""Keywords that also decide it, but are not supported."""
KINDS = ("string", "number", "integer", "boolean", "null", "object", "array")
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id", "$anchor"}
    | {"$comment", "$defs", "definitions", "$dynamicAnchor", "$vocabulary", "then", "else", "minContains"}
    | {"maxContains", "contentEncoding", "contentMediaType", "contentSchema"}
)
KEYWORDS = VALIDATING | UNSUPPORTED | ANNOTATIONS


def refuse(pointer: str, why: str) -> ArgumentError:
    """Make the error for a position in a schema."""
    return ArgumentError(f"schema#{pointer}: {why}")


class KeywordError(ArgumentError):
    """A keyword that decides which values are valid is not supported."""

    def __init__(self, pointer: str, why: str) -> None:
        super().__init__(f"schema#{pointer}: {why}")
        self.pointer, self.why = pointer, why


class NothingError(ArgumentError):
    """No value is valid."""

    def __init__(self, pointer: str, why: str) -> None:
        super().__init__(f"schema#{pointer}: {why}")


def check_known(schema: dict[str, Any], pointer: str) -> None:
    """Raise ArgumentError for an unsupported keyword, or a keyword of draft 3."""
    for keyword in sorted(UNSUPPORTED & schema.keys()):
        raise KeywordError(f"{pointer}/{keyword}", f"{keyword!r} is not supported")
    if schema.get("required") is True:
        raise KeywordError(f"{pointer}/required", "of draft 3 it is not supported; list names beside the properties")


def normal(schema: dict[str, Any], pointer: str) -> dict[str, Any]:
    """Return the keywords of a schema that combine no others, checked, in the form of draft 2020-12.

    Types are a list, a constant is an enum too, and of two bounds on one side the tighter one is left.
    """
    check_known(schema, pointer)
    own = {keyword: value for keyword, value in schema.items() if keyword in FLAT}
    for keyword, nothing in (("type", None), ("properties", None), ("required", False)):
        if own.get(keyword, ...) is nothing:
            del own[keyword]
    if "type" in own:
        own["type"] = kinds_of(own, pointer)
        others = OF_KIND.keys() - {"number" if kind == "integer" else kind for kind in own["type"]}
        own = {keyword: value for keyword, value in own.items() if not any(keyword in OF_KIND[kind] for kind in others)}
    for keyword, kind in (("properties", dict), ("patternProperties", dict), ("required", list)):
        if not isinstance(own.get(keyword, kind()), kind):
            what = "a list of names" if kind is list else "an object"
            raise refuse(f"{pointer}/{keyword}", f"must be {what}, not {type(own[keyword]).__name__}")
    if not all(isinstance(name, str) for name in own.get("required", [])):
        raise refuse(f"{pointer}/required", "must be a list of names")
    for keyword, what in (("prefixItems", "no list of schemas"), ("enum", "no values")):
        if keyword in own and not (isinstance(own[keyword], list) and own[keyword]):
            raise refuse(f"{pointer}/{keyword}", what)
    if not isinstance(own.get("uniqueItems", False), bool):
        raise refuse(f"{pointer}/uniqueItems", f"{own['uniqueItems']!r} is neither true nor false")
    if not isinstance(own.get("pattern", ""), str):
        raise refuse(f"{pointer}/pattern", f"{own['pattern']!r} is no text")
    own |= {keyword: count(own, keyword, pointer, 0) for keyword in _COUNTS if keyword in own}
    if "multipleOf" in own:
        step_of(own, pointer)
    if "const" in own:
        own["enum"] = common([own["const"]], own.get("enum", [own["const"]]))
    for keyword in ("minimum", "maximum"):
        exclusive = f"exclusive{keyword.capitalize()}"
        (bound, is_open), _ = bound_of(own, keyword, pointer), (own.pop(keyword, None), own.pop(exclusive, None))
        if bound is not None:
            own[exclusive if is_open else keyword] = bound
    if isinstance(own.get("items"), list):  # before draft 2020-12
        own["prefixItems"] = own.pop("items")
        if "additionalItems" in schema:
            own["items"] = schema["additionalItems"]
    return own


def check_no_example(schema: dict[str, Any], pointer: str) -> None:
    """Raise ArgumentError for an example in place of a schema that would allow any value."""
    decisive = KEYWORDS if pointer else VALIDATING  # a field of any value often has a title and notes of others
    unknown = [key for key in schema if key not in KEYWORDS and not key.startswith("x-")]
    if unknown and not schema.keys() & decisive:
        first = json.dumps(unknown[0], ensure_ascii=False)
        raise refuse(
            pointer,
            "an example, without a keyword of JSON Schema; write "
            f'{{"properties": {{{first}: {{"type": "string"}}, …}}, "required": [{first}, …]}}',
        )


def kinds_of(schema: dict[str, Any], pointer: str) -> list[str]:
    """Return the kinds of values that a schema allows; empty if it does not restrict them."""
    given = schema.get("type")
    if given is None:
        return [kind for kind, keywords in OF_KIND.items() if keywords & schema.keys()]
    kinds = [given] if isinstance(given, str) else given
    if not isinstance(kinds, list) or not kinds or not all(kind in KINDS for kind in kinds):
        raise refuse(f"{pointer}/type", f"must be one of {', '.join(KINDS)}, not {given!r}")
    return [kind for kind in dict.fromkeys(kinds) if kind != "integer" or "number" not in kinds]


def count(schema: dict[str, Any], keyword: str, pointer: str, default: int) -> int:
    """Read a count; ArgumentError if it is not a natural number."""
    value = schema.get(keyword, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise refuse(f"{pointer}/{keyword}", f"{value!r} is not a count")
    return min(value, _MAX_INTEGER)


def step_of(schema: dict[str, Any], pointer: str) -> float:
    """Read ``multipleOf``, 1 by default; ArgumentError if it is not a number above 0."""
    step = schema.get("multipleOf", 1)
    if not isinstance(step, (int, float)) or isinstance(step, bool) or step <= 0:
        raise refuse(f"{pointer}/multipleOf", f"{step!r} is no number above 0")
    return step


def is_false(schema: Any) -> bool:
    """Return whether a schema is false, or the negation of an empty one."""
    return schema is False or (isinstance(schema, dict) and "not" in schema and schema["not"] in (True, {}))


def is_kind(value: Any, kind: str) -> bool:
    """Return whether a JSON value is of a kind."""
    own = type_of(value)
    if own in ("number", "integer"):
        return kind == "number" or (kind == "integer" and value == value // 1)
    return own == kind


def bound_of(schema: dict[str, Any], keyword: str, pointer: str) -> tuple[float | None, bool]:
    """Return the tightest "minimum" or "maximum" of a number, and whether it is exclusive."""
    exclusive, sign = f"exclusive{keyword.capitalize()}", 1 if keyword == "minimum" else -1
    found: tuple[float | None, bool] = None, False
    for name, is_open in ((keyword, False), (exclusive, True)):
        value = schema.get(name)
        if value is None or (value is False and is_open):
            continue
        if value is True and is_open:  # draft 4: makes the other bound exclusive
            value = schema.get(keyword)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise refuse(f"{pointer}/{name}", f"{value!r} is not a number")
        if found[0] is None or (sign * value, is_open) > (sign * found[0], found[1]):
            found = value, is_open
    return found


_MAX_MATCHED = 50_000
"""Largest number of properties times patterns of an object, each of which is matched."""
MAX_VALUES = 1_000
"""Maximum number of integers for a choice; larger ranges are generated under a grammar."""

_DIGITS = "-0123456789"
_MAX_INTEGER = 10**18 - 1


def read_string(schema: dict[str, Any], pointer: str) -> Node:
    """Read the schema of a string."""
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if high is not None and low > high:
        raise NothingError(f"{pointer}/minLength", f"{low} characters at least and {high} at most")
    # A pattern usually expresses the format beside it.
    keyword = "pattern" if "pattern" in schema else "format"
    pattern = schema.get("pattern", FORMATS.get(str(schema.get("format"))))
    if pattern is not None:
        return _read_pattern(pattern, f"{pointer}/{keyword}", repr(schema[keyword]), low, high)
    if high == 0:
        return ChoiceNode(("",))
    if low > MAX_REPEATS:
        raise KeywordError(f"{pointer}/minLength", f"{low} characters; {MAX_REPEATS} is the most that is supported")
    return String(Repeat(CHAR, low, None), high, low)


def _read_pattern(pattern: str, pointer: str, name: str, low: int, high: int | None) -> String:
    try:
        content, n_states, least, most = read_pattern(pattern)
        if least < low and (repeated := _repeated(content)) is not None:
            content, least = Sequence((Repeat(repeated.part, low, repeated.high),)), low
    except ValueError as error:
        raise KeywordError(pointer, f"{name} is not supported: {error}") from error
    if least < low or (high is not None and least > high) or (most is not None and most < low):
        lengths = f"{low} to {high}" if high is not None else f"{low} or more"
        raise KeywordError(pointer, f"{name} and {lengths} characters together are not supported")
    is_cut = high is not None and (most is None or high < most)
    return String(content, high if is_cut else most, least, False, is_cut, n_states)


def _repeated(content: Expression) -> Repeat | None:
    """Return the only part of a pattern if it is a repeated character class, otherwise None."""
    only = content.parts[0] if isinstance(content, Sequence) and len(content.parts) == 1 else None
    if not isinstance(only, Repeat) or not isinstance(only.part, Sequence) or len(only.part.parts) != 1:
        return None
    return only if isinstance(only.part.parts[0], Chars) else None


def read_number(schema: dict[str, Any], pointer: str, *, is_integer: bool) -> Node:
    """Read the schema of a number."""
    (low, open_low), (high, open_high) = (bound_of(schema, keyword, pointer) for keyword in ("minimum", "maximum"))
    kind = "integer" if is_integer else "number"
    if low is None and high is None and "multipleOf" not in schema:
        return Slot(INTEGER if is_integer else NUMBER, _DIGITS, frozenset({kind}))
    step = step_of(schema, pointer)
    if step != int(step):
        raise KeywordError(f"{pointer}/multipleOf", f"{step!r} is not supported; whole numbers above 0 are")
    is_decimal = not is_integer and "multipleOf" not in schema
    one = 10**N_DECIMALS
    edge = MAX_NUMBER * one
    least = -edge if low is None else max(_nearest(low, open_low, 1, one), -edge)
    most = edge if high is None else min(-_nearest(high, open_high, -1, one), edge)
    if is_decimal and all(bound is None or abs(bound) <= MAX_NUMBER for bound in (low, high)):
        if least > most:
            raise refuse(pointer, f"no number of {N_DECIMALS} digits after the point is from {low} to {high}")
        return _slot(decimals(least, most), least, kind)
    first = None if low is None else _nearest(low, open_low, 1)
    last = None if high is None else -_nearest(high, open_high, -1)
    if first is not None and last is not None and first > last:
        raise NothingError(pointer, f"no integer is from {low} to {high}")
    if (first or 0) > _MAX_INTEGER or (last or 0) < -_MAX_INTEGER:
        raise refuse(pointer, "integers of more than 18 digits are not supported")
    first = -_beyond(last or 0) if first is None else max(first, -_MAX_INTEGER)
    last = _beyond(first) if last is None else min(last, _MAX_INTEGER)
    multiples = range(-(-first // int(step)) * int(step), last + 1, int(step))
    if not multiples:
        raise refuse(f"{pointer}/multipleOf", f"no multiple of {step} is from {first} to {last}")
    if len(multiples) <= MAX_VALUES:
        return ChoiceNode(tuple(multiples), by_digits=True)
    if step != 1:
        raise KeywordError(f"{pointer}/multipleOf", f"with more than {MAX_VALUES:,} values it is not supported")
    near = decimals(least, most) + "|" if is_decimal and least <= most else ""
    return _slot(near + integers(first, last), min(first, least) if near else first, kind)


def _nearest(bound: float, is_open: bool, sign: int, one: int = 1) -> int:
    """Return the least number above a lower bound, or the least negative below an upper one, where 1 is `one`."""
    exact = Fraction(repr(bound)) * sign * one
    return math.floor(exact) + 1 if is_open else math.ceil(exact)


def _beyond(bound: int) -> int:
    """Return the other bound's magnitude: `MAX_NUMBER`, or one digit more than the given bound."""
    return max(MAX_NUMBER, min(_MAX_INTEGER, 10 * abs(bound) + 9))


def _slot(pattern: str, least: int, kind: str) -> Slot:
    digits = _DIGITS if least < 0 else _DIGITS[1:]
    return Slot(read_pattern(f"^({pattern})$").content, digits, frozenset({kind}))


def read_values(schema: dict[str, Any], pointer: str) -> ChoiceNode:
    """Read an enum or constant, filtered by its sibling keywords."""
    keyword = "const" if "const" in schema else "enum"
    kept = allowed_values([schema["const"]] if keyword == "const" else schema["enum"], schema, pointer)
    if "pattern" in schema and any(isinstance(v, str) for v in kept):
        kept = matching(kept, schema["pattern"], pointer)
    others = schema.keys() & (OF_KIND["object"] | OF_KIND["array"])
    if others and any(isinstance(v, (dict, list)) for v in kept):
        raise KeywordError(f"{pointer}/{min(others)}", "beside enum or const it is not supported")
    if not kept:
        raise NothingError(f"{pointer}/{keyword}", "no value keeps to the keywords beside it")
    return ChoiceNode(tuple(distinct(kept)))


def allowed_values(values: Iterable[Any], schema: dict[str, Any], pointer: str) -> list[Any]:
    """Return the values that a schema's type, values, lengths and bounds allow; a keyword restrains its own type."""
    kept = [*values]
    for allowed in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        kept = kept if allowed is None else common(kept, allowed)
    kinds = kinds_of(schema, pointer) if "type" in schema else KINDS
    return [v for v in kept if any(is_kind(v, kind) for kind in kinds) and _is_within(v, schema, pointer)]


def matching(values: list[Any], pattern: str, pointer: str) -> list[Any]:
    """Return the values without the texts that do not match a pattern."""
    try:
        matcher = Matcher(read_pattern(pattern).content)
        written = [json.dumps(v, ensure_ascii=False)[1:-1] if isinstance(v, str) else None for v in values]
        return [v for v, text in zip(values, written, strict=True) if text is None or matcher.ends(text) >> len(text)]
    except ValueError as error:
        raise KeywordError(f"{pointer}/pattern", f"{pattern!r} is not supported: {error}") from error


def matched_names(names: list[str], schema: dict[str, Any], pointer: str) -> dict[str, list[str]]:
    """Return the patterns that match each name of a property."""
    found: dict[str, list[str]] = {}
    patterns = schema.get("patternProperties", {})
    if len(names) * len(patterns) > _MAX_MATCHED:
        raise refuse(f"{pointer}/patternProperties", f"more than {_MAX_MATCHED:,} properties times patterns")
    for pattern in patterns:
        for name in dict.fromkeys(matching(names, pattern, f"{pointer}/patternProperties")):
            found.setdefault(name, []).append(pattern)
    return found


def _is_within(value: Any, schema: dict[str, Any], pointer: str) -> bool:
    """Return whether a value satisfies the sibling keywords."""
    if isinstance(value, str):
        high = count(schema, "maxLength", pointer, len(value))
        return count(schema, "minLength", pointer, 0) <= len(value) <= high
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, open_low = bound_of(schema, "minimum", pointer)
        most, open_most = bound_of(schema, "maximum", pointer)
        over = low is None or value > low or (value == low and not open_low)
        under = most is None or value < most or (value == most and not open_most)
        if not (over and under) or "multipleOf" not in schema:
            return over and under
        return Fraction(repr(value)) % Fraction(repr(schema["multipleOf"])) == 0
    return True


def but(node: Node | None, excepted: list[Any], pointer: str) -> Node | None:
    """Return a node of one kind without some values; NothingError if no value is left."""
    if isinstance(node, ChoiceNode) and excepted:
        if kept := tuple(v for v in node.values if not common([v], excepted)):
            return ChoiceNode(kept, node.by_digits)
        raise NothingError(pointer, "nothing is valid")
    kinds = frozenset() if node is None else types_in(node)
    within = [v for v in excepted if not kinds.isdisjoint(kinds_like(v))]
    if not within:
        return node
    is_short = sum(len(v) for v in within if isinstance(v, str)) <= MAX_VALUES
    if isinstance(node, String) and node.can_end_anywhere and not node.min_length and is_short:
        high = node.max_length
        most = None if high is None or high > MAX_REPEATS else high
        return String(other_texts(within, most), high, 0, False, high != most)
    raise KeywordError(f"{pointer}/not", "of values among free ones it is not supported")


def kinds_like(value: Any) -> set[str]:
    """Return the types whose values a value may equal: 1 is 1.0."""
    kind = type_of(value)
    return {"number", "integer"} if kind in ("number", "integer") else {kind}
