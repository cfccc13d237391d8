"""Finds what a ``$ref`` names: places of the same schema, by pointer, ``$id`` or ``$anchor``."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, urljoin

from token_trie.records.keywords import refuse
from token_trie.records.nodes import inside

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
        self._bases: dict[int, str] = {}
        self._walk(root, "", "")

    def _walk(self, schema: Any, pointer: str, base: str) -> None:
        if not isinstance(schema, dict) or id(schema) in self._bases:
            return
        own = schema.get("$id")
        if isinstance(own, str) and not (self._is_old and "$ref" in schema):  # which then hides what is beside it
            address = _joined(base, own)
            base = base if own.startswith("#") else address.rstrip("#")
            self._known.setdefault(address.rstrip("#"), (schema, pointer))
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self._known.setdefault(f"{base}#{schema[keyword]}", (schema, pointer))
        self._bases[id(schema)] = base
        for keyword, part in schema.items():
            at = inside(pointer, keyword) if isinstance(keyword, str) else pointer
            if keyword in _MAPS and isinstance(part, dict):
                for name, each in part.items():
                    self._walk(each, inside(at, name), base)
            elif keyword in _LISTS and isinstance(part, list):
                for i, each in enumerate(part):
                    self._walk(each, f"{at}/{i}", base)
            elif keyword in _SCHEMAS:
                self._walk(part, at, base)

    def find(self, schema: dict[str, Any], pointer: str) -> tuple[Any, str]:
        """Return the schema that the ``$ref`` of a schema names, and its pointer; ArgumentError if it names none."""
        ref = schema["$ref"]
        if not isinstance(ref, str):
            raise refuse(f"{pointer}/$ref", f"{ref!r} is no text")
        base, _, fragment = _joined(self._bases.get(id(schema), ""), ref).partition("#")
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
            base = self._bases.get(id(found), base)
        self._walk(found, at, base)
        return found, at


def _joined(base: str, reference: str) -> str:
    """Return the address of a reference; a fragment also goes with a base that is no path, such as a URN."""
    try:
        return base + reference if reference.startswith("#") else urljoin(base, reference)
    except ValueError:
        return reference
