"""Forms of questions: templates, the texts of the options, and the weights of their scores."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import mul
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import jinja2
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from token_trie.arrays import Floats
from token_trie.decisions.calibration import Calibrator
from token_trie.errors import ArgumentError
from token_trie.llama.query import Plan
from token_trie.native.core import Llama
from token_trie.native.options import check_flags, check_name, check_numbers, encode
from token_trie.plan import Model
from token_trie.questions.question import (
    NONE_OF_THESE,
    Answered,
    Choice,
    Examples,
    Option,
    Question,
    QuestionStats,
    Shot,
    digest_of,
    make_answer,
    text_of,
)
from token_trie.questions.scores import Reading, Scored
from token_trie.sets.control_tokens import Rendered, may_become_control, read, render
from token_trie.sets.prompt import Filled, Prompt, has_chat_template

if TYPE_CHECKING:
    from typing_extensions import Self

Reads: TypeAlias = Literal["descriptions", "names", "letters"]


@dataclass(frozen=True)
class Form:
    """How a question is written for a model.

    Parameters
    ----------
    template : str
        A Jinja template with the variables `state`, `instructions` and, if the options are to be listed, `options`.
        Each option has `name`, `description` and `letter`. What is the same in several prompts is evaluated once, if it
        is their beginning: with the state first, the state for several questions about it; with the instructions and
        options first, these for many states. Let the template end in a word or a mark such as a colon. With a space, a
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
        An option's calibrated score is divided by this number: the difference to its prior, divided by the square root
        of its number of tokens.

    Raises
    ------
    ArgumentError
        The template is not valid, or does not contain the state exactly once.
    """

    template: str
    reads: Reads = "descriptions"
    chat: bool = False
    absent: str = "N/A"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        encode(self.template, "template")
        check_name(self.reads, get_args(Reads), "reads")
        check_flags(chat=self.chat)
        encode(self.absent, "absent")
        check_numbers(temperature=self.temperature)
        if not 0 < self.temperature < float("inf"):
            raise ArgumentError(f"temperature: {self.temperature} is not above 0")
        if any(_fill(self.template, _STATE, *probe).count(_STATE) != 1 for probe in _PROBES):
            raise ArgumentError("template: it is to have the state, as it is, just once")

    def render(
        self, llm: Llama, state: str, instructions: str, options: Sequence[Option], shots: Sequence[Shot] = ()
    ) -> Prompt:
        """Return the prompt of a question after examples; data cannot contain control tokens.

        The positions of the examples refer to the given options.
        """
        answers = self.texts(options) if shots else []
        answered = [(shot.state, answers[shot.position][0]) for shot in shots]
        if not (self.chat and has_chat_template(llm)):
            return RenderedQuestion(self.template, state, instructions, options, answered)
        messages: list[dict[str, str]] = []
        for shown, answer in answered:
            messages.append(
                {"role": "user", "content": str(RenderedQuestion(self.template, shown, instructions, options))}
            )
            messages.append({"role": "assistant", "content": answer})
        return [
            *messages,
            {"role": "user", "content": str(RenderedQuestion(self.template, state, instructions, options))},
        ]

    def texts(self, options: Sequence[Option], offset: int = 0) -> list[tuple[str, ...]]:
        """Return the answer texts of each option, where the one at `offset` is listed first."""
        if self.reads == "letters":
            return [_spelled(letter_of((i - offset) % len(options))) for i in range(len(options))]
        return [option.texts if self.reads == "descriptions" else (option.name,) for option in options]


Forms: TypeAlias = Mapping[Form, float]
"""Forms, with the weights of their scores in the mean."""


class RenderedQuestion(Filled):
    """A filled template. Only control tokens of the template become control tokens.

    Without a state, it is the part of the template after the state. `answered` has the states and answers of examples
    before it.
    """

    template: str
    _data: list[Any]

    def __new__(  # noqa: D102
        cls,
        template: str,
        state: str | None,
        instructions: str,
        options: Sequence[Option],
        answered: Sequence[tuple[str, str]] = (),
    ) -> Self:
        data: list[Any] = [state, instructions, [(option.name, option.texts[0]) for option in options], list(answered)]
        made = str.__new__(cls, _fill_all(template, *data))
        made.template, made._data = template, data
        return made

    def render(self, llm: Llama) -> Rendered:
        """Return the prompt with the template's own text marked apart from data."""
        if not may_become_control(llm, self._data):
            return Rendered(str(self), None)
        return render(llm, self._data, lambda data, mark: read(llm, _fill_all(self.template, *data), mark))


def letter_of(position: int) -> str:
    """Return the letter of an option's position: A to Z, then AA and so on."""
    letters = ""
    position += 1
    while position:
        position, rest = divmod(position - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _spelled(letter: str) -> tuple[str, ...]:
    return letter, f"({letter}", f"**{letter}"


_jinja = ImmutableSandboxedEnvironment(
    keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
)


@lru_cache(64)
def _compiled(template: str) -> jinja2.Template:
    try:
        return _jinja.from_string(template)
    except jinja2.TemplateError as error:
        raise ArgumentError(f"template: {error}") from error


Pairs: TypeAlias = Sequence[Sequence[str]]
"""Names and descriptions of options, or states and answers of examples."""


def _fill(template: str, state: str, instructions: str, options: Pairs) -> str:
    shown: list[Mapping[str, Any]] = [
        {"name": name, "description": text, "letter": letter_of(i)} for i, (name, text) in enumerate(options)
    ]
    try:
        return _compiled(template).render(state=state, instructions=instructions, options=shown)
    except Exception as error:  # from any call of the template
        raise ArgumentError(f"template: {error}") from error


def _fill_all(template: str, state: str | None, instructions: str, options: Pairs, answered: Pairs) -> str:
    """Fill in a question after examples, states with their answers; without a state, the text after it."""
    options = tuple(map(tuple, options))
    before = _examples(template, instructions, options, tuple(map(tuple, answered)))
    if state is None:
        return before + _fill(template, _STATE, instructions, options).partition(_STATE)[2]
    return before + _fill(template, state, instructions, options)


@lru_cache(64)
def _examples(template: str, instructions: str, options: Pairs, answered: Pairs) -> str:
    text = ""
    for state, answer in answered:
        filled = _fill(template, state, instructions, options)
        space = "" if filled[-1:].isspace() else " "
        text += f"{filled}{space}{answer}\n\n"
    return text


_STATE = "\ue000the state\ue000"
_PROBES: tuple[tuple[str, Pairs], ...] = (
    ("one question", (("a", "the first"),)),
    ("another one", (("b", "the second"), ("c", "the third"))),
)


def begins_with_state(form: Form) -> bool:
    """Whether everything before the state is the same for all questions."""
    return len({_fill(form.template, _STATE, *probe).partition(_STATE)[0] for probe in _PROBES}) == 1


def lists_options(form: Form) -> bool:
    """Whether the text depends on the options."""
    return len({_fill(form.template, _STATE, "a question", options) for _, options in _PROBES}) > 1


class Weighing:
    """Maps scores of texts to options, each of which has one or more texts.

    Options with the same texts are one answer, and share its probability evenly. A text of several answers is shared
    evenly between them.
    """

    def __init__(self, options: Sequence[Sequence[str]]) -> None:
        answers = {texts: i for i, texts in enumerate(dict.fromkeys(map(frozenset, options)))}
        positions = {text: i for i, text in enumerate(sorted({text for texts in options for text in texts}))}
        self.texts = tuple(positions)
        """Distinct texts, sorted."""
        self._answer_of = np.array([answers[frozenset(texts)] for texts in options])
        # Ragged rows, one for each answer.
        self._positions = np.array([positions[text] for texts in answers for text in sorted(texts)])
        self._n_texts = np.array([len(texts) for texts in answers])
        self._begins = np.cumsum(self._n_texts) - self._n_texts
        self._n_sharing = np.bincount(self._positions)

    def log_masses(self, logprobs: Floats) -> Floats:
        """Return the log of each answer's total probability, from log-probabilities of the texts."""
        shared = (logprobs - np.log(self._n_sharing))[self._positions]
        masses: Floats = np.logaddexp.reduceat(shared, self._begins)
        return masses

    def lengths(self, lengths: Floats) -> Floats:
        """Return the mean number of tokens of each answer's texts."""
        means: Floats = np.add.reduceat(lengths[self._positions], self._begins) / self._n_texts
        return means

    def of_options(self, weights: Floats) -> Floats:
        """Return the log-weights of the options, from those of the answers."""
        shares: Floats = (weights - np.log(np.bincount(self._answer_of)))[self._answer_of]
        return shares


_weighing = lru_cache(64)(Weighing)


def softmax(weights: Floats) -> Floats:
    """Return the softmax of log-weights; uniform if none is finite."""
    if not np.isfinite(weights.max()):
        weights = np.zeros_like(weights)
    p: Floats = np.exp(weights - weights.max())
    p /= math.fsum(p)  # independent of the order
    return p


def contextual(raw: Floats, prior: Floats, lengths: Floats, temperature: float) -> Floats:
    """Return each answer's log-score minus its prior without a state, on a scale comparable between texts.

    A difference is a sum over tokens, whose spread grows with the root of their number. Each answer is divided by its
    own root, so that the odds of two do not depend on a third.
    """
    # A score is zero if its prior is, up to rounding.
    known = np.where(np.isneginf(prior), raw, prior)
    differences = np.subtract(raw, known, out=np.full_like(raw, -np.inf), where=np.isfinite(raw))
    weights: Floats = differences / (temperature * np.sqrt(lengths))
    return weights


@dataclass(frozen=True, eq=False)
class FormView:
    """A question in one form, with its options in one order."""

    form: Form
    instructions: str
    options: tuple[Option, ...]
    """Options in the order of the question."""
    offset: int
    """Position of the option that is listed first."""
    shots: tuple[Shot, ...] = ()
    """Examples before the state, with positions in the order of the question."""

    @cached_property
    def listed(self) -> tuple[Option, ...]:
        """The options in listed order."""
        return self.options[self.offset :] + self.options[: self.offset]

    @cached_property
    def weighing(self) -> Weighing:
        """The mapping of texts to options."""
        return _weighing(tuple(self.form.texts(self.options, self.offset)))

    @property
    def text(self) -> str:
        """The filled template with the absent state."""
        return RenderedQuestion(self.form.template, self.form.absent, self.instructions, self.listed)

    def prompt(self, llm: Llama, state: str | None) -> Prompt:
        """Return the prompt for a state; None: the absent state."""
        given, n = self.form.absent if state is None else state, len(self.options)
        shown = [Shot(shot.state, (shot.position - self.offset) % n) for shot in self.shots]
        return self.form.render(llm, given, self.instructions, self.listed, shown)

    def weights(self, scored: Scored, prior: Scored | None) -> Floats:
        """Return the log-weights of the answers."""
        raw = self.weighing.log_masses(scored.logprobs)
        if prior is None:
            return raw
        lengths = self.weighing.lengths(scored.lengths)
        return contextual(raw, self.weighing.log_masses(prior.logprobs), lengths, self.form.temperature)


class TokensOf(Protocol):
    """Returns the tokens of the prompt of a view, about the state, or without one for the prior."""

    def __call__(self, view: FormView, *, is_prior: bool) -> list[int]: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class PreparedQuestion:
    """A question in one or more forms, with its options in one or more orders."""

    question: Question
    forms: Forms
    orders: int
    calibrator: Calibrator | None = None
    """None: the answer has the model's own probabilities."""
    examples: Examples | None = None
    """Examples before the state."""
    profile: str | None = None
    """Name of the profile that the forms come from."""

    @property
    def has_prior(self) -> bool:
        """Whether the scores of each view without a state are subtracted from those with the state."""
        return self.calibrator is not None and self.calibrator.needs_prior

    @property
    def wording(self) -> str:
        """Text of everything that decides the weights, except the model and option names."""
        views = [(view.instructions, [option.texts for option in view.options]) for view in self.views]
        before = [digest_of(self.shots)] if self.shots else []
        forms = [{**dataclasses.asdict(form), "weight": weight} for form, weight in self.forms.items()]
        return json.dumps([*forms, self.orders, views, *before], ensure_ascii=False)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(option.name for option in self.options)

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The options, including "none of these" if offered."""
        options = self.question.wording
        if isinstance(self.question, Choice) and self.question.other:
            options += (Option(NONE_OF_THESE, (NONE_OF_THESE,)),)
        return options

    @cached_property
    def shots(self) -> tuple[Shot, ...]:
        """Examples before the state; ArgumentError for answers that are not options."""
        return () if self.examples is None else self.examples.of(self.question, self.classes)

    @cached_property
    def views(self) -> list[FormView]:
        """One view for each form and order; a single order of a form whose text does not depend on it."""
        instructions = text_of(self.question.instructions, "instructions")
        starts = offsets(len(self.options), self.orders)
        found = []
        for form in self.forms:
            views = [FormView(form, instructions, self.options, offset, self.shots) for offset in starts]
            found += views if len(starts) > 1 and len({view.text for view in views}) > 1 else views[:1]
        return found

    def plan(self, model: Model, tokens_of: TokensOf) -> Plan[Answered[Any]]:
        """Plan the answer after the prompts of the views."""
        with_state = self.calibrator is not None and self.calibrator.needs_state
        return self.answer(*(yield from self.scored(model, tokens_of, with_state=with_state)))

    def scored(
        self, model: Model, tokens_of: TokensOf, *, with_state: bool = False
    ) -> Plan[tuple[list[Scored], list[Scored]]]:
        """Plan the scores of the views, and those without a state, if the answer needs them.

        `with_state`: whether the hidden states after the prompts are needed, too.
        """
        priors, own = [], []
        for view in self.views:
            texts = view.weighing.texts
            if self.has_prior:
                priors.append(Reading.of(model, tokens_of(view, is_prior=True), texts))
            own.append(Reading.of(model, tokens_of(view, is_prior=False), texts, with_state=with_state))
        answers = yield [*(one.prior_step for one in priors), *(one.step for one in own)]
        found = [one.scored(answer) for one, answer in zip([*priors, *own], answers, strict=True)]
        return found[len(priors) :], found[: len(priors)]

    def answer(self, scored: Sequence[Scored], priors: Sequence[Scored]) -> Answered[Any]:
        """Return the answer, from the scores of the views, and from those without a state, if there are any."""
        n_prompt, n_evaluated = sum(s.n_prompt for s in scored), sum(s.n_evaluated for s in scored)
        n_cached = [s.n_cached for s in scored]
        stats = QuestionStats(n_prompt, n_evaluated, n_prompt - sum(n_cached), min(n_cached))
        mass = mass_of(scored)
        kind: Any = "raw"
        calibrator, weights = self.calibrator, self.of_options(scored, priors)
        if calibrator is not None:
            states = None if scored[0].state is None else scored[0].state[None]
            weights = calibrator.log_weights(weights[None], states)[0]
            kind = "fitted" if calibrator.binding is not None else calibrator.kind if priors else "raw"
        return make_answer(self.question, softmax(weights), mass, kind, stats, self.profile)

    def of_options(self, scored: Sequence[Scored], priors: Sequence[Scored]) -> Floats:
        """Return the mean log-weights of the options over the forms, each of which is a mean over its views."""
        of_forms = dict[Form, list[Floats]]()
        without: Sequence[Scored | None] = priors or [None] * len(scored)
        for view, own, prior in zip(self.views, scored, without, strict=True):
            # Options that are the same answer in one form, as their texts are the same, may be two in another.
            of_forms.setdefault(view.form, []).append(view.weighing.of_options(view.weights(own, prior)))
        means = [sum(of_views) / len(of_views) for of_views in of_forms.values()]
        shares = [self.forms[form] for form in of_forms]
        weights: Floats = sum(map(mul, means, shares)) / sum(shares)
        return weights


def mass_of(scored: Sequence[Scored]) -> float:
    """Return the mean probability of all texts over the views of a question."""
    return min(math.fsum(one.mass for one in scored) / len(scored), 1.0)


def offsets(n: int, k: int) -> list[int]:
    """Return the starts of min(n, k) cyclic orders, spread evenly: 0, n/2, n/4, 3n/4 and so on."""
    spread: dict[int, None] = {}
    for i in itertools.count():
        if len(spread) == min(n, k):
            break
        spread[int(n * _mirrored(i))] = None
    return list(spread)


def _mirrored(i: int) -> float:
    """Return 0, 1/2, 1/4, 3/4, 1/8 … for 0, 1, 2 …."""
    return sum((i >> bit & 1) * 0.5 ** (bit + 1) for bit in range(i.bit_length()))
