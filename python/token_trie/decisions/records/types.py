"""Templates of records, as programs have them: a JSON Schema, or a type that pydantic reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from token_trie.decisions.records.plan import Node
from token_trie.decisions.records.schema import read_schema
from token_trie.errors import ArgumentError
from token_trie.sets.memory import Memory


class RecordTemplate(NamedTuple):
    """What is to be filled in."""

    node: Node
    read: Callable[[str], Any]
    """Makes the value of the record's text."""
    schema: Any
    """The JSON Schema."""
    ignored: tuple[str, ...] = ()
    """What a record is not kept to, with the reason."""


_templates: Memory[RecordTemplate] = Memory(64, 1 << 20)


def json_key(given: Mapping[str, Any] | bool, what: str) -> str:
    """Return the JSON of what was given, by which what is read of it is remembered; ArgumentError where it has none."""
    try:
        return json.dumps(given if isinstance(given, bool) else dict(given), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{what}: no JSON: {error}") from error


def read_template(schema: object, *, strict: bool = True) -> RecordTemplate:
    """Read a schema, the last of which are remembered; ArgumentError as of `read_schema`, or without pydantic.

    Where it is not strict, what cannot be kept to is ignored.
    """
    if isinstance(schema, (Mapping, bool)):
        key = json_key(schema, "schema")
        return _templates.get((key, strict), len(key), lambda: _read_json(json.loads(key), strict))
    if schema is None or isinstance(schema, (str, bytes, int, float, list, tuple, set)):
        raise ArgumentError(
            f"schema: {type(schema).__name__} where a JSON Schema (a dict), a pydantic model, a dataclass, a "
            "TypedDict or another type belongs"
        )
    try:
        # Unions and Literals are equal in any order.
        return _templates.get((schema, repr(schema)), 1000, lambda: _read_type(schema))
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _read_type(schema)


def _read_json(schema: Any, strict: bool) -> RecordTemplate:
    ignored: list[str] = []
    node = read_schema(schema, None if strict else ignored)
    return RecordTemplate(node, json.loads, schema, tuple(ignored))


def _read_type(schema: Any) -> RecordTemplate:
    try:
        import pydantic
    except ImportError as error:
        raise ArgumentError(
            'schema: types are read by pydantic, which is not installed: pip install "token-trie[records]"'
        ) from error
    try:
        adapter: Any = schema if isinstance(schema, pydantic.TypeAdapter) else pydantic.TypeAdapter(schema)
        written = adapter.json_schema()
    except Exception as error:
        raise ArgumentError(f"schema: pydantic makes none of {schema!r}: {error}") from error

    def read(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as error:
            raise ArgumentError(f"schema: {schema!r} refuses what its own schema allows, {text}: {error}") from error

    return RecordTemplate(read_schema(written), read, written)
