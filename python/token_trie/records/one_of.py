"""Proves, for `oneOf`, that no value that is written by one schema is valid by another.

A node may hold less than its schema allows: for {"minLength": 3} texts are written, but every number is valid by it.
So a node is held against the other schema itself, whose keywords restrain their own types alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from token_trie.records.keywords import KINDS, allowed_values, is_false, kinds_of
from token_trie.records.nodes import ChoiceNode, Node, Object, Union, type_of, types_in

_MAX_COMPARED = 50_000
"""Values that are compared for a schema; more are not proven."""


class Exclusion:
    """Proofs by types, constants and properties; `find` returns the schema of a ``$ref``.

    `unread`: the ids of schemas that were left out, of which nothing is known.
    """

    def __init__(self, find: Callable[[Any, str], tuple[Any, str]], unread: Container[int]) -> None:
        self._find, self._unread = find, unread
        self._n_compared = 0
        self._known: dict[tuple[Node, int], bool] = {}

    def is_proven(self, node: Node, schema: Any) -> bool:
        """Return whether no value of a node is valid by a schema."""
        if id(schema) in self._unread:
            return False
        key = node, id(schema)
        if key not in self._known:
            self._known[key] = False  # a pair that is met again inside itself proves nothing
            self._known[key] = is_false(schema) or (isinstance(schema, dict) and self._prove(node, schema))
        return self._known[key]

    def _prove(self, node: Node, schema: dict[str, Any]) -> bool:
        if isinstance(node, Union):
            return all(self.is_proven(option, schema) for option in node.options)
        parts = [*schema.get("allOf", []), *([self._find(schema, "")[0]] if "$ref" in schema else [])]
        if any(self.is_proven(node, part) for part in parts):
            return True
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema and all(self.is_proven(node, option) for option in schema[keyword]):
                return True
        if isinstance(node, ChoiceNode):
            self._n_compared += len(node.values) + len(schema.get("enum", ()))
            return self._n_compared <= _MAX_COMPARED and not allowed_values(node.values, schema, "")
        if types_in(node).isdisjoint(_types_of(schema)):
            return True
        return isinstance(node, Object) and self._differ_in_a_property(node, schema)

    def _differ_in_a_property(self, node: Object, schema: dict[str, Any]) -> bool:
        required, properties = schema.get("required", []), schema.get("properties") or {}
        if not {*required} <= {field.name for field in node.fields}:
            return True
        is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        return any(
            self.is_proven(field.node, properties[field.name]) if field.name in properties else is_closed
            for field in node.fields
            if field.is_required or field.name in required
        )


def _types_of(schema: dict[str, Any]) -> set[str]:
    """Return the types of the values that may be valid by a schema; a number may be an integer."""
    types = {*(kinds_of(schema, "") if "type" in schema else KINDS)}
    if "const" in schema or "enum" in schema:
        types &= {*map(type_of, [schema["const"]] if "const" in schema else schema["enum"])}
    return types | {"number", "integer"} if types & {"number", "integer"} else types
