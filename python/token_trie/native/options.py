"""Options, declared once: a frozen dataclass a family, of which signatures, docstrings and command lines are made.

A family is written as any dataclass is, with its parameters described in its docstring as numpydoc has them. Beside it,
``scripts/keywords`` keeps what mypy and editors know of ``**options``: a TypedDict with the same names and types.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

F = TypeVar("F", bound=Callable[..., Any])


class Options:
    """What the families share."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @classmethod
    def read(cls, function: str, given: Mapping[str, Any]) -> Self:
        """Make options of the keywords that a function was given.

        Raises
        ------
        TypeError
            As Python does, for a name that there is none of; it names those near it.
        ArgumentError
            They are out of range, or do not fit each other.
        """
        for name in given:
            if name not in cls.__dataclass_fields__:
                near = difflib.get_close_matches(name, cls.__dataclass_fields__)
                hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
        return cls(**given)


def takes(family: type[Options]) -> Callable[[F], F]:
    """Show a family's fields in the place of a function's ``**options``.

    They stand in its signature and, described, in its docstring: where that says of ``**options`` that they are those
    of the family, and no more.
    """

    def show(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shown = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for field in _fields(family)
        ]
        function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        if function.__doc__ is not None and family.__doc__ is not None:
            lines = _parameters(family).splitlines(keepends=True)
            function.__doc__ = re.sub(
                rf"^( *)\*\*options\n\1    Those of `{family.__name__}`\.$",
                lambda found: "".join(found[1] + line for line in lines),  # indented as it is, which Python 3.13 undoes
                function.__doc__,
                flags=re.MULTILINE,
            )
        return function

    return show


def described(family: type[Options]) -> dict[str, str]:
    """Return the names that a family's docstring describes, with what it says of each."""
    told: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", _parameters(family)):
        names, _, text = entry.partition("\n")
        told |= dict.fromkeys(names.partition(" : ")[0].split(", "), " ".join(text.split()))
    return told


def _parameters(family: type[Options]) -> str:
    """Return the parameters that the docstrings of a family and of the families it inherits from describe."""
    classes = [each for each in reversed(family.__mro__) if each is not Options and issubclass(each, Options)]
    texts = [inspect.cleandoc(each.__doc__ or "").partition("----------\n")[2] for each in classes]
    return "\n".join(filter(None, texts))


def _fields(family: Any) -> Iterator[Field[Any]]:
    yield from fields(family)
