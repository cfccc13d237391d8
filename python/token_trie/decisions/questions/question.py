"""What is asked about a state: one of several options, yes or no, a level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from token_trie.decisions.questions.wording import Wording, text_of, words_of
from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_flags
from token_trie.sets.choices import read_choices

T = TypeVar("T")

NONE_OF_THESE = "none of these"
"""What is offered beside the options where `Choice.other` is set."""


@dataclass(frozen=True)
class Option:
    """One of those that a question may be answered with."""

    name: str
    """What it is called, as words."""
    texts: tuple[str, ...]
    """What it may be answered with, one at least: their probabilities are added."""


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A question with several options, of which one is the answer.

    Parameters
    ----------
    instructions : str or JSON value
        The question.
    options : mapping of values to descriptions, or choices as for `choose`
        The possible answers. A description is a text, a JSON object, or a list of several texts for the same option. An
        option without a description, or with a blank one, is described by its name as words (``book_flight`` as "book
        flight"). The model does not see the names of the other options.
    other : bool
        Whether to offer "none of these", too. Its probability is an attribute of the answer.

    Raises
    ------
    ArgumentError
        There are no options, or a text is empty or not valid.
    """

    instructions: Wording
    options: Mapping[T, Wording | None] | Iterable[T]
    other: bool = False
    values: tuple[T, ...] = field(init=False, repr=False, compare=False)
    """The values of the options, in the order given."""
    wording: tuple[Option, ...] = field(init=False, repr=False, compare=False)
    """What they are for a model."""

    def __post_init__(self) -> None:
        text_of(self.instructions, "instructions")
        check_flags(other=self.other)
        described: Mapping[T, Wording | None]
        if isinstance(self.options, Mapping):
            described = dict(self.options)
        else:
            read = read_choices(self.options)
            described = dict.fromkeys(read.values)
        if not described:
            raise ArgumentError("options: none given")
        object.__setattr__(self, "options", described)
        object.__setattr__(self, "values", tuple(described))
        object.__setattr__(self, "wording", tuple(_option(value, described[value]) for value in described))


@dataclass(frozen=True)
class Predicate:
    """A yes-or-no question.

    Parameters
    ----------
    instructions : str or JSON value
        The question.
    true, false : str or JSON value, optional
        Descriptions of the answers True and False; by default "Yes" and "No".

    Raises
    ------
    ArgumentError
        A text is empty or not valid.
    """

    instructions: Wording
    true: Wording | None = None
    false: Wording | None = None

    def __post_init__(self) -> None:
        text_of(self.instructions, "instructions")
        for what in ("true", "false"):
            _texts(getattr(self, what) or "Yes", what)

    @property
    def values(self) -> tuple[bool, bool]:
        """True and False."""
        return True, False

    @property
    def wording(self) -> tuple[Option, ...]:
        """What these are for a model."""
        return self._worded("Yes", "No")

    @property
    def turned(self) -> tuple[Option, ...]:
        """What they are for a model that is asked for the opposite."""
        return self._worded("No", "Yes")

    def _worded(self, true: str, false: str) -> tuple[Option, ...]:
        return tuple(
            Option(name, (name,) if given is None else _texts(given, what))
            for name, given, what in ((true, self.true, "true"), (false, self.false, "false"))
        )


@dataclass(frozen=True)
class Score:
    """A question about a level on a scale.

    Parameters
    ----------
    instructions : str or JSON value
        The question.
    levels : sequence of str or JSON values
        Descriptions of two or more levels, the lowest first.

    Raises
    ------
    ArgumentError
        There are fewer than two levels, or a text is empty or not valid.
    """

    instructions: Wording
    levels: Sequence[Wording]

    def __post_init__(self) -> None:
        text_of(self.instructions, "instructions")
        if isinstance(self.levels, (str, bytes, Mapping)) or not isinstance(self.levels, Sequence):
            raise ArgumentError(f"levels: {type(self.levels).__name__} where a list of texts belongs, the lowest first")
        if len(self.levels) < 2:
            raise ArgumentError(f"levels: {len(self.levels)}, where two are the fewest")
        object.__setattr__(self, "levels", tuple(self.levels))
        for i, level in enumerate(self.levels):
            _text(level, f"levels[{i}]")

    @property
    def values(self) -> tuple[int, ...]:
        """The numbers of the levels, from 0."""
        return tuple(range(len(self.levels)))

    @property
    def wording(self) -> tuple[Option, ...]:
        """What they are for a model."""
        texts = [_text(level, f"levels[{i}]") for i, level in enumerate(self.levels)]
        return tuple(Option(text, (text,)) for text in texts)


Question: TypeAlias = Choice[Any] | Predicate | Score


def _option(value: object, description: Wording | None) -> Option:
    what = f"options[{value!r}]"
    name = words_of(value)
    if description is None or (isinstance(description, str) and not description.strip()):
        return Option(name, (_text(name, what),))
    return Option(name, _texts(description, what))


def _texts(description: Wording, what: str) -> tuple[str, ...]:
    if isinstance(description, (str, Mapping)) or not isinstance(description, Sequence):
        return (_text(description, what),)
    if not description:
        raise ArgumentError(f"{what}: an empty list, where texts belong that may all stand for it")
    return tuple(dict.fromkeys(_text(text, f"{what}[{i}]") for i, text in enumerate(description)))


def _text(given: Wording, what: str) -> str:
    text = text_of(given, what)
    if not text.strip():
        raise ArgumentError(f"{what}: empty")
    return text
