"""Options, declared once and checked: one frozen dataclass for each family gives signatures, docstrings, command lines.

Its docstring describes the parameters in numpydoc style. ``scripts/keywords`` writes a TypedDict with the same names
and types after it, which types ``**options`` for mypy and editors.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from token_trie.errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

ANY_SEED = 0xFFFFFFFF


def encode(text: object, what: str) -> bytes:
    """UTF-8 bytes of a text; ArgumentError, beginning with ``what``: no str, or with a NUL or lone surrogate."""
    if not isinstance(text, str):
        raise ArgumentError(f"{what} must be str, not {type(text).__name__}")
    if "\0" in text:
        raise ArgumentError(f"{what}: holds a NUL character")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{what}: {error}") from error


def encode_names(names: Iterable[str], what: str) -> list[bytes]:
    """UTF-8 bytes of several texts; ArgumentError as of `encode`, with the position."""
    wrong = f"{what} must be a list of names, not {type(names).__name__}"
    if isinstance(names, (str, bytes)):
        raise ArgumentError(wrong)
    try:
        listed = list(names)
    except TypeError as error:
        raise ArgumentError(wrong) from error
    return [encode(name, f"{what}[{i}]") for i, name in enumerate(listed)]


def check_name(value: object, names: Collection[str], what: str) -> None:
    """Raise ArgumentError, which lists the valid names, for a value that is none of them."""
    if not isinstance(value, str) or value not in names:
        raise ArgumentError(f"{what} must be one of {', '.join(map(repr, names))}, not {value!r}")


def check_counts(minimum: int = 1, **options: int) -> None:
    """Raise ArgumentError for an option that is not an integer from `minimum` to 2**31 - 1."""
    for name, value in options.items():
        if not ((type(value) is int or _is_integer(value)) and minimum <= value < 2**31):
            raise ArgumentError(f"{name}: {_written(value)} is not a count from {minimum} to 2,147,483,647")


def check_limits(minimum: int = 1, **options: int | None) -> None:
    """Do as `check_counts` does, for options of which None means no limit or a default."""
    check_counts(minimum, **{name: value for name, value in options.items() if value is not None})


def check_integers(**options: int) -> None:
    """Raise ArgumentError for an option that is not a signed integer of 32 bits."""
    for name, value in options.items():
        if not _is_integer(value):
            raise ArgumentError(f"{name} must be an integer, not {type(value).__name__}")
        if not -(2**31) <= value < 2**31:
            raise ArgumentError(f"{name}: {_written(value)} has more than 32 bits")


def check_numbers(**options: float) -> None:
    """Raise ArgumentError for an option that is not a number, or too large for a float."""
    for name, value in options.items():
        if not isinstance(value, Real):
            raise ArgumentError(f"{name} must be a number, not {type(value).__name__}")
        try:
            float(value)
        except OverflowError as error:
            raise ArgumentError(f"{name}: {error}") from error


def native_seed(seed: int | None) -> int:
    """Return a seed for llama.cpp, None for a new one each time; ArgumentError for one that it cannot take."""
    if seed is None:
        return ANY_SEED
    if not (_is_integer(seed) and 0 <= seed < 2**32):
        raise ArgumentError(f"seed: {_written(seed)} is not an integer in [0, 2**32)")
    return min(int(seed), ANY_SEED - 1)


def nth_seed(seed: int, n: int) -> int:
    """Return the seed of draw number n of a seed. Draws by seeds next to each other do not share any."""
    return int(np.random.SeedSequence((seed, n)).generate_state(1)[0])


def check_flags(**options: bool) -> None:
    """Raise ArgumentError for an option that is not True or False."""
    for name, value in options.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"{name} must be True or False, not {type(value).__name__}")


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _written(value: object) -> str:
    """Format a value for a message; `repr` refuses integers of thousands of digits."""
    try:
        return repr(value)
    except ValueError:
        return f"the {type(value).__name__} given"


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

    def is_given(self, name: str) -> bool:
        """Return whether an option differs from its default."""
        value, default = getattr(self, name), self.__dataclass_fields__[name].default
        return value is not default and (default is None or bool(value != default))

    def check_used(self, key: str, value: str, used_in: Mapping[str, Collection[str]]) -> None:
        """Raise ArgumentError for an option without effect, by the value of another; `used_in`: where it has one."""
        for name, values in used_in.items():
            if value not in values and self.is_given(name):
                others = " or ".join(map(repr, values))
                raise ArgumentError(f"{name}: has no effect with {key}={value!r}; it goes with {key}={others}")


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
