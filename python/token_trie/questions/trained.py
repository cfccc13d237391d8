"""Models trained for decisions, used as their GGUF and llama.cpp's server specify.

The template "systemone" states one question about a state. The next token is the answer: each option has a label of one
token, or a group of tokens of which the most probable counts.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import jinja2
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from token_trie.arrays import Floats
from token_trie.errors import ArgumentError
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lifetime import attachment, lease
from token_trie.questions.form import softmax
from token_trie.questions.question import (
    NONE_OF_THESE,
    Answered,
    Choice,
    Predicate,
    Question,
    QuestionStats,
    StateText,
    make_answer,
    words_of,
)
from token_trie.questions.scores import Asked, QuestionView, Reading, Scored
from token_trie.sets.control_tokens import read, render, tokens_of

if TYPE_CHECKING:
    from typing_extensions import Self

LETTERS = string.ascii_uppercase + string.ascii_lowercase
CODES = (*string.ascii_uppercase, *map("".join, product(string.ascii_uppercase, repeat=2)))


LabelTokens: TypeAlias = dict[str, tuple[int, ...]]
"""The tokens of each option's label, in order; the most probable of a label counts."""


def single_tokens(llm: Llama, texts: Iterable[str], at_most: int | None = None) -> LabelTokens:
    """Return the texts that are a single token."""
    found = ((text, token_of(llm, text)) for text in texts)
    return dict(islice(((text, (token,)) for text, token in found if token is not None), at_most))


def token_of(llm: Llama, text: str) -> int | None:
    """Return the token of a text, or None if it is not a single token."""
    tokens = llm.tokenize(text.encode(), add_bos=False, special=False)
    return int(tokens[0]) if len(tokens) == 1 else None


def group_labels(llm: Llama, question: str, keys: Sequence[str]) -> LabelTokens:
    """Return the labels of "lfm2-d1": yes and no, level numbers, or codes, with or without a leading space.

    ArgumentError if an option has no label of a single token.
    """
    if question != "choice":
        words = {"true": ("yes", "Yes", "YES"), "false": ("no", "No", "NO")}
        groups = [_tokens(llm, words[key] if question == "noul" else (key,)) for key in keys]
        if not all(groups):
            raise ArgumentError(f"options: {keys[groups.index(())]!r} is no token of the model's own")
        return dict(zip(keys, groups, strict=True))
    labels, used = LabelTokens(), set[int]()
    for code in _codes(keys):
        label = next((one for one in chain([code], _pool()) if token_of(llm, one) not in {None, *used}), None)
        if label is None:
            raise ArgumentError(f"options: {len(keys)}, and the model has not as many labels that are a token")
        labels[label] = _tokens(llm, (label, f" {label}"))
        used.add(labels[label][0])
    return labels


def _codes(keys: Sequence[str]) -> Sequence[str]:
    if all(len(key) == 1 and key.isascii() and key.isalpha() for key in keys):
        return keys
    if len(keys) <= len(string.ascii_uppercase):
        return string.ascii_uppercase[: len(keys)]
    return [f"{i:02}" for i in range(len(keys))]


def _pool() -> Iterator[str]:
    yield from string.ascii_uppercase
    yield from (f"{i:02}" for i in range(100))
    yield from string.ascii_lowercase
    yield from (f"#{i}" for i in range(200))
    yield from CODES[len(string.ascii_uppercase) :]


def _tokens(llm: Llama, texts: Iterable[str]) -> tuple[int, ...]:
    """Return the tokens of the texts that are a single token."""
    found = (token_of(llm, text) for text in texts)
    return tuple(dict.fromkeys(token for token in found if token is not None))


TrainedKind: TypeAlias = Literal["openjev", "lev", "nimble", "pplx-decider", "lfm2-d1"]

_KINDS: dict[str, TrainedKind] = {kind: kind for kind in get_args(TrainedKind)}
_N_RATINGS = 9  # answers of "lev" to a predicate, from certainly not to certainly
_TRUE_FIRST = ("openjev", "lfm2-d1")


@dataclass(frozen=True, eq=False)
class Trained:
    """Decision settings in the GGUF of a trained model."""

    kind: TrainedKind
    template: jinja2.Template
    temperatures: Mapping[str, float]
    """Temperatures by question type, or by type and range of the number of options."""
    labels: LabelTokens
    """Labels by position; empty if they depend on the question."""

    def temperature(self, question: str, n_options: int) -> float:
        """Return the divisor of log-probabilities."""
        if self.kind == "lev":
            bucket = "small" if n_options <= 8 else "mid" if n_options <= 26 else "large"
        else:
            bucket = "2" if n_options <= 2 else "3_5" if n_options <= 5 else "6_10" if n_options <= 10 else "11"
        return self.temperatures.get(f"{question}.{bucket}", self.temperatures.get(question, 1.0))

    def labels_of(self, llm: Llama, question: str, keys: Sequence[str]) -> LabelTokens:
        """Return the labels for the options of a question."""
        if self.kind == "lfm2-d1":
            return group_labels(llm, question, keys)
        n = _N_RATINGS if self.is_rated(question) else len(keys)
        if n > len(self.labels):
            raise ArgumentError(f"options: {n}, and the model was trained with labels for {len(self.labels)}")
        return dict(islice(self.labels.items(), n))

    def is_rated(self, question: str) -> bool:
        """Return whether a question is answered by ratings."""
        return self.kind == "lev" and question == "noul"


def trained_of(llm: Llama) -> Trained | None:
    """Return the decision settings of a model; None if it has none.

    ArgumentError if the decision type is not supported, or the settings are incomplete or invalid.
    """
    known = attachment(llm).known
    if "trained" not in known:
        known["trained"] = _read(llm)
    found: Trained | None = known["trained"]
    return found


def _read(llm: Llama) -> Trained | None:
    prefix = f"{llm.metadata.get('general.architecture')}.decision."
    name = llm.metadata.get(f"{prefix}type")
    if name is None:
        return None
    kind = _KINDS.get(name)
    if kind is None:
        raise ArgumentError(
            f"the model was trained for decisions of the type {name!r}, which this llama.cpp has no head for, or which "
            f"are not known here; known are {', '.join(_KINDS)}. With form=… it is asked as other models are"
        )
    source = llm.metadata.get("tokenizer.chat_template.systemone")
    if source is None:
        raise ArgumentError("the model was trained for decisions, and its file has no template named 'systemone'")
    try:
        template = _jinja.from_string(source)
    except jinja2.TemplateError as error:
        raise ArgumentError(f"the model's template 'systemone': {error}") from error
    temperatures = {}
    for key, value in llm.metadata.items():
        if key.startswith(f"{prefix}temperature."):
            temperatures[key.removeprefix(f"{prefix}temperature.")] = _temperature(key, value)
    with lease(llm):
        vocab_of(llm)
        labels = _labels(llm, kind)
    return Trained(kind, template, temperatures, labels)


def _temperature(key: str, value: str) -> float:
    try:
        temperature = float(value)
    except ValueError:
        temperature = 0.0
    if not 0 < temperature < float("inf"):
        raise ArgumentError(f"the model's {key}: {value!r} is no temperature")
    return temperature


def _labels(llm: Llama, kind: TrainedKind) -> LabelTokens:
    if kind == "lfm2-d1":
        return {}
    if kind == "openjev":
        found = single_tokens(llm, LETTERS)
        if len(found) < len(LETTERS):
            raise ArgumentError("the model was trained to answer with letters, and not all are tokens of its own")
        return found
    return single_tokens(llm, CODES, at_most=255)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


_jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
_jinja.filters["tojson"] = _to_json


@dataclass(frozen=True, eq=False)
class TrainedView(QuestionView):
    """A single question in the format of the model's training."""

    trained: Trained
    question: str
    """The question type."""
    instructions: Any
    options: tuple[tuple[str, Any], ...]
    """Keys and descriptions, in the order shown."""
    labels: LabelTokens

    def reading(self, llm: Llama, state: str | None) -> Reading:
        """Return the reading for a state."""
        given = state.given if isinstance(state, StateText) else state or ""
        data = {"instructions": self.instructions, "state": given, "options": [list(one) for one in self.options]}
        with lease(llm):
            vocab_of(llm)
            rendered = render(llm, data, lambda data, mark: read(llm, self._fill(data), mark))
            tokens = tokens_of(llm, rendered, lambda text: llm.tokenize(text, add_bos=False, special=True))
        return Reading(tokens, (), labels=tuple(token for group in self.labels.values() for token in group))

    def probabilities(self, scored: Scored) -> Floats:
        """Return the probabilities of the options, in the order shown."""
        sizes = [len(group) for group in self.labels.values()]
        best = np.maximum.reduceat(scored.logprobs, np.cumsum([0, *sizes[:-1]]))
        p = softmax(best / self.trained.temperature(self.question, len(self.options)))
        if not self.trained.is_rated(self.question):
            return p
        true = float((p * np.arange(_N_RATINGS)).sum() / (_N_RATINGS - 1))
        return np.array([1 - true, true])

    def _fill(self, data: Any) -> str:
        options = [{"key": key, "description": description} for key, description in data["options"]]
        if self.trained.kind != "openjev":
            for option, label in zip(options, self.labels, strict=False):
                option["label"] = label
        given: Any = {
            "id": "question",
            "type": self.question,
            "instructions": data["instructions"],
            "state": data["state"],
            "options": options,
            "images": [],
        }
        if self.trained.kind == "nimble":  # its template lists all questions; each is asked alone
            shown = {name: given[name] for name in ("id", "type", "instructions", "options")}
            given["questions"] = [shown]
        if self.trained.kind == "lev":
            given = _sorted(given)
        try:
            return self.trained.template.render(given)
        except Exception as error:  # from any call of the template
            raise ArgumentError(f"the model's template 'systemone': {error}") from error


@dataclass(frozen=True, eq=False)
class TrainedAsked(Asked):
    """A question to a model that was trained for decisions."""

    question: Question
    orders: tuple[TrainedView, ...]
    """One order; for a choice of "lev", both directions."""

    @property
    def views(self) -> Sequence[TrainedView]:
        """One view for each order."""
        return self.orders

    @classmethod
    def of(cls, llm: Llama, question: Question, trained: Trained) -> Self:
        """Prepare a question; ArgumentError if the model has too few labels."""
        kind, options = _shown(question)
        if kind == "noul" and trained.kind in _TRUE_FIRST:
            options = options[::-1]
        with lease(llm):
            vocab_of(llm)
            labels = trained.labels_of(llm, kind, [key for key, _ in options])
        orders = [options]
        if trained.kind == "lev" and kind == "choice" and len(options) > 1:
            orders.append(options[::-1])
        return cls(
            question, tuple(TrainedView(trained, kind, question.instructions, shown, labels) for shown in orders)
        )

    def answer(self, scored: Sequence[Scored], priors: Sequence[Scored | None]) -> Answered[Any]:
        """Return the answer, from the mean probabilities of the orders."""
        first, *other = (view.probabilities(one) for view, one in zip(self.views, scored, strict=True))
        p = np.mean([first, *(one[::-1] for one in other)], axis=0)
        if isinstance(self.question, Predicate) and self.views[0].options[0][0] == "false":
            p = p[::-1]
        stats = QuestionStats(sum(s.n_prompt for s in scored), sum(s.n_evaluated for s in scored))
        mass = float(np.mean([s.mass for s in scored]))
        return make_answer(self.question, p, min(mass, 1.0), "trained", stats)


def _shown(question: Question) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """Return the type of a question, and keys and descriptions of its options."""
    if isinstance(question, Predicate):
        return "noul", (("false", question.false), ("true", question.true))
    if isinstance(question, Choice):
        described: Mapping[Any, Any] = dict(question.options)
        options = [
            (value if isinstance(value, str) else words_of(value), described[value]) for value in question.values
        ]
        if question.other:
            options.append((NONE_OF_THESE, None))
        return "choice", tuple(options)
    return "score", tuple((str(i), level) for i, level in enumerate(question.levels))


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, (list, tuple)) else value
