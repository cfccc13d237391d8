"""What an answer may be: one of a set, a record by a schema, text by a grammar, or anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from token_trie.native.core import Llama
from token_trie.serve.body import Limits
from token_trie.serve.completions.grammars import check_gbnf, check_schema
from token_trie.serve.completions.shapes import ResponseFormat, Sampling
from token_trie.serve.filters import KEYS
from token_trie.serve.refusal import Place, invalid
from token_trie.serve.sets import AnySet, Sets, read_set


@dataclass(frozen=True)
class OneOf:
    """One of a set."""

    read: Callable[[Llama], AnySet]


@dataclass(frozen=True)
class BySchema:
    """A record."""

    schema: Any
    strict: bool = True
    """Whether a keyword that cannot be kept to is refused; else it is ignored."""


@dataclass(frozen=True)
class ByGrammar:
    """Text by a grammar; None: any text."""

    gbnf: str | None = None


Constraint: TypeAlias = OneOf | BySchema | ByGrammar


def constraint_of(shape: Sampling, sets: Sets, limits: Limits) -> tuple[Constraint, Place]:
    """Return what the answer of a request may be, and where it says so.

    Raises
    ------
    RefusedError
        It says so twice, names a set that there is not, or brings a grammar where none is taken.
    """
    found = list(_constraints(shape, sets))
    if len(found) > 1:
        raise invalid(f"goes with no {'.'.join(map(str, found[0][1]))}: an answer has one constraint", found[1][1])
    constraint, place = found[0] if found else (ByGrammar(), ())
    if isinstance(constraint, ByGrammar) and constraint.gbnf is not None:
        if not limits.grammars:
            raise invalid("this server takes no grammars", place, "unsupported")
        check_gbnf(constraint.gbnf, place)
    return constraint, place


def _constraints(shape: Sampling, sets: Sets) -> Any:
    outputs = shape.structured_outputs
    if outputs is not None:
        if outputs.choice is not None:
            yield _one_of(outputs.choice, sets, ("structured_outputs", "choice"))
        if outputs.json_ is not None:
            yield _by_schema(outputs.json_, ("structured_outputs", "json"))
        if outputs.json_object:
            yield BySchema(_ANY_OBJECT), ("structured_outputs", "json_object")
        if outputs.grammar is not None:
            yield _by_grammar(outputs.grammar, ("structured_outputs", "grammar"))
    if shape.token_trie is not None:
        yield _one_of(shape.token_trie, sets, ("token_trie",))
    if shape.guided_choice is not None:
        yield _one_of(shape.guided_choice, sets, ("guided_choice",))
    for name in ("guided_json", "json_schema"):
        if getattr(shape, name) is not None:
            yield _by_schema(getattr(shape, name), (name,))
    for name in ("guided_grammar", "grammar"):
        if getattr(shape, name):
            yield _by_grammar(getattr(shape, name), (name,))
    if shape.response_format is not None and shape.response_format.type != "text":
        yield _by_format(shape.response_format)


def _one_of(given: Any, sets: Sets, place: Place) -> tuple[Constraint, Place]:
    if isinstance(given, dict) and "set" in given and set(given) <= {"set", *KEYS} and len(given) <= 2:
        registered = sets.get(given["set"], (*place, "set"))
        if len(given) == 2:
            return OneOf(lambda _: sets.filtered(registered, given)), place
        return OneOf(lambda _: registered.made), place
    return OneOf(lambda llm: read_set(llm, given)), place


def _by_grammar(gbnf: str, place: Place) -> tuple[Constraint, Place]:
    return ByGrammar(gbnf), place


def _by_format(given: ResponseFormat) -> tuple[Constraint, Place]:
    place: Place = ("response_format",)
    if given.schema_ is not None:
        return _by_schema(given.schema_, (*place, "schema"))
    if given.type == "json_object":
        return BySchema(_ANY_OBJECT), place
    if given.json_schema is None or given.json_schema.schema_ is None:
        raise invalid("missing", (*place, "json_schema", "schema"), "missing")
    strict = given.json_schema.strict is not False
    return _by_schema(given.json_schema.schema_, (*place, "json_schema", "schema"), strict=strict)


def _by_schema(given: Any, place: Place, *, strict: bool = True) -> tuple[Constraint, Place]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise invalid(f"no JSON: {error}", place, "json_invalid") from None
    if not isinstance(given, dict):
        raise invalid("an object belongs here", place, "dict_type")
    check_schema(given, place)
    return BySchema(given, strict), place


_ANY_OBJECT = {"type": "object"}
