"""How good answers are: ways of answering side by side, on rows with gold labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.gold import read_gold
from token_trie.errors import ArgumentError, CalibrationError
from token_trie.native.arguments import check_counts
from token_trie.native.core import Llama
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.trust.calibration import Calibration
from token_trie.trust.folds import numbered
from token_trie.trust.gate import Gate, find_gate
from token_trie.trust.kept import as_asked, digest_of_prompt
from token_trie.trust.metrics import Figures, figures_of
from token_trie.trust.options import RowOptions
from token_trie.trust.readings import Readings
from token_trie.trust.ways import DEFAULT, OF_PROMPTS, OF_QUESTIONS, Rows, Way

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WrongRow:
    """A row that was answered wrongly."""

    row: int
    """Its number."""
    text: str
    gold: str
    answer: str
    confidence: float | None
    """The probability of the answer."""


@dataclass(frozen=True, eq=False)
class EvaluatedWay:
    """A way of answering, and what it is worth.

    Attributes
    ----------
    name : str
    says : str
        What it is.
    of : {"model", "labels", "words"}
        What it takes: the model alone; labels besides, and then each row was answered by what was fitted on others;
        labels without a model.
    answers : ndarray of int64, shape (n_rows,)
        Positions of classes.
    probabilities : ndarray of float64, shape (n_rows, n_classes), or None
        None of greedy answers, which have none.
    figures : Figures
    """

    name: str
    says: str
    of: str
    answers: Ints = field(repr=False)
    probabilities: Floats | None = field(repr=False)
    figures: Figures = field(repr=False)

    @property
    def confidence(self) -> Floats | None:
        """The probability of each answer."""
        return None if self.probabilities is None else self.probabilities[np.arange(len(self.answers)), self.answers]


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What answers are worth: ways side by side, on the same rows.

    Attributes
    ----------
    classes : tuple of str
    gold : ndarray of int64, shape (n_rows,)
        What the rows are, as positions of classes.
    texts : tuple of str
        What they say.
    numbers : tuple of int
        What they are called: by their positions, or in a table from 1 on.
    ways : tuple of EvaluatedWay
        In the order asked for.
    notes : tuple of str
        What is to be known beside the figures: ways that could not be taken, duplicates, classes without rows.
    n_read : int
        Rows that the model has read for it; those that were kept, or are there twice, it has not.
    readings : Readings or None
        What it says of them.
    groups : ndarray of int64, shape (n_rows,)
        Rows that are the same have the same number.
    n_folds : int
    fitted : Calibration or None
        What was fitted, if that was one of the ways.
    """

    classes: tuple[str, ...]
    gold: Ints = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)
    numbers: tuple[int, ...] = field(repr=False)
    ways: tuple[EvaluatedWay, ...]
    notes: tuple[str, ...]
    n_read: int
    readings: Readings | None = field(repr=False)
    groups: Ints = field(repr=False)
    n_folds: int
    fitted: Calibration | None

    def __getitem__(self, name: str) -> EvaluatedWay:
        """Return a way by its name."""
        for way in self.ways:
            if way.name == name:
                return way
        raise KeyError(name)

    @property
    def best(self) -> EvaluatedWay:
        """The model's way with the least log loss; of ways without probabilities alone, the most accurate."""
        own = [way for way in self.ways if way.of != "words"] or list(self.ways)
        sure = [way for way in own if way.figures.log_loss is not None]
        if sure:
            return min(sure, key=lambda way: way.figures.log_loss or 0.0)
        return max(own, key=lambda way: way.figures.accuracy)

    @cached_property
    def calibration(self) -> Calibration:
        """What is fitted on all of the rows, to be saved; CalibrationError where they do not allow it."""
        if self.fitted is not None:
            return self.fitted
        if self.readings is None:
            raise CalibrationError("calibration: no way was taken that reads the rows; take fitted")
        return Calibration.of(self.readings, self.gold, n_folds=self.n_folds, groups=self.groups)

    @property
    def wrong(self) -> tuple[WrongRow, ...]:
        """The rows that the best way answers wrongly, surest first."""
        return self.wrong_by(self.best.name)

    def wrong_by(self, name: str) -> tuple[WrongRow, ...]:
        """Return the rows that a way answers wrongly, surest first."""
        way = self[name]
        rows, confidence = np.flatnonzero(way.answers != self.gold), way.confidence
        if confidence is not None:
            rows = rows[np.argsort(-confidence[rows], kind="stable")]
        return tuple(
            WrongRow(
                self.numbers[row],
                self.texts[row],
                self.classes[self.gold[row]],
                self.classes[way.answers[row]],
                None if confidence is None else float(confidence[row]),
            )
            for row in rows
        )

    def gate(self, target_accuracy: float, way: str | None = None) -> Gate:
        """Find the least confidence from which on a way, by default the best, is right so often.

        Returns
        -------
        Gate
            As of `Calibration.gate`. The best way is chosen by these rows, so the assurance holds for all ways together
            from which it is chosen.
        """
        one = self.best if way is None else self[way]
        if one.confidence is None:
            raise ArgumentError(f"way: {one.name!r} has no probabilities")
        n_ways = 1 if way is not None else max(1, len([other for other in self.ways if other.of != "words"]))
        is_right = one.answers == self.gold
        return find_gate(one.confidence, is_right, target_accuracy, groups=self.groups, n_ways=n_ways)

    def to_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            "n_rows": len(self.gold),
            "n_read": self.n_read,
            "classes": list(self.classes),
            "best": self.best.name,
            "ways": {way.name: {"of": way.of, **dataclasses.asdict(way.figures)} for way in self.ways},
            "notes": list(self.notes),
        }


def evaluate_rows(
    llm: Llama,
    prompts: Iterable[Any],
    gold: Iterable[Any],
    choices: ChoicesLike,
    options: RowOptions,
    *,
    ways: Iterable[str] | None,
    empty: Prompt | None,
    texts: Iterable[str] | None,
    cache: str | PathLike[str] | None,
    n_folds: int,
    **reading: Any,
) -> Evaluated:
    """Evaluate, as `token_trie.evaluate` does."""
    check_counts(2, n_folds=n_folds)
    if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Iterable):
        raise ArgumentError(f"prompts: {type(prompts).__name__} where several belong")
    given = list(prompts)
    if not given:
        raise ArgumentError("prompts: none given")
    words = [_words_of(one) for one in given] if texts is None else list(texts)
    if len(words) != len(given):
        raise ArgumentError(f"texts: {len(words):,} for {len(given):,} rows")
    rows = Rows(llm, given, choices, options, empty, cache, words, n_folds, False, reading)
    chosen = _chosen(ways, rows)
    classes = rows.names
    if len(classes) < 2:
        raise ArgumentError(f"choices: {classes[0]!r} alone, where nothing is to be told apart")
    rows.gold = read_gold(gold, len(given), rows.reader.binding.classes, rows.reader.values)
    rows.groups = numbered([digest_of_prompt(as_asked(rows.reader, one)) for one in given])
    rows.states = any(name in ("fitted", "head") for name in chosen)
    rows.notes += _about(rows.gold, rows.groups, classes, n_folds)
    evaluated = []
    for name, way in chosen.items():
        try:
            found = way.find(rows)
        except CalibrationError as error:
            rows.notes.append(f"{name}: not taken: {error}")
            continue
        figures = figures_of(classes, rows.gold, found.answers, found.probabilities, found.mass, rows.groups)
        evaluated.append(EvaluatedWay(name, way.says, way.of, found.answers, found.probabilities, figures))
    if not evaluated:
        raise CalibrationError("; ".join(rows.notes))
    return Evaluated(
        classes=classes,
        gold=rows.gold,
        texts=tuple(words),
        numbers=tuple(range(len(given))),
        ways=tuple(evaluated),
        notes=tuple(rows.notes),
        n_read=rows.n_read,
        readings=rows.as_given,
        groups=rows.groups,
        n_folds=n_folds,
        fitted=rows.calibrations.get("auto"),
    )


def _chosen(ways: Iterable[str] | None, rows: Rows) -> dict[str, Way]:
    known = OF_QUESTIONS if rows.is_question else OF_PROMPTS
    if ways is None:
        has_prior = rows.is_question or rows.empty is not None
        ways = [name for name in DEFAULT if has_prior or name != "contextual"]
    elif isinstance(ways, str) or not isinstance(ways, Iterable):
        raise ArgumentError(f"ways: {ways!r} where names of ways belong")
    names = list(dict.fromkeys(ways))
    for name in names:
        if name not in known:
            raise ArgumentError(f"ways: {name!r} is none of {', '.join(known)}")
    if not names:
        raise ArgumentError("ways: none given")
    if "contextual" in names and not rows.is_question and rows.empty is None:
        raise ArgumentError("ways: 'contextual' needs the prompt without its content, as empty")
    return {name: known[name] for name in names}


def _about(gold: Ints, groups: Ints, classes: Sequence[str], n_folds: int) -> list[str]:
    """Say what of the rows bears on the figures."""
    notes = []
    counts = np.bincount(gold, minlength=len(classes))
    none = [classes[i] for i in np.flatnonzero(counts == 0).tolist()]
    if none:
        notes.append(f"no row is {_some(none)}")
    pairs = np.unique(np.stack([groups, gold], axis=1), axis=0)
    different = np.bincount(pairs[:, 1], minlength=len(classes))
    few = [classes[i] for i in np.flatnonzero((different > 0) & (different < n_folds)).tolist()]
    if few:
        notes.append(f"fewer than {n_folds} different rows are {_some(few)}: what is fitted has little to go by there")
    n_more = len(groups) - (int(groups.max()) + 1)
    if n_more:
        torn = np.flatnonzero(np.bincount(pairs[:, 0]) > 1)
        torn_rows = np.flatnonzero(np.isin(groups, torn))
        said = f"{n_more:,} rows are there before"
        if len(torn):
            said += f"; {len(torn):,} of these texts with different labels, the first in row {torn_rows[0] + 1}"
        notes.append(said)
    return notes


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5:,} more"


def _words_of(row: Any) -> str:
    if isinstance(row, str):
        return str(row)
    if isinstance(row, Sequence):
        return "\n".join(str(one["content"]) if isinstance(one, dict) and "content" in one else str(one) for one in row)
    return str(row)
