"""Ways of coming from what a model says of rows to answers."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from token_trie.decisions.many import choose_many
from token_trie.decisions.questions.question import Choice, Predicate, Score
from token_trie.errors import ArgumentError, CalibrationError
from token_trie.llama.query import LeafEnd
from token_trie.native.core import Llama
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie
from token_trie.trust.calibration import Calibration
from token_trie.trust.fitting import fit_readings, log_probabilities
from token_trie.trust.folds import folds_of
from token_trie.trust.kept import Kept, kept_in, key_of, read_kept
from token_trie.trust.options import FitKind, RowOptions
from token_trie.trust.readings import Reader, Readings, reader_of
from token_trie.trust.words import by_words

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Found(NamedTuple):
    """What a way answers."""

    answers: Ints
    probabilities: Floats | None
    mass: Floats | None


class Way(NamedTuple):
    """A way of answering."""

    says: str
    """What it is, for a reader of its figures."""
    find: Callable[[Rows], Found]
    of: str = "model"
    """model: the model's own; labels: fitted on the labels, and judged on rows left out; words: no model."""


@dataclass
class Rows:
    """The rows of a table, which a model reads once for each way of asking."""

    llm: Llama
    given: Sequence[Any]
    choices: ChoicesLike
    options: RowOptions
    empty: Prompt | None
    cache: str | PathLike[str] | None
    words: Sequence[str]
    n_folds: int
    states: bool
    reading: dict[str, Any]
    gold: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    groups: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows that are the same have the same number."""
    n_read: int = 0
    """Rows that the model has read."""
    notes: list[str] = field(default_factory=list)
    calibrations: dict[FitKind, Calibration] = field(default_factory=dict)
    """What was fitted by the labels."""

    def __post_init__(self) -> None:
        self._read: dict[RowOptions, Readings] = {}
        self._kept: dict[str, Kept] = {}

    @cached_property
    def is_question(self) -> bool:
        """Whether a question is asked about the rows."""
        return isinstance(self.choices, (Choice, Predicate, Score))

    @cached_property
    def reader(self) -> Reader:
        """What asks as the options say."""
        return reader_of(self.llm, self.choices, self.options)

    @cached_property
    def folds(self) -> list[tuple[Ints, Ints]]:
        """Rows to fit on, and to judge by."""
        return folds_of(self.gold, self.groups, self.n_folds)

    def readings(self, **changes: Any) -> Readings:
        """Return what the model says of them, with some options changed."""
        options = replace(self.options, **changes)
        if options not in self._read:
            self._read[options] = self._readings(options, self.given)
        return self._read[options]

    @cached_property
    def is_prefix_free(self) -> bool:
        """Whether no choice goes on from another, so that it is the same whether that is asked about.

        A text may be spelled with a space before it, or normalized.
        """
        texts = sorted(unicodedata.normalize("NFKC", text).casefold().strip() for text in self.reader.binding.classes)
        return not isinstance(self.choices, TokenTrie) and not any(b.startswith(a) for a, b in pairwise(texts))

    def mass_of(self, readings: Readings) -> Floats | None:
        """Return the mass, where it tells whether a choice fits: of options that are described it does not."""
        return None if self.is_question else readings.mass

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the classes are called: of a question, the options as they were given, where these are texts."""
        pairs = zip(self.reader.values, self.reader.binding.classes, strict=True)
        return tuple(value if self.is_question and isinstance(value, str) else text for value, text in pairs)

    def fitted(self, kind: FitKind) -> Calibration:
        """Return what is fitted by the labels."""
        if kind not in self.calibrations:
            self.calibrations[kind] = Calibration.of(
                self.readings(), self.gold, kind=kind, n_folds=self.n_folds, groups=self.groups
            )
        return self.calibrations[kind]

    @property
    def as_given(self) -> Readings | None:
        """What it says, asked as the options say, if it was."""
        return self._read.get(self.options)

    def behind_nothing(self) -> Floats:
        """Return the scores behind the empty prompt."""
        if self.empty is None:
            raise ArgumentError("ways: 'contextual' needs the prompt without its content, as empty")
        return self._readings(self.options, [self.empty]).raw

    def _readings(self, options: RowOptions, given: Sequence[Any]) -> Readings:
        reader = self.reader if options == self.options else reader_of(self.llm, self.choices, options)
        key = key_of(options, reader.binding)
        if key not in self._kept:
            kept = self._kept[key] = kept_in(self.cache, key)
            if kept.problem is not None:
                self.notes.append(kept.problem)
        states = self.states and options == self.options
        read, n = read_kept(reader, given, self._kept[key], states=states, **self.reading)
        self.n_read += n
        return read


def softmax(weights: Floats) -> Floats:
    """Return probabilities, a row each; where the model gives no class anything, all are alike."""
    best = weights.max(axis=1, keepdims=True)
    shares: Floats = np.exp(np.where(np.isfinite(best), weights - np.where(np.isfinite(best), best, 0), 0.0))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def found_by(weights: Floats, mass: Floats | None) -> Found:
    """Answer by log-weights."""
    probabilities = softmax(weights)
    return Found(probabilities.argmax(axis=1), probabilities, mass)


def _exact(**changes: Any) -> Callable[[Rows], Found]:
    def find(rows: Rows) -> Found:
        read = rows.readings(**changes)
        return found_by(read.raw, rows.mass_of(read))

    return find


def _ends(leaf_end: LeafEnd) -> Callable[[Rows], Found]:
    def find(rows: Rows) -> Found:
        same = {leaf_end, rows.options.leaf_end} <= {"longest", "any"} and rows.is_prefix_free
        return _exact(**{} if same else {"leaf_end": leaf_end})(rows)

    return find


def _contextual(**changes: Any) -> Callable[[Rows], Found]:
    def find(rows: Rows) -> Found:
        read = rows.readings(**changes)
        weights = read.raw - rows.behind_nothing() if read.contextual is None else read.contextual
        return found_by(weights, rows.mass_of(read))

    return find


def _label_free(kind: FitKind) -> Callable[[Rows], Found]:
    def find(rows: Rows) -> Found:
        read = rows.readings()
        fitted, _ = fit_readings(read, None, kind=kind)
        return found_by(log_probabilities(fitted, read), rows.mass_of(read))

    return find


def _fitted(kind: FitKind) -> Callable[[Rows], Found]:
    def find(rows: Rows) -> Found:
        read = rows.readings()
        held_out = rows.fitted(kind).held_out
        assert held_out is not None  # as rows have labels
        assert held_out.probabilities is not None  # as it was not read from a file
        return Found(held_out.probabilities.argmax(axis=1), held_out.probabilities, rows.mass_of(read))

    return find


def _greedy(rows: Rows) -> Found:
    options = rows.options
    reading = {name: value for name, value in rows.reading.items() if name != "progress"}
    decisions = choose_many(
        rows.llm, rows.given, rows.choices, mode="greedy", leading_space=options.leading_space, **reading
    )
    at = {text: i for i, text in enumerate(rows.reader.binding.classes)}
    answers = np.array([at[decision.text] for decision in decisions], np.int64)
    rows.n_read += len(answers)
    return Found(answers, None, None)


def _majority(rows: Rows) -> Found:
    # Of all rows: the majority of other folds is the less frequent in one's own.
    n, counts = len(rows.gold), np.bincount(rows.gold, minlength=len(rows.reader.values))
    return Found(np.full(n, counts.argmax(), np.int64), np.tile(counts / n, (n, 1)), None)


def _words(rows: Rows) -> Found:
    n_classes = len(rows.reader.values)
    found = by_words(rows.words, rows.gold, rows.groups, n_classes, rows.folds) if rows.folds else None
    if found is None:
        raise CalibrationError("rows of one class, or without words, tell nothing by their words")
    return Found(found.argmax(axis=1), found, None)


_FITTED = {
    "mean": Way("less the mean of the rows' log scores; no labels", _label_free("mean")),
    "batch": Way("batch calibration; no labels", _label_free("batch")),
    "fitted": Way("fitted by labels: what is best by cross-validated log loss", _fitted("auto"), "labels"),
    "temperature": Way("one temperature, by labels", _fitted("temperature"), "labels"),
    "bias": Way("a bias a class, by labels", _fitted("bias"), "labels"),
    "head": Way("logistic regression on the hidden state, by labels", _fitted("head"), "labels"),
    "majority": Way("the most frequent class of these rows", _majority, "words"),
    "words": Way("TF-IDF and logistic regression, by labels", _words, "words"),
}
OF_PROMPTS = {
    "exact": Way("whole answers, by the model's own probability", _exact()),
    "longest": Way("likewise, when no longer choice goes on from it", _ends("longest")),
    "any": Way("likewise, whatever comes behind", _ends("any")),
    "follow": Way("likewise, when the text ends there", _ends("follow")),
    "greedy": Way("token by token", _greedy),
    "contextual": Way("less what the prompt gives without its content", _contextual()),
    **_FITTED,
}
OF_QUESTIONS = {
    "exact": Way("the model's own probability", _exact()),
    "contextual": Way("less what the question gives without a state", _contextual()),
    "unlisted": Way("likewise, options not listed", _contextual(form="unlisted")),
    "listed": Way("likewise, options listed by name", _contextual(form="listed")),
    "letters": Way("likewise, options listed by letters", _contextual(form="letters")),
    "orders": Way("options listed, in four orders", _contextual(form="listed", orders=4)),
    **_FITTED,
}
DEFAULT = ("exact", "contextual", "mean", "batch", "fitted", "majority", "words")
