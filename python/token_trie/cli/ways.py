"""How the rows of a table are labelled: by a question, or by a prompt of one's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

from token_trie.cli.calibrating import Calibrating
from token_trie.cli.options import as_prompt
from token_trie.decisions.calibrator import Contextual
from token_trie.decisions.decision import Decision
from token_trie.decisions.many import choose_many
from token_trie.decisions.questions.answered import ChoiceAnswer
from token_trie.decisions.questions.decide import read_questions
from token_trie.decisions.questions.examples import Examples
from token_trie.decisions.questions.forms import Form
from token_trie.decisions.questions.many import decide_many
from token_trie.decisions.questions.options import FORMS, FormName
from token_trie.decisions.questions.question import Choice
from token_trie.errors import ArgumentError
from token_trie.llama.query import LeafEnd
from token_trie.native.core import Llama
from token_trie.sets.prompt import Prompt
from token_trie.sets.template import Template, to_json
from token_trie.sets.trie import TokenTrie
from token_trie.trust.calibration import Calibration
from token_trie.trust.options import RowOptions
from token_trie.trust.readings import reader_of

_ABSENT = "N/A"
_USUAL = Calibrating()

LabelMode: TypeAlias = Literal["exact", "greedy"]


class Labelled(NamedTuple):
    """What is written of a row."""

    answer: str
    figures: list[float]
    is_unfit: bool
    """Whether none of the choices fits, as far as that can be told."""


class Way(ABC):
    """A way of labelling."""

    choices: list[str]
    """What a row may be labelled with."""
    columns: list[str]
    """Those that are added; the first is the label."""
    set: list[Any]
    """What identifies the choices,"""
    options: list[Any]
    """and all else that labels depend on, beside the model,"""
    marks: list[Any]
    """and what comes behind that in the digest."""
    asked: Any
    """The choices, or the question,"""
    how: RowOptions
    """and how rows are asked, for what is measured or fitted on them."""

    @abstractmethod
    def check(self, llm: Llama) -> None:
        """Raise an error for choices that are none for a model."""

    def _check(self, llm: Llama, calibrating: Calibrating) -> None:
        """Raise CalibrationError for what was fitted on something else."""
        if isinstance(calibrating.given, Calibration):
            calibrating.given.binding.require(reader_of(llm, self.asked, self.how).binding)

    @abstractmethod
    def ask(self, values: dict[str, Any]) -> Any:
        """Return what is asked about a row; ArgumentError where it cannot be."""

    @abstractmethod
    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        """Yield an answer, or an error, for each."""

    @abstractmethod
    def read(self, answer: Any) -> Labelled:
        """Return what is written of an answer."""


class ByPrompt(Way):
    """By what follows a prompt of one's own."""

    def __init__(
        self,
        template: Template,
        texts: list[str],
        mode: LabelMode,
        leaf_end: LeafEnd,
        chat: bool,
        probabilities: bool,
        calibrating: Calibrating = _USUAL,
    ) -> None:
        is_exact = mode == "exact"
        figures = ["probability", "margin", "mass"] if is_exact else []
        self.choices = self.set = texts
        self.columns = ["answer", *figures, *calibrating.columns, *(f"p_{text}" for text in texts if probabilities)]
        self.options, self.marks = [template.text, chat, leaf_end], [*([] if is_exact else [mode]), *calibrating.marks]
        told = f"{template.text} (as a message)" if chat else template.text
        self.asked, self.how = texts, RowOptions(template=told, leaf_end=leaf_end)
        self._calibrating = calibrating
        self._template = template
        self._mode = mode
        self._leaf_end = leaf_end
        self._chat = chat
        self._probabilities = probabilities

    def check(self, llm: Llama) -> None:
        """Raise an error for choices that are none for a model."""
        TokenTrie.from_choices(llm, self.choices)
        self._check(llm, self._calibrating)

    @property
    def empty(self) -> Prompt:
        """The prompt of a row that says nothing."""
        return as_prompt(self._template.fill(dict.fromkeys(self._template.columns, _ABSENT)), self._chat)

    def ask(self, values: dict[str, Any]) -> Any:
        """Return the prompt of a row; ArgumentError where it has none."""
        return as_prompt(self._template.fill(values), self._chat)

    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        """Yield a decision, or an error, for each."""
        return choose_many(
            llm,
            asked,
            self.choices,
            mode=self._mode,
            probabilities=self._mode == "exact",
            leaf_end=self._leaf_end,
            on_error="return",
            calibration=self._calibration,
        )

    @property
    def _calibration(self) -> Any:
        given = self._calibrating.given
        if isinstance(given, str):
            return {"raw": None, "contextual": Contextual(self.empty), "batch": "batch"}[given]
        return given

    def read(self, answer: Decision[str]) -> Labelled:
        """Return what is written of a decision."""
        figures: list[float | None] = []
        if answer.probabilities is not None:
            probability = answer.probabilities[answer.index]
            figures = [probability, answer.margin, answer.mass, *self._calibrating.figures(probability)]
            figures += answer.probabilities.tolist() if self._probabilities else []
        return Labelled(answer.text, [0.0 if one is None else one for one in figures], answer.fits is False)


class ByQuestion(Way):
    """By the answer to a question about it."""

    def __init__(
        self,
        question: str,
        texts: list[str],
        form: FormName | None,
        template: Template | None,
        chat: bool,
        probabilities: bool,
        calibrating: Calibrating = _USUAL,
    ) -> None:
        described: dict[str, str | None] = {}
        for text in texts:
            name, _, description = text.partition("=")
            if not name.strip():
                raise ArgumentError(f"--choice: {text!r} has no name before the =")
            if name in described:
                raise ArgumentError(f"--choice: {name!r} is given twice, with different descriptions")
            described[name] = description or None
        self.choices = list(described)
        self.columns = ["value", "probability", "confidence", "mass", *calibrating.columns]
        self.columns += [f"p_{name}" for name in described if probabilities]
        put: FormName | Form | None = replace(FORMS[form or "unlisted"], chat=True) if chat else form
        self.set = list(described.items())
        self.options = ["question", question, repr(put), None if template is None else template.text]
        self.marks = calibrating.marks
        self._calibrating = calibrating
        self.asked, self.how = Choice(question, described), RowOptions(form=put)
        self._template = template
        self._probabilities = probabilities

    def put(self, examples: Examples) -> None:
        """Let examples stand before each row; ArgumentError for an answer that is none of the choices."""
        self.how = replace(self.how, examples=examples)
        self.marks = [*self.marks, "examples", examples.of(self.asked, self.choices).digest]

    def check(self, llm: Llama) -> None:
        """Raise an error for a question that is none for a model."""
        read_questions(self.asked, self.how.of_question(), llm)
        self._check(llm, self._calibrating)

    def ask(self, values: dict[str, Any]) -> Any:
        """Return what a row says; ArgumentError where it has not what it is to say."""
        return to_json(values) if self._template is None else str(self._template.fill(values))

    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        """Yield an answer, or an error, for each."""
        given: Any = self._calibrating.given
        if given is None or given == "raw":
            given = "contextual" if given is None else None
        how = self.how
        return decide_many(
            llm, asked, self.asked, on_error="return", form=how.form, examples=how.examples, calibration=given
        )

    def read(self, answer: ChoiceAnswer[str]) -> Labelled:
        """Return what is written of an answer."""
        p = answer.probabilities
        mass = 0.0 if answer.mass is None else answer.mass
        figures = [p[answer.value], answer.confidence, mass, *self._calibrating.figures(p[answer.value])]
        figures += p.values() if self._probabilities else ()
        return Labelled(answer.value, figures, is_unfit=False)
