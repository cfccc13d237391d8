"""Options, declared once: one frozen dataclass for each family gives signatures, docstrings and command lines.

Its docstring describes the parameters in numpydoc style. ``scripts/keywords`` writes a TypedDict with the same names
and types after it, which types ``**options`` for mypy and editors.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

F = TypeVar("F", bound=Callable[..., Any])


class Options:
    """Base class of the families."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @classmethod
    def read(cls, function: str, given: Mapping[str, Any]) -> Self:
        """Make options from the keyword arguments of a function.

        Raises
        ------
        TypeError
            As Python does, for an unknown name; the message suggests similar names.
        ArgumentError
            An option is out of range, or does not fit another one.
        """
        if not given:
            found: Self = _defaults.get(cls) or _defaults.setdefault(cls, cls())
            return found
        for name in given:
            if name not in cls.__dataclass_fields__:
                near = difflib.get_close_matches(name, cls.__dataclass_fields__)
                hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
        return cls(**given)


_defaults: dict[type[Options], Any] = {}  # as they cannot be changed, each is checked once


def takes(family: type[Options]) -> Callable[[F], F]:
    """Show a family's fields in place of ``**options``, in a function's signature and in its docstring.

    The docstring must describe ``**options`` as "Those of `Family`." and nothing more.
    """

    def show(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shown = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for field in fields(family)
        ]
        function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        if function.__doc__ is not None and family.__doc__ is not None:
            lines = _parameters(family).splitlines(keepends=True)
            function.__doc__ = re.sub(
                rf"^( *)\*\*options\n\1    Those of `{family.__name__}`\.$",
                lambda found: "".join(found[1] + line for line in lines),  # indented as before, also in Python 3.13
                function.__doc__,
                flags=re.MULTILINE,
            )
        return function

    return show


def described(family: type[Options]) -> dict[str, str]:
    """Return the descriptions in a family's docstring, by the names of the options."""
    descriptions: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", _parameters(family)):
        names, _, text = entry.partition("\n")
        descriptions |= dict.fromkeys(names.partition(" : ")[0].split(", "), " ".join(text.split()))
    return descriptions


def _parameters(family: type[Options]) -> str:
    """Return the parameter sections of the docstrings of a family and of its base families."""
    classes = [each for each in reversed(family.__mro__) if each is not Options and issubclass(each, Options)]
    texts = [inspect.cleandoc(each.__doc__ or "").partition("----------\n")[2] for each in classes]
    return "\n".join(filter(None, texts))
