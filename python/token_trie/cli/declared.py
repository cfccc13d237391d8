"""Options of a family, as options of a command."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, make_dataclass
from types import NoneType
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

import typer

from token_trie.native.options import Options, described


class Flags:
    """A group of options of a command that are those of a family; see `flags_of`."""

    limits: ClassVar[set[str]]

    @property
    def given(self) -> dict[str, Any]:
        """The family's options, as a function takes them."""
        return {name: None if name in self.limits and not value else value for name, value in vars(self).items()}


F = TypeVar("F", bound=Flags)


def flags_of(family: type[Options], *, without: Collection[str], **helps: str) -> Callable[[type[F]], type[F]]:
    """Give a group the options of a family, some apart: by the same names, types and defaults.

    Where a number has a default and None is no limit, 0 stands for that. What no help is given for is described as in
    Python.
    """
    types = get_type_hints(family)
    texts = {**described(family), **helps}

    def declare(group: type[F]) -> type[F]:
        group.limits = set()
        declared: list[tuple[str, Any, Any]] = []
        for field in fields(family):
            if field.name in without:
                continue
            kind: Any = types[field.name]
            if NoneType in get_args(kind) and field.default is not None:
                group.limits.add(field.name)
            option = typer.Option(
                *([f"--{field.name.replace('_', '-')}"] if kind is bool else []),
                min=0 if field.name in group.limits else None,
                help=texts[field.name],
            )
            declared.append((field.name, Annotated[kind, option], field.default))
        made: Any = make_dataclass(group.__name__, declared, bases=(group,), frozen=True)
        made.__module__, made.__doc__ = group.__module__, group.__doc__
        flags: type[F] = made
        return flags

    return declare
