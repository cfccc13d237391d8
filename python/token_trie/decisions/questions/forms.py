"""How a question is put to a model: as data, a template and what of the options is read behind it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from token_trie.decisions.questions.examples import Shot
from token_trie.decisions.questions.question import Option
from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_flags, check_numbers, encode, lookup
from token_trie.native.core import Llama
from token_trie.sets.chat_form import has_chat_template
from token_trie.sets.prompt import Filled, Prompt
from token_trie.sets.rendered import Rendered, read, render

if TYPE_CHECKING:
    from typing_extensions import Self

Reads: TypeAlias = Literal["descriptions", "names", "letters"]

_READS = dict.fromkeys(get_args(Reads), 0)


@dataclass(frozen=True)
class Form:
    """How a question is written for a model.

    Parameters
    ----------
    template : str
        A Jinja template with the variables `state`, `instructions` and, if the options are to be listed, `options`.
        Each option has `name`, `description` and `letter`. The part up to the end of the state must be the same for all
        questions, because it is evaluated once. Let it end in a word or a mark such as a colon. With a space, a
        quotation mark or an opening bracket, an option can merge into one token. All options are then scored from
        before it, which changes the odds of the others.
    reads : {"descriptions", "names", "letters"}
        What is scored as the answer after the template: each option's description (its name if it has none), its name,
        or the letter of its position.
    chat : bool
        Whether the text goes through the model's own chat template, as a user message. A model without a chat template
        gets plain text.
    absent : str
        The text that replaces the state for the contextual prior.
    temperature : float
        The difference between an option's score and its contextual prior is divided by this number and by the square
        root of its number of tokens.
    negation : str, optional
        A Jinja template with the variable `instructions`, for the opposite of a `Predicate`. The answer is then the
        mean of the log-odds of both questions.

    Raises
    ------
    ArgumentError
        The template is not valid, does not contain the state exactly once, or has another variable before the state.
    """

    template: str
    reads: Reads = "descriptions"
    chat: bool = False
    absent: str = "N/A"
    temperature: float = 1.0
    negation: str | None = None

    def __post_init__(self) -> None:
        encode(self.template, "template")
        lookup(self.reads, _READS, "reads")
        check_flags(chat=self.chat)
        encode(self.absent, "absent")
        check_numbers(temperature=self.temperature)
        if not 0 < self.temperature < float("inf"):
            raise ArgumentError(f"temperature: {self.temperature} is not above 0")
        _check_beginning(self.template)
        if self.negation is not None:
            encode(self.negation, "negation")
            self.negated("Is it so?")

    def put(
        self, llm: Llama, state: str, instructions: str, options: Sequence[Option], shots: Sequence[Shot] = ()
    ) -> Prompt:
        """Return the prompt that asks it behind examples; what others wrote has no control tokens in it.

        Parameters
        ----------
        shots : sequence of Shot
            Their places are those of the options given.
        """
        answers = self.texts(options)
        answered = [(shot.state, answers[shot.place][0]) for shot in shots]
        if not (self.chat and has_chat_template(llm)):
            return Put(self.template, state, instructions, options, answered)
        messages: list[dict[str, str]] = []
        for shown, answer in answered:
            messages.append({"role": "user", "content": str(Put(self.template, shown, instructions, options))})
            messages.append({"role": "assistant", "content": answer})
        return [*messages, {"role": "user", "content": str(Put(self.template, state, instructions, options))}]

    def negated(self, instructions: str) -> str:
        """Return how the opposite is asked; ArgumentError where the template is none."""
        template = _compiled(self.negation or "", "negation")
        try:
            return template.render(instructions=instructions)
        except jinja2.TemplateError as error:
            raise ArgumentError(f"negation: {error}") from error

    def texts(self, options: Sequence[Option]) -> list[tuple[str, ...]]:
        """Return what each option may be answered with."""
        if self.reads == "letters":
            return [_spelled(letter_of(i)) for i in range(len(options))]
        return [option.texts if self.reads == "descriptions" else (option.name,) for option in options]


class Put(Filled):
    """A question in the words of a template, in which its own control tokens alone become these.

    Parameters
    ----------
    state : str or None
        None for what the template has behind the state.
    answered : sequence of (str, str)
        States and their answers, which stand before it.
    """

    template: str
    _data: list[str]
    _n_answered: int

    def __new__(  # noqa: D102
        cls,
        template: str,
        state: str | None,
        instructions: str,
        options: Sequence[Option],
        answered: Sequence[tuple[str, str]] = (),
    ) -> Self:
        data = list(itertools.chain.from_iterable(answered))
        data += [instructions] if state is None else [state, instructions]
        for option in options:
            data += [option.name, option.texts[0]]
        made = str.__new__(cls, _fill_behind(template, data, len(answered)))
        made.template, made._data, made._n_answered = template, data, len(answered)
        return made

    def render(self, llm: Llama) -> Rendered:
        """Return it with what is the template's own told from data."""

        def template(data: list[str], mark: str) -> Rendered:
            return read(llm, _fill_behind(self.template, data, self._n_answered), mark)

        return render(llm, self._data, template)


def letter_of(place: int) -> str:
    """Return the letter of an option's place: A to Z, then AA and so on."""
    letters = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _spelled(letter: str) -> tuple[str, ...]:
    return letter, f"({letter}", f"**{letter}"


_jinja = ImmutableSandboxedEnvironment(
    keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
)


@lru_cache(64)
def _compiled(template: str, what: str = "template") -> jinja2.Template:
    try:
        return _jinja.from_string(template)
    except jinja2.TemplateError as error:
        raise ArgumentError(f"{what}: {error}") from error


def _fill(template: str, data: Sequence[str]) -> str:
    """Fill in a state, a question, and names and descriptions; without a state, for what stands behind one."""
    if len(data) % 2:
        return _fill(template, [_STATE, *data]).partition(_STATE)[2]
    names, texts = data[2::2], data[3::2]
    options: list[Mapping[str, Any]] = [
        {"name": name, "description": text, "letter": letter_of(i)}
        for i, (name, text) in enumerate(zip(names, texts, strict=True))
    ]
    try:
        return _compiled(template).render(state=data[0], instructions=data[1], options=options)
    except Exception as error:  # of whatever the template calls
        raise ArgumentError(f"template: {error}") from error


def _fill_behind(template: str, data: Sequence[str], n_answered: int) -> str:
    """Fill in a question, behind so many states and answers that come first in the data."""
    own = data[2 * n_answered :]
    return _answered(template, *data[: 2 * n_answered], question=tuple(own[1:])) + _fill(template, own)


@lru_cache(64)
def _answered(template: str, *shown: str, question: tuple[str, ...]) -> str:
    text = ""
    for state, answer in zip(shown[::2], shown[1::2], strict=True):
        asked = _fill(template, [state, *question])
        space = "" if asked[-1:].isspace() else " "
        text += f"{asked}{space}{answer}\n\n"
    return text


_STATE = "\ue000the state\ue000"
_PROBES: tuple[tuple[str, ...], ...] = (
    ("one question", "a", "the first"),
    ("another one", "b", "the second", "c", "the third"),
)


def _check_beginning(template: str) -> None:
    filled = [_fill(template, [_STATE, *probe]) for probe in _PROBES]
    if any(text.count(_STATE) != 1 for text in filled):
        raise ArgumentError("template: it is to have the state, as it is, just once")
    if len({text.partition(_STATE)[0] for text in filled}) > 1:
        raise ArgumentError("template: what stands before the state is to be the same for all questions")
