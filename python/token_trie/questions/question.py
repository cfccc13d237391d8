"""`Choice`, `Predicate`, `Score`: questions about a state, their texts for a model, examples and answers."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeGuard, TypeVar, overload

from token_trie.arrays import Floats, Ints
from token_trie.decisions.calibration import CalibrationName
from token_trie.decisions.decision import Candidate, Source
from token_trie.decisions.gold import listed, read_gold
from token_trie.errors import ArgumentError
from token_trie.native.lifetime import LruCache
from token_trie.native.options import check_counts, check_flags, encode
from token_trie.sets.choices import Choices, read_choices
from token_trie.sets.trie import TokenTrie

Wording: TypeAlias = str | Mapping[str, Any] | Sequence[Any]
"""A text, or a JSON value that is shown as JSON text."""

DEFAULT_INSTRUCTIONS = {"choice": "Which one is it?", "noul": "Is it so?", "score": "How much is it?"}
"""Instructions for a question that has none, by its type in a request."""

_NAME = re.compile(r"[A-Za-z0-9]+(_+[A-Za-z0-9]+)+")


def text_of(given: object, what: str) -> str:
    """Return a text, or the JSON text of another value; ArgumentError, beginning with ``what``, if it is neither."""
    if not isinstance(given, str):
        try:
            given = json.dumps(given, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"{what}: no text and no JSON value: {error}") from error
    encode(given, what)
    return given


def state_text(state: object) -> str:
    """Return the text of a state: text as it is, chat messages as paragraphs, otherwise JSON, or ArgumentError."""
    if isinstance(state, Sequence) and not isinstance(state, (str, bytes)) and state and all(map(_is_message, state)):
        state = "\n\n".join(f"{message['role']}: {_content(message, i)}" for i, message in enumerate(state))
    return text_of(state, "state")


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and "content" in value


def _content(message: Mapping[str, Any], i: int) -> str:
    content, what = message["content"], f"state[{i}].content"
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if parts and all(isinstance(part, str) for part in parts):
            content = "\n".join(map(str, parts))
    return text_of(content, what)


def words_of(name: object) -> str:
    """Return the words of a name: ``book_flight`` is "book flight", True is "true"."""
    if isinstance(name, Enum):
        name = name.value if isinstance(name.value, str) else name.name
    if isinstance(name, bool):
        return str(name).lower()
    text = str(name)
    if not _NAME.fullmatch(text):
        return text
    return re.sub("_+", " ", text.lower() if text.isupper() else text)


T = TypeVar("T")

NONE_OF_THESE = "none of these"
"""The additional option with `Choice.other`."""

Members: TypeAlias = TokenTrie | Choices[Any]
"""A set whose members are the options of a question."""
TOP = 5
"""Default number of members of a set that an answer has."""


@dataclass(frozen=True)
class Option:
    """An option of a question."""

    name: str
    """The name as words."""
    texts: tuple[str, ...]
    """One or more answer texts, whose probabilities are added."""


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A question with several options, of which one is the answer.

    Parameters
    ----------
    instructions : str or JSON value
        The question.
    options : mapping of values to descriptions, choices as for `choose`, or TokenTrie
        The possible answers. A description is a text, a JSON object, or a list of several texts for the same option. An
        option without a description, or with a blank one, is described by its name as words (``book_flight`` as "book
        flight"). The model does not see the names of the other options. The members of a `TokenTrie`, of any number,
        are options as they are: their tokens follow the question. Members of one name are one value.
    other : bool
        Whether to offer "none of these", too. Its probability is an attribute of the answer. Not with `top`.
    top : int, optional
        Searches the options for so many of the best, instead of scoring each; the others are not in the answer. By
        default 5 for a `TokenTrie`; None: all options are scored. Not with descriptions.

    Raises
    ------
    ArgumentError
        There are no options, or a text is empty or not valid; or options and `top` do not fit together.
    """

    instructions: Wording
    options: Mapping[T, Wording | None] | Iterable[T]
    other: bool = False
    top: int | None = None
    values: tuple[T, ...] = field(init=False, repr=False, compare=False)
    """The values of the options, in the order given; none with `members`."""
    wording: tuple[Option, ...] = field(init=False, repr=False, compare=False)
    """The options for a model; none with `members`."""
    members: Members | None = field(init=False, repr=False, compare=False)
    """The set that is searched; None: all options are scored."""

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Choice[str],
            instructions: Wording,
            options: TokenTrie | Choices[str],
            *,
            top: int | None = ...,
        ) -> None: ...
        @overload
        def __init__(
            self,
            instructions: Wording,
            options: Mapping[T, Wording | None] | Iterable[T],
            other: bool = ...,
            top: int | None = ...,
        ) -> None: ...
        def __init__(self, *_args: Any, **_options: Any) -> None: ...

    def __post_init__(self) -> None:
        text_of(self.instructions, "instructions")
        check_flags(other=self.other)
        is_set = isinstance(self.options, TokenTrie)
        if is_set or self.top is not None:
            self._search(is_set=is_set)
            return
        object.__setattr__(self, "members", None)
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

    def _search(self, *, is_set: bool) -> None:
        """Make the options a set that is searched."""
        given: Any = self.options
        top = TOP if self.top is None else self.top
        check_counts(top=top)
        if self.other:
            raise ArgumentError("other: goes with options that are all scored, without top")
        if isinstance(given, Mapping):
            raise ArgumentError("top: goes with a set or texts, and not with descriptions")
        for name, value in (("top", top), ("members", given if is_set else read_choices(given))):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "values", ())
        object.__setattr__(self, "wording", ())


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
        _ = self.wording  # raises for texts that are empty or not valid

    @property
    def values(self) -> tuple[bool, bool]:
        """True and False."""
        return True, False

    @property
    def wording(self) -> tuple[Option, ...]:
        """The options for a model."""
        return tuple(
            Option(name, (name,) if given is None else _texts(given, what))
            for name, given, what in (("Yes", self.true, "true"), ("No", self.false, "false"))
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
            raise ArgumentError(f"levels must be a list of texts, the lowest first, not {type(self.levels).__name__}")
        if len(self.levels) < 2:
            raise ArgumentError(f"levels must be two or more, not {len(self.levels)}")
        object.__setattr__(self, "levels", tuple(self.levels))
        for i, level in enumerate(self.levels):
            _text(level, f"levels[{i}]")

    @property
    def values(self) -> tuple[int, ...]:
        """The numbers of the levels, from 0."""
        return tuple(range(len(self.levels)))

    @property
    def wording(self) -> tuple[Option, ...]:
        """The options for a model."""
        texts = [_text(level, f"levels[{i}]") for i, level in enumerate(self.levels)]
        return tuple(Option(text, (text,)) for text in texts)


Question: TypeAlias = Choice[Any] | Predicate | Score


MAX_WHOLE = 255
"""Largest number of members of a set that are all scored: as many options as a request may describe."""


def is_searched(question: Question) -> TypeGuard[Choice[Any]]:
    """Whether the options are a set that is searched, and not scored one by one."""
    return isinstance(question, Choice) and question.members is not None


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
        raise ArgumentError(f"{what} must be one text or several, not an empty list")
    return tuple(dict.fromkeys(_text(text, f"{what}[{i}]") for i, text in enumerate(description)))


def _text(given: Wording, what: str) -> str:
    text = text_of(given, what)
    if not text.strip():
        raise ArgumentError(f"{what}: empty")
    return text


CalibrationKind: TypeAlias = Literal["raw", CalibrationName, "fitted"]
"""How probabilities were made from scores.

raw
    The model's own probabilities, renormalized over the options.
contextual
    Divided by the probabilities without a state, and tempered; see `Form`.
batch
    Divided by the mean probabilities over many states, and tempered.
fitted
    By a `Calibration` that was fitted on rows.
"""


@dataclass(frozen=True)
class QuestionStats:
    """The cost of an answer."""

    n_prompt: int
    """Tokens of the state and the question, once for each form and order."""
    n_evaluated: int
    """Answer tokens that the model evaluated."""
    n_read: int = 0
    """Tokens of the prompts that the model evaluated."""
    n_cached: int = 0
    """Tokens of each prompt from the prefix cache of a batch."""


@dataclass(frozen=True)
class Answered(Generic[T]):
    """An answer.

    Attributes
    ----------
    value : object
        The most probable value of the question, as it was given; if several are equal, the first one.
    probabilities : dict
        The probability of each value, in the order given. They sum to 1.
    mass : float or None
        The model's own probability that it would write one of the options' texts, before any calibration. If it is near
        0, the model would write something else; but it is always small for long descriptions. None if a head on the
        hidden state has answered.
    calibration : {"raw", "contextual", "batch", "fitted"}
        How the probabilities were made.
    stats : QuestionStats
        What the answer cost.
    profile : str or None
        The name of the forms in which the model was asked by default, of `PROFILES`; None if a form was given.
    """

    value: T
    probabilities: dict[T, float]
    mass: float | None
    calibration: CalibrationKind
    stats: QuestionStats = field(compare=False, repr=False)
    profile: str | None = field(default=None, kw_only=True, compare=False)

    @property
    def source(self) -> Source:
        """Where the answer comes from; `calibration` says what was made of its probabilities."""
        return "head" if self.mass is None else "sum"

    @property
    def confidence(self) -> float:
        """How far the best probability is above an equal share, from 0 to 1; 1 if there is only one option."""
        n = len(self.probabilities)
        return 1.0 if n == 1 else max(0.0, (self.probabilities[self.value] - 1 / n) / (1 - 1 / n))

    def to_dict(self) -> dict[str, Any]:
        """Return the answer for JSON, in TypeSafe's format; fields that the format does not have begin with ``x_``."""
        more = {} if self.profile is None else {"x_profile": self.profile}
        return (
            self._figures() | {"x_mass": self.mass, "x_calibration": self.calibration, "x_source": self.source} | more
        )

    def _figures(self) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class ChoiceAnswer(Answered[T]):
    """The answer to a `Choice`.

    Attributes
    ----------
    other : float or None
        With `Choice.other`: the probability of "none of these", against all options together.
    candidates : tuple of Candidate
        With `Choice.top`: the members that were returned, best first, with their indices in the set, the model's own
        `logprob` and the `share` that `probabilities` sum up by value; these are relative to one another. `mass` is
        then that of all members that were found.
    gap : float
        With `Choice.top`: by how many nats a member that was not returned could at most be above the last one that was;
        0 if all members were scored, and inf if a prior is subtracted from the scores of those that were found.
    rest : float
        With `Choice.top`: the model's own probability of all members that were not found is at most this.
    """

    other: float | None = None
    candidates: tuple[Candidate[T], ...] = field(default=(), compare=False, repr=False)
    gap: float = 0.0
    rest: float = 0.0

    @property
    def proved(self) -> bool:
        """Whether no other option can be better than those that were returned."""
        return self.gap == 0

    @property
    def source(self) -> Source:
        """Where the answer comes from; with `Choice.top`, maybe a search."""
        if self.rest == 0:
            return super().source
        return "proof" if self.proved else "bound"

    def _figures(self) -> dict[str, Any]:
        own = {"type": "choice", "choice": self.value, "probabilities": self.probabilities}
        return own | {"confidence": self.confidence} | ({} if self.other is None else {"x_other": self.other})


@dataclass(frozen=True)
class PredicateAnswer(Answered[bool]):
    """The answer to a `Predicate`."""

    @property
    def probability(self) -> float:
        """The probability of True."""
        return self.probabilities[True]

    def _figures(self) -> dict[str, Any]:
        return {"type": "noul", "noul": self.probability}


@dataclass(frozen=True)
class ScoreAnswer(Answered[int]):
    """The answer to a `Score`; the value is the number of a level."""

    legend: dict[int, str] = field(default_factory=dict, repr=False)
    """The levels by their numbers."""

    @property
    def score(self) -> float:
        """The mean level."""
        return sum(level * p for level, p in self.probabilities.items())

    @property
    def confidence(self) -> float:
        """How close the levels are to the best one, from 0 to 1; 1 if the best level has all the probability."""
        n = len(self.probabilities)
        even = sum(abs(level - (n - 1) / 2) for level in range(n)) / n
        return max(0.0, 1 - sum(p * abs(level - self.value) for level, p in self.probabilities.items()) / even)

    def _figures(self) -> dict[str, Any]:
        legend, shares = ({str(level): one[level] for level in one} for one in (self.legend, self.probabilities))
        own = {"type": "score", "score": self.score, "legend": legend, "probabilities": shares}
        return own | {"confidence": self.confidence}


def make_answer(
    question: Question,
    probabilities: Floats,
    mass: float | None,
    calibration: CalibrationKind,
    stats: QuestionStats,
    profile: str | None = None,
) -> Answered[Any]:
    """Return the answer, from the probabilities of the question's values, and of "none of these" if offered."""
    n = len(question.values)
    shares = probabilities[:n] / math.fsum(probabilities[:n])
    value: Any = question.values[int(shares.argmax())]
    common: dict[str, Any] = {
        "value": value,
        "probabilities": dict(zip(question.values, shares.tolist(), strict=True)),
        "mass": mass,
        "calibration": calibration,
        "stats": stats,
        "profile": profile,
    }
    if isinstance(question, Choice):
        return ChoiceAnswer(other=float(probabilities[n]) if question.other else None, **common)
    if isinstance(question, Predicate):
        return PredicateAnswer(**common)
    return ScoreAnswer(legend=dict(enumerate(option.name for option in question.wording)), **common)


_MAX_QUESTIONS = 16
"""Maximum number of questions in the cache of examples."""


class Shot(NamedTuple):
    """A state, and the position of its correct option."""

    state: str
    position: int


@dataclass(frozen=True, eq=False)
class Examples:
    """States with known answers, which the model reads before the state of a question.

    Parameters
    ----------
    states : sequence of states
        Each as for `decide`.
    gold : sequence
        The right answer for each state: a value of the question, or its name.
    n_each : int
        Number of examples for each answer. The first ones are taken. They are the same for all states, and are
        evaluated once.

    Raises
    ------
    ArgumentError
        A state is not valid, or the numbers of states and answers differ.
    """

    states: Sequence[object]
    gold: Sequence[Any]
    n_each: int = 1

    def __post_init__(self) -> None:
        check_counts(n_each=self.n_each)
        if isinstance(self.states, (str, bytes)) or not isinstance(self.states, Sequence):
            raise ArgumentError(f"states must be a list of states, not {type(self.states).__name__}")
        if not self.states:
            raise ArgumentError("states: none given")
        object.__setattr__(self, "states", tuple(str(state_text(state)) for state in self.states))
        object.__setattr__(self, "gold", listed(self.gold, "gold"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle only the arguments."""
        return Examples, (self.states, self.gold, self.n_each)

    def of(self, question: Question, names: Sequence[str]) -> tuple[Shot, ...]:
        """Return the examples before a question, the options taking turns; ArgumentError for an answer that is none."""
        values, n = [*question.values, *([None] if len(names) > len(question.values) else [])], len(self.states)
        # By identity (the values are kept): different values can print alike, and equal ones have other names.
        key = tuple(names), tuple(map(id, values))
        return self._read.get(key, 1, lambda: (self._shots(read_gold(self.gold, n, names, values)), values))[0]

    @cached_property
    def _read(self) -> LruCache[tuple[tuple[Shot, ...], Sequence[Any]]]:
        return LruCache(_MAX_QUESTIONS, _MAX_QUESTIONS)

    def _shots(self, positions: Ints) -> tuple[Shot, ...]:
        """Return the first `n_each` examples of each option."""
        seen, taken = Counter[int](), list[tuple[int, Shot]]()
        for state, position in zip(self.states, positions.tolist(), strict=True):
            if seen[position] < self.n_each:
                taken.append((seen[position], Shot(str(state), position)))
            seen[position] += 1
        return tuple(shot for _, shot in sorted(taken, key=lambda one: (one[0], one[1].position)))


def digest_of(shots: Sequence[Shot]) -> str:
    """Return the digest of examples."""
    return sha256(json.dumps(shots).encode("utf-8", "surrogatepass")).hexdigest()
