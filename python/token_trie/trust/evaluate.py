"""Ways to answer, on rows with gold labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import Any, TypeAlias, get_args

import numpy as np

from token_trie.arrays import Floats, Ints
from token_trie.decisions.gold import import_sklearn, listed, one_thread, read_gold
from token_trie.decisions.many import choose_many
from token_trie.errors import ArgumentError, CalibrationError, TokenTrieError
from token_trie.llama.query import LeafEnd
from token_trie.native.core import Llama
from token_trie.native.options import check_counts
from token_trie.questions.options import FORMS
from token_trie.questions.question import Question
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.trust.calibration import Calibration
from token_trie.trust.fit import FitKind
from token_trie.trust.metrics import Figures, figures_of, folds_of, numbered, softmax
from token_trie.trust.rows import CachedRows, Readings, RowOptions, digest_of_row, is_question, key_of, reader_of


@dataclass(frozen=True, eq=False)
class EvaluatedWay:
    """The answers of one way, and their metrics."""

    name: str
    of: str
    """model: the model alone. labels: fits to labels; each row is answered by a fit on other rows. words: a baseline
    from labels, without the model."""
    answers: Ints = field(repr=False)
    """Positions of classes, shape (n_rows,)."""
    probabilities: Floats | None = field(repr=False)
    """Shape (n_rows, n_classes); None for greedy answers."""
    figures: Figures = field(repr=False)

    @property
    def confidence(self) -> Floats | None:
        """The probability of each answer."""
        return None if self.probabilities is None else self.probabilities[np.arange(len(self.answers)), self.answers]


class EvaluationRows:
    """The rows of an evaluation, which the model reads once for each set of options.

    Arguments are those of `token_trie.evaluate`; `failed` is that of `CachedRows.read`, and `reading` are those of
    `RowReader.read`.
    """

    def __init__(
        self,
        llm: Llama,
        prompts: Iterable[Any],
        gold: Iterable[Any],
        choices: ChoicesLike | Question,
        options: RowOptions,
        *,
        ways: Iterable[str] | None,
        empty: Prompt | None,
        texts: Iterable[str] | None,
        cache: str | PathLike[str] | None,
        n_folds: int,
        failed: dict[int, TokenTrieError] | None = None,
        **reading: Any,
    ) -> None:
        check_counts(2, n_folds=n_folds)
        self._ways = _chosen(ways, is_question(choices), empty)
        self.given = listed(prompts, "prompts")
        if not self.given:
            raise ArgumentError("prompts: none given")
        self.texts = [_words_of(one) for one in self.given] if texts is None else list(texts)
        if len(self.texts) != len(self.given):
            raise ArgumentError(f"texts: {len(self.texts):,} for {len(self.given):,} rows")
        self.llm, self.choices, self.options, self.reading = llm, choices, options, reading
        self.empty, self._cache, self.n_folds, self.failed = empty, cache, n_folds, failed
        self.reader = reader_of(llm, choices, options)
        named, texts_of = self.reader.values, self.reader.binding.classes
        self.classes = tuple(  # for a question the given options, if they are texts
            value if is_question(choices) and isinstance(value, str) else text
            for value, text in zip(named, texts_of, strict=True)
        )
        if len(self.classes) < 2:
            raise ArgumentError(f"choices: {self.classes[0]!r} is the only one, so that there is nothing to decide")
        self.gold = read_gold(gold, len(self.given), texts_of, named)
        self._keys = [digest_of_row(self.reader, row) for row in self.given]
        self.groups = numbered(self._keys)
        self.notes = _notes_on(self.gold, self.groups, self.classes, n_folds, self.texts)
        self.n_read = 0
        self.calibrations: dict[str, Calibration] = {}
        self._kept: dict[str, CachedRows] = {}

    def answer(self) -> tuple[EvaluatedWay, ...]:
        """Answer in all ways; CalibrationError if none can be taken."""
        ways = []
        for name, way in self._ways.items():
            try:
                found = way(self)
            except CalibrationError as error:
                self.notes.append(f"{name}: not taken: {error}")
                continue
            figures = figures_of(len(self.classes), self.gold, *found, self.groups)
            of = "labels" if name in _FITTED else "words" if name in _BASELINES else "model"
            ways.append(EvaluatedWay(name, of, *found[:2], figures))
        if not ways:
            raise CalibrationError("; ".join(self.notes))
        return tuple(ways)

    def readings(self, **changes: Any) -> Readings:
        """Return the readings with some options changed."""
        return self.read(self.given, replace(self.options, **changes))

    def read(self, given: Sequence[Any], options: RowOptions) -> Readings:
        """Read the rows, or other prompts, whose errors are CalibrationErrors."""
        is_rows = given is self.given
        reader = self.reader if options == self.options else reader_of(self.llm, self.choices, options)
        key = key_of(options, reader.binding)
        if key not in self._kept:
            kept = self._kept[key] = CachedRows(self._cache, key)
            if kept.problem is not None:
                self.notes.append(kept.problem)
        how: dict[str, Any] = {
            "states": options == self.options and "head" in self._ways,
            "keys": self._keys if is_rows and reader is self.reader else None,
            "failed": self.failed if is_rows else None,
        }
        try:
            read, n = self._kept[key].read(reader, given, **how, **self.reading)
        except TokenTrieError as error:
            if is_rows or error.__cause__ is None:
                raise
            raise CalibrationError(f"of a text that is no row: {error.__cause__}") from error
        self.n_read += n
        return read

    def answers_by(self, probabilities: Floats, read: Readings | None = None) -> Answers:
        """Return the most probable answers; the mass of a question does not show whether an option fits."""
        mass = None if read is None or is_question(self.choices) else read.mass
        return probabilities.argmax(axis=1), probabilities, mass


def _words_of(row: Any) -> str:
    if isinstance(row, Sequence) and not isinstance(row, str):
        return "\n".join(str(one["content"]) if isinstance(one, dict) and "content" in one else str(one) for one in row)
    return str(row)


def _notes_on(gold: Ints, groups: Ints, classes: Sequence[str], n_folds: int, texts: Sequence[str]) -> list[str]:
    """Return remarks on the rows that matter for the figures."""
    notes = []
    counts = np.bincount(gold, minlength=len(classes))
    none = [classes[i] for i in np.flatnonzero(counts == 0).tolist()]
    if none:
        notes.append(f"no row is {_some(none)}")
    pairs = np.unique(np.stack([groups, gold], axis=1), axis=0)
    different = np.bincount(pairs[:, 1], minlength=len(classes))
    few = [classes[i] for i in np.flatnonzero((different > 0) & (different < n_folds)).tolist()]
    if few:
        notes.append(f"fewer than {n_folds} different rows are {_some(few)}: give more of them, if you fit")
    n_more = len(groups) - (int(groups.max()) + 1)
    if n_more:
        torn = np.flatnonzero(np.bincount(pairs[:, 0]) > 1)
        said = f"{n_more:,} rows are there before"
        if len(torn):
            first = texts[int(np.isin(groups, torn).argmax())]
            said += f"; {len(torn):,} of these texts with different labels, the first {first[:80]!r}"
        notes.append(said)
    return notes


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5:,} more"


Answers: TypeAlias = tuple[Ints, "Floats | None", "Floats | None"]
"""The answers of all rows, their probabilities and the mass."""
Method: TypeAlias = "Callable[[EvaluationRows], Answers]"


def _exact(rows: EvaluationRows, **changes: Any) -> Answers:
    read = rows.readings(**changes)
    return rows.answers_by(softmax(read.raw), read)


def _contextual(rows: EvaluationRows, **changes: Any) -> Answers:
    read = rows.readings(**changes)
    weights = read.raw if read.contextual is None else read.contextual
    if not is_question(rows.choices):
        weights = weights - rows.read([rows.empty], rows.options).raw[0]
    return rows.answers_by(softmax(weights), read)


def _batch(rows: EvaluationRows) -> Answers:
    read = rows.readings()
    found = Calibration.of(read, None, "batch", groups=rows.groups)
    return rows.answers_by(softmax(found.log_probabilities(read)), read)


def _fitted(rows: EvaluationRows, kind: FitKind) -> Answers:
    read = rows.readings()
    found = rows.calibrations[kind] = Calibration.of(read, rows.gold, kind, rows.n_folds, rows.groups)
    assert found.held_out is not None  # because there are labels
    assert found.held_out.probabilities is not None  # because it does not come from a file
    return rows.answers_by(found.held_out.probabilities, read)


def _greedy(rows: EvaluationRows) -> Answers:
    decisions = choose_many(
        rows.llm,
        rows.given,
        rows.choices,
        mode="greedy",
        leading_space=rows.options.leading_space,
        on_error="raise" if rows.failed is None else "return",
        **{name: value for name, value in rows.reading.items() if name != "progress"},
    )
    found = list(decisions)
    if rows.failed is not None:
        rows.failed |= {i: one for i, one in enumerate(found) if isinstance(one, TokenTrieError)}
        if rows.failed:
            raise next(iter(rows.failed.values()))
    at = {text: i for i, text in enumerate(rows.reader.binding.classes)}
    rows.n_read += len(found)
    return np.array([at[decision.text] for decision in found], np.int64), None, None


def _majority(rows: EvaluationRows) -> Answers:
    # Counted over all rows: the majority of the other folds is rarer in the own fold, so it would do too badly.
    n, counts = len(rows.gold), np.bincount(rows.gold, minlength=len(rows.classes))
    return rows.answers_by(np.tile(counts / n, (n, 1)))


_NOT_ALL = 1 - 1e-9
"""Largest share of rows that have a word: one of a prompt around all rows would outweigh their own."""


@one_thread()
def _words(rows: EvaluationRows) -> Answers:
    """Answer each row by its words, with TF-IDF and logistic regression on the other folds."""
    text: Any = import_sklearn("feature_extraction.text")
    linear: Any = import_sklearn("linear_model")
    selection: Any = import_sklearn("model_selection")
    made = import_sklearn("pipeline").make_pipeline(
        text.TfidfVectorizer(sublinear_tf=True, max_df=_NOT_ALL), linear.LogisticRegression(C=10.0, max_iter=1000)
    )
    probabilities = np.zeros((len(rows.gold), len(rows.classes)))
    there, gold = np.unique(rows.gold, return_inverse=True)
    folds = folds_of(gold, rows.groups, rows.n_folds)
    if not folds:
        raise CalibrationError("rows of one class tell nothing by their words")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about few rows of a class
            found = selection.cross_val_predict(made, rows.texts, gold, cv=folds, method="predict_proba")
    except ValueError as error:
        if "empty vocabulary" not in str(error) and "no terms remain" not in str(error):
            raise
        raise CalibrationError("rows without words of their own tell nothing by them") from error
    probabilities[:, there] = found
    return rows.answers_by(probabilities)


_FITTED: dict[str, Method] = {kind: partial(_fitted, kind=kind) for kind in ("temperature", "bias", "head")}
_BASELINES: dict[str, Method] = {"majority": _majority, "words": _words}
_EITHER: dict[str, Method] = {"exact": _exact, "contextual": _contextual, "batch": _batch} | _FITTED | _BASELINES
_OF_PROMPTS: dict[str, Method] = {"greedy": _greedy} | {end: partial(_exact, leaf_end=end) for end in get_args(LeafEnd)}
_OF_QUESTIONS: dict[str, Method] = {
    **{form: partial(_contextual, form=form) for form in FORMS},
    "orders": partial(_contextual, form="listed", orders=4),
}
DEFAULT = ("exact", "contextual", "batch", "bias", "head", "majority", "words")


def ways_of(*, is_question: bool) -> dict[str, Method]:
    """Return all ways by name."""
    return _EITHER | (_OF_QUESTIONS if is_question else _OF_PROMPTS)


def _chosen(ways: Iterable[str] | None, is_question: bool, empty: Prompt | None) -> dict[str, Method]:
    known = ways_of(is_question=is_question)
    has_prior = is_question or empty is not None
    if ways is None:
        ways = [name for name in DEFAULT if has_prior or name != "contextual"]
    elif isinstance(ways, str) or not isinstance(ways, Iterable):
        raise ArgumentError(f"ways must be a list of names of ways, not {ways!r}")
    names = list(dict.fromkeys(ways))
    if not names:
        raise ArgumentError("ways: none given")
    for name in names:
        if name not in known:
            raise ArgumentError(f"ways must be among {', '.join(known)}, not {name!r}")
        if name == "contextual" and not has_prior:
            raise ArgumentError("ways: 'contextual' needs the prompt without its content, as empty")
    return {name: known[name] for name in names}
