"""Evaluation: metrics of several ways to answer, on rows with gold labels."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from os import PathLike
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np

from token_trie.arrays import Floats, Ints
from token_trie.decisions.calibration import NAMED
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
from token_trie.sets.trie import TokenTrie
from token_trie.trust.calibration import Calibration
from token_trie.trust.fit import KINDS, FitKind, kind_of, own_parts
from token_trie.trust.metrics import Figures, Folds, figures_of, fit_once, folds_of, numbered, softmax, within
from token_trie.trust.rows import (
    DEFAULT_NAME,
    CachedRows,
    Readings,
    RowOptions,
    digest_of_row,
    is_question,
    key_of,
    reader_of,
)


@dataclass(frozen=True, eq=False)
class EvaluatedWay:
    """The answers of one way, and their metrics."""

    name: str
    says: str
    """A description."""
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


def _chosen(ways: Iterable[str] | None, choices: ChoicesLike | Question, empty: Prompt | None) -> dict[str, Method]:
    known = ways_of(is_question=is_question(choices))
    has_prior = is_question(choices) or empty is not None
    if ways is None:
        ways = [name for name in DEFAULT if name in known and (has_prior or not _has_prompts(name))]
    elif isinstance(ways, str) or not isinstance(ways, Iterable):
        raise ArgumentError(f"ways: {ways!r} where names of ways belong")
    names = list(dict.fromkeys(ways))
    if not names:
        raise ArgumentError("ways: none given")
    for name in names:
        if name not in known:
            raise ArgumentError(f"ways: {name!r} is none of {', '.join(known)}")
        if _has_prompts(name) and not has_prior:
            raise ArgumentError(f"ways: {name!r} needs the prompt without its content, as empty")
    return {name: known[name] for name in names}


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


def _words_of(row: Any) -> str:
    if isinstance(row, Sequence) and not isinstance(row, str):
        return "\n".join(str(one["content"]) if isinstance(one, dict) and "content" in one else str(one) for one in row)
    return str(row)


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
        self._chosen = _chosen(ways, choices, empty)
        self.given = listed(prompts, "prompts")
        if not self.given:
            raise ArgumentError("prompts: none given")
        self.texts = [_words_of(one) for one in self.given] if texts is None else list(texts)
        if len(self.texts) != len(self.given):
            raise ArgumentError(f"texts: {len(self.texts):,} for {len(self.given):,} rows")
        self.llm, self.choices, self.options, self.reading = llm, choices, options, reading
        self._empty, self._cache, self.n_folds, self.failed = empty, cache, n_folds, failed
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
        self.folds = folds_of(self.gold, self.groups, n_folds)
        self.notes = _notes_on(self.gold, self.groups, self.classes, n_folds, self.texts)
        self.n_read = 0
        self.read: dict[tuple[RowOptions, str], Readings] = {}  # by options, and the name of a question's calibration
        self.calibrations: dict[str, Calibration] = {}  # by kind
        self._kept: dict[str, CachedRows] = {}

    def answer(self) -> tuple[EvaluatedWay, ...]:
        """Answer in all ways; CalibrationError if none can be taken."""
        ways = []
        for name, way in self._chosen.items():
            try:
                found = way.find(self)
            except CalibrationError as error:
                self.notes.append(f"{name}: not taken: {error}")
                continue
            figures = figures_of(self.classes, self.gold, *found, self.groups)
            ways.append(EvaluatedWay(name, way.says, way.of, *found[:2], figures))
        if not ways:
            raise CalibrationError("; ".join(self.notes))
        return tuple(ways)

    def readings(self, calibration: str = DEFAULT_NAME, **changes: Any) -> Readings:
        """Return the readings with some options changed, and for a question by a named calibration's prior."""
        key = replace(self.options, **changes), calibration if is_question(self.choices) else DEFAULT_NAME
        if key not in self.read:
            self.read[key] = self._readings(self.given, *key)
        return self.read[key]

    @cached_property
    def is_prefix_free(self) -> bool:
        """Whether no choice begins another, so that the end rules longest and any give the same scores.

        Texts are compared without spaces and case, as a tokenizer may add a space or normalize them.
        """
        texts = sorted(unicodedata.normalize("NFKC", text).casefold().strip() for text in self.reader.binding.classes)
        return not isinstance(self.choices, TokenTrie) and not any(b.startswith(a) for a, b in pairwise(texts))

    def mass_of(self, readings: Readings) -> Floats | None:
        """Return the mass; None for a question, whose mass does not show whether an option fits."""
        return None if is_question(self.choices) else readings.mass

    def fitted(self, kind: FitKind) -> Calibration:
        """Return the calibration of a kind, fitted on the labels if it takes them."""
        if kind not in self.calibrations:
            more, has_labels = kind_of(kind).more_rows(self.given), kind_of(kind).takes_labels
            self.calibrations[kind] = Calibration.of(
                self.readings(),
                self.gold if has_labels else None,
                kind=kind,
                n_folds=self.n_folds,
                groups=self.groups if has_labels else None,
                more=self._readings(more, self.options) if more else None,
            )
        return self.calibrations[kind]

    def prior_scores(self, calibration: str) -> Floats:
        """Return the mean scores after the prompts of a named calibration."""
        if self._empty is None:
            raise ArgumentError(f"ways: {calibration!r} needs the prompt without its content, as empty")
        prompts = NAMED[calibration].with_prompt(self._empty).prompts
        scores: Floats = self._readings(prompts, self.options).raw.mean(axis=0)
        return scores

    def _readings(self, given: Sequence[Any], options: RowOptions, calibration: str = DEFAULT_NAME) -> Readings:
        is_own = options == self.options and calibration == DEFAULT_NAME
        reader = self.reader if is_own else reader_of(self.llm, self.choices, options, calibration)
        key = key_of(options, reader.binding, calibration)
        if key not in self._kept:
            kept = self._kept[key] = CachedRows(self._cache, key)
            if kept.problem is not None:
                self.notes.append(kept.problem)
        states = options == self.options and any(way.takes_states for way in self._chosen.values())
        keys = self._keys if is_own and given is self.given else None
        failed = self.failed if given is self.given else None
        try:
            read, n = self._kept[key].read(reader, given, states=states, keys=keys, failed=failed, **self.reading)
        except TokenTrieError as error:
            if given is self.given or error.__cause__ is None:
                raise
            raise CalibrationError(f"of a text that is no row: {error.__cause__}") from error
        self.n_read += n
        return read


class Method(NamedTuple):
    """A way to answer."""

    says: str
    """A description for the report."""
    find: Callable[[EvaluationRows], Answers]
    of: str = "model"
    """model: the model alone; labels: cross-validated fits to labels; words: baselines without the model."""
    takes_states: bool = False
    """Whether it needs hidden states."""


Answers: TypeAlias = tuple[Ints, "Floats | None", "Floats | None"]
"""The answers of all rows, their probabilities and the mass."""


def answers_by(probabilities: Floats, mass: Floats | None = None) -> Answers:
    """Return the most probable answers."""
    return probabilities.argmax(axis=1), probabilities, mass


def _exact(rows: EvaluationRows, **changes: Any) -> Answers:
    read = rows.readings(**changes)
    return answers_by(softmax(read.raw), rows.mass_of(read))


def _ended(rows: EvaluationRows, leaf_end: LeafEnd) -> Answers:
    same = {leaf_end, rows.options.leaf_end} <= {"longest", "any"} and rows.is_prefix_free
    return _exact(rows) if same else _exact(rows, leaf_end=leaf_end)


def _contextual(rows: EvaluationRows, calibration: str = DEFAULT_NAME, **changes: Any) -> Answers:
    read = rows.readings(calibration, **changes)
    weights = read.raw - rows.prior_scores(calibration) if read.contextual is None else read.contextual
    return answers_by(softmax(weights), rows.mass_of(read))


def _fitted(rows: EvaluationRows, kind: FitKind) -> Answers:
    read, found = rows.readings(), rows.fitted(kind)
    if found.held_out is None:  # it needs no labels
        return answers_by(softmax(found.log_probabilities(read)), rows.mass_of(read))
    assert found.held_out.probabilities is not None  # it does not come from a file
    return answers_by(found.held_out.probabilities, rows.mass_of(read))


def _greedy(rows: EvaluationRows) -> Answers:
    options = rows.options
    reading = {name: value for name, value in rows.reading.items() if name != "progress"}
    decisions = choose_many(
        rows.llm,
        rows.given,
        rows.choices,
        mode="greedy",
        leading_space=options.leading_space,
        on_error="raise" if rows.failed is None else "return",
        **reading,
    )
    if rows.failed is not None:
        found = list(decisions)
        rows.failed |= {i: one for i, one in enumerate(found) if isinstance(one, TokenTrieError)}
        if rows.failed:
            raise next(iter(rows.failed.values()))
        decisions = iter(found)
    at = {text: i for i, text in enumerate(rows.reader.binding.classes)}
    answers = np.array([at[decision.text] for decision in decisions], np.int64)
    rows.n_read += len(answers)
    return answers, None, None


def _majority(rows: EvaluationRows) -> Answers:
    # Counted over all rows: the majority of the other folds is rarer in the own fold, so it would do too badly.
    n, counts = len(rows.gold), np.bincount(rows.gold, minlength=len(rows.reader.values))
    return answers_by(np.tile(counts / n, (n, 1)))


def _words(rows: EvaluationRows) -> Answers:
    n_classes = len(rows.reader.values)
    found = word_probabilities(rows.texts, rows.gold, rows.groups, n_classes, rows.folds) if rows.folds else None
    if found is None:
        raise CalibrationError("rows of one class, or without words, tell nothing by their words")
    return answers_by(found)


_CS = (1.0, 10.0, 100.0)
"""Inverse strengths of the regularization of logistic regression."""


@one_thread()
def word_probabilities(texts: Sequence[str], gold: Ints, groups: Ints, n_classes: int, folds: Folds) -> Floats | None:
    """Return cross-validated probabilities of rows by their words; None if rows have no words.

    For each fold, the strength of the regularization is chosen on the other folds, by the lowest log loss.
    """
    _, own, _ = own_parts(texts)  # a long common beginning would outweigh the words of a row
    extraction: Any = import_sklearn("feature_extraction.text")
    linear: Any = import_sklearn("linear_model")
    metrics: Any = import_sklearn("metrics")
    labels = np.arange(n_classes)

    def fit(train: Ints, others: Ints) -> Floats:
        """Return probabilities of the other rows, shape (n_strengths, n_others, n_classes)."""
        counted = extraction.TfidfVectorizer(sublinear_tf=True)
        words = counted.fit_transform([own[i] for i in train])
        unseen = counted.transform([own[i] for i in others])
        found = np.zeros((len(_CS), len(others), n_classes))
        for p, c in zip(found, _CS, strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about few rows of a class
                made = linear.LogisticRegression(C=c, max_iter=1000).fit(words, gold[train])
            p[:, made.classes_] = made.predict_proba(unseen)
        return found

    predict = fit_once(len(gold), fit)
    probabilities = np.zeros((len(gold), n_classes))
    try:
        for i, (train, test) in enumerate(folds):
            inner = within(folds, i, gold, groups)
            if not inner:
                return None
            found = np.concatenate([predict(some, judged) for some, judged in inner], axis=1)
            judged_gold = gold[np.concatenate([judged for _, judged in inner])]
            lost = [metrics.log_loss(judged_gold, p, labels=labels) for p in found]
            probabilities[test] = predict(train, test)[np.argmin(lost)]
    except ValueError as error:
        if "empty vocabulary" in str(error):
            return None
        raise
    return probabilities


WAYS = {
    "exact": Method("whole answers, by the model's own probability", _exact),
    "greedy": Method("token by token", _greedy),
    "contextual": Method("less what a prompt without content gives", _contextual),
    "fitted": Method(kind_of("auto").says, partial(_fitted, kind="auto"), "labels", takes_states=True),
    "majority": Method("the most frequent class of these rows", _majority, "words"),
    "words": Method("TF-IDF and logistic regression, by labels", _words, "words"),
}
DEFAULT = ("exact", "contextual", "mean", "batch", "fitted", "majority", "words")


def ways_of(*, is_question: bool) -> dict[str, Method]:
    """Return all ways by name: `WAYS`, and these with each other prior, kind of fit, end rule or form."""
    ways = {name: way for name, way in WAYS.items() if not (is_question and name == "greedy")}
    for name in filter(_has_prompts, NAMED):
        ways.setdefault(name, Method(f"calibrated {NAMED[name].says}", partial(_contextual, calibration=name)))
    for kind, fit in KINDS.items():
        of = "labels" if fit.takes_labels else "model"
        ways.setdefault(kind, Method(fit.says, partial(_fitted, kind=kind), of, fit.takes_states))
    if not is_question:
        return ways | {
            end: Method(f"exact, leaf_end {end!r}", partial(_ended, leaf_end=end)) for end in get_args(LeafEnd)
        }
    ways["batch"] = ways.pop("mean")  # as `decide_many` takes the mean of scores, not of probabilities
    forms = {form: Method(f"contextual, form {form!r}", partial(_contextual, form=form)) for form in FORMS}
    orders = Method("contextual, form 'listed', in four orders", partial(_contextual, form="listed", orders=4))
    return ways | forms | {"orders": orders}


def _has_prompts(name: str) -> bool:
    """Whether a way subtracts the scores after prompts without content."""
    return name in NAMED and bool(NAMED[name].prompts)
