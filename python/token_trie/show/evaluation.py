"""`evaluate`, with its results as a table and as a picture."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from token_trie.arrays import Ints
from token_trie.errors import ArgumentError, CalibrationError
from token_trie.native.core import Llama
from token_trie.native.files import write_whole
from token_trie.native.options import takes
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.show.trie import Line, as_rich, as_text, clip, printable
from token_trie.trust.calibration import Calibration
from token_trie.trust.evaluate import EvaluatedWay, EvaluationRows
from token_trie.trust.gate import Gate, find_gate
from token_trie.trust.rows import RowOptions

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from typing_extensions import Unpack

    from token_trie.trust.rows import RowKeywords


@dataclass(frozen=True)
class WrongRow:
    """A row that was answered wrongly."""

    row: int
    """The number of the row."""
    text: str
    gold: str
    answer: str
    confidence: float | None
    """The probability of the answer."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How good several ways to answer are, on the same rows; `print` draws a table, and rich draws it in color."""

    classes: tuple[str, ...]
    gold: Ints = field(repr=False)
    """Shape (n_rows,): the right answers, as positions of classes."""
    texts: tuple[str, ...] = field(repr=False)
    """The texts of the rows."""
    numbers: tuple[int, ...] = field(repr=False)
    """The numbers of the rows: positions, or in a table from 1 on."""
    ways: tuple[EvaluatedWay, ...]
    """In the requested order."""
    notes: tuple[str, ...]
    """Remarks on the figures: ways that failed, duplicates, classes without rows."""
    n_read: int
    """Number of rows that the model has read, without cached rows and duplicates."""
    groups: Ints = field(repr=False)
    """Shape (n_rows,): equal rows have the same number."""
    calibrations: Mapping[str, Calibration]
    """The calibrations of the ways that were fitted on labels, on all rows, by their kind. The gate of each is that
    of `gate`."""
    n_ways: int
    """Number of ways that take the model, from which the best was chosen."""

    @classmethod
    def of(cls, rows: EvaluationRows) -> Evaluation:
        """Answer rows in all ways; CalibrationError if none can be taken."""
        ways = rows.answer()  # first, because it adds notes
        n_ways = max(1, len([way for way in ways if way.of != "words"]))
        return cls(
            classes=rows.classes,
            gold=rows.gold,
            texts=tuple(rows.texts),
            numbers=tuple(range(len(rows.given))),
            ways=ways,
            notes=tuple(rows.notes),
            n_read=rows.n_read,
            groups=rows.groups,
            calibrations={name: one.chosen_from(n_ways) for name, one in rows.calibrations.items()},
            n_ways=n_ways,
        )

    def __getitem__(self, name: str) -> EvaluatedWay:
        """Return a way by its name; KeyError if there is none."""
        for way in self.ways:
            if way.name == name:
                return way
        raise KeyError(name)

    @property
    def best(self) -> EvaluatedWay:
        """The model's way with the lowest log loss; if no way has probabilities, the most accurate."""
        own = [way for way in self.ways if way.of != "words"] or list(self.ways)
        sure = [way for way in own if way.figures.log_loss is not None]
        if sure:
            return min(sure, key=lambda way: way.figures.log_loss or 0.0)
        return max(own, key=lambda way: way.figures.accuracy)

    @property
    def calibration(self) -> Calibration:
        """The calibration with the lowest log loss on held-out rows; CalibrationError if none was fitted on labels."""
        of_labels = [way for way in self.ways if way.name in self.calibrations]
        if not of_labels:
            notes = "".join(f"; {note}" for note in self.notes)
            raise CalibrationError(f"calibration: no way was taken that is fitted on labels, such as bias{notes}")
        return self.calibrations[min(of_labels, key=lambda way: way.figures.log_loss or 0.0).name]

    @property
    def wrong(self) -> tuple[WrongRow, ...]:
        """The rows that the best way answers wrongly, the most confident first."""
        return self.wrong_by(self.best.name)

    def wrong_by(self, name: str) -> tuple[WrongRow, ...]:
        """Return the rows that a way answers wrongly, the most confident first."""
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
        """Find the lowest confidence from which a way, by default the best, reaches a target accuracy.

        A way is chosen on these rows, so the assurance covers all that it was chosen from. Of a way that is fitted on
        labels, this is the gate of its calibration, also after it was saved.
        """
        one = self.best if way is None else self[way]
        if one.confidence is None:
            raise ArgumentError(f"way: {one.name!r} has no probabilities")
        if one.name in self.calibrations:
            return self.calibrations[one.name].gate(target_accuracy)
        is_right = one.answers == self.gold
        return find_gate(one.confidence, is_right, target_accuracy, groups=self.groups, n_ways=self.n_ways)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, for JSON."""
        return {
            "n_rows": len(self.gold),
            "n_read": self.n_read,
            "classes": list(self.classes),
            "best": self.best.name,
            "ways": {way.name: {"of": way.of, **asdict(way.figures)} for way in self.ways},
            "notes": list(self.notes),
        }

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw the reliability of the ways, and their risk by coverage, into a picture.

        It needs matplotlib (extra ``plot``); the file's ending tells the format, such as .png or .svg. ArgumentError
        for an unknown one.
        """
        figure = import_figure()(figsize=(11, 5), layout="constrained")
        reliability, risk = figure.subplots(1, 2)
        reliability.plot([0, 1], [0, 1], color="0.7", linestyle="--")
        for way in self.ways:
            if way.probabilities is None:
                continue
            bins, curve = way.figures.reliability, way.figures.coverage
            reliability.plot([one.confidence for one in bins], [one.accuracy for one in bins], "o-", label=way.name)
            shares = [one.n / len(self.gold) for one in curve]
            risk.plot(shares, [1 - one.accuracy for one in curve], drawstyle="steps-post", label=way.name)
        reliability.set(
            xlabel="confidence", ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1), title="Reliability"
        )
        risk.set(
            xlabel="coverage: share of accepted rows", ylabel="risk: share of wrong ones", xlim=(0, 1), ylim=(0, None)
        )
        risk.set_title("Risk by coverage, the most confident first")
        if risk.lines:
            risk.legend()
        file = io.BytesIO()
        try:
            figure.savefig(file, format=Path(path).suffix[1:] or "png", dpi=150)
        except ValueError as error:
            raise ArgumentError(f"plot: {error}") from error
        write_whole(Path(path), file.getbuffer())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in color."""
        yield from as_rich(draw_evaluation(self))

    def __str__(self) -> str:
        return as_text(draw_evaluation(self))


@takes(RowOptions)
def evaluate(
    llm: Llama,
    prompts: Iterable[Any],
    gold: Iterable[Any],
    choices: ChoicesLike,
    *,
    ways: Iterable[str] | None = None,
    empty: Prompt | None = None,
    texts: Iterable[str] | None = None,
    n_folds: int = 10,
    cache: str | PathLike[str] | None = None,
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
    **options: Unpack[RowKeywords],
) -> Evaluation:
    """Measure how good a model's answers are, on rows whose answers are known.

    Several ways to answer are compared. The model evaluates each row once, and most ways are computed from these
    scores. The ways named after an end rule or a form, "orders" and "greedy" evaluate more. What is fitted on labels is
    judged by cross-validation: each row by a fit on other rows. This needs scikit-learn (extra ``calibration``).

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. Its own context is not touched.
    prompts : iterable
        The rows: prompts as for `choose`, or, with a question, states as for `decide`.
    gold : iterable
        The right answer for each row: a text or a value of the choices.
    choices : choices as for `choose`, Choice, Predicate or Score
        The answers, or a question.
    ways : iterable of str, optional
        The ways to compare. exact: by the model's own probability. greedy: token by token, for prompts. contextual:
        less what a prompt without content gives. batch, temperature, bias, head: by a `Calibration` of this kind. Two
        baselines without the model: majority, the most frequent class, and words, TF-IDF with logistic regression. For
        prompts, exact with each `leaf_end` by its name; for a question, contextual with each form by its name, and
        orders, the form listed in four orders. By default exact, contextual, batch, bias, head, majority and words.
    empty : str, sequence of int, or sequence of chat messages, optional
        The prompt without its content, which the way contextual needs; a question has its own.
    texts : iterable of str, optional
        The texts of the rows, for the way words and for the report; by default the prompts.
    n_folds : int
        Number of folds of the cross-validation.
    cache : path, optional
        A folder that keeps the scores of rows, but not the rows themselves. No row is then evaluated again for another
        metric, or when an interrupted run is started again.
    progress, n_parallel, n_ctx
        As for `choose_many`.
    **options
        Those of `RowOptions`.

    Returns
    -------
    Evaluation

    Raises
    ------
    ArgumentError
        A label is not one of the choices (with its position), options do not fit together, or scikit-learn is missing.
    ArgumentError, VocabularyError, ContextError
        An error of a prompt, with its position.
    """
    read = RowOptions.read("evaluate", options)
    rows = EvaluationRows(
        llm,
        prompts,
        gold,
        choices,
        read,
        ways=ways,
        empty=empty,
        texts=texts,
        cache=cache,
        n_folds=n_folds,
        progress=progress,
        n_parallel=n_parallel,
        n_ctx=n_ctx,
    )
    return Evaluation.of(rows)


def _share(p: float | None, digits: int = 1) -> str:
    return "–" if p is None else f"{100 * p:.{digits}f}"


def _number(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.3f}"


def draw_evaluation(evaluated: Evaluation) -> Iterator[Line]:
    """Draw a table with a row for each way, and remarks below it."""
    best, ways = evaluated.best.name, evaluated.ways
    rows = [_TITLES, *(_figures(way) for way in ways)]
    if all(way.figures.unfit is None for way in ways):
        rows = [row[:-1] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    styles = ["bold", *("bold green" if way.name == best else "dim" if way.of == "words" else "" for way in ways)]
    for row, style in zip(rows, styles, strict=True):
        figures = "".join(f" {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        yield [(f"{row[0]:<{widths[0]}}", style), (figures, "bold" if row is rows[0] else "")]
    yield []
    n, n_classes = len(evaluated.gold), len(evaluated.classes)
    yield [(f"{n:,} rows, {n_classes:,} choices; {evaluated.n_read:,} rows read by the model", "dim")]
    fitted = [way.name for way in ways if way.of == "labels"]
    if fitted:
        yield [(f"{', '.join(fitted)}: each row is judged by a calibration that was fitted on others", "dim")]
    for note in evaluated.notes:
        yield [(printable(note), "yellow")]
    wrong = evaluated.wrong[:3]
    if wrong:
        yield [(f"surest mistakes of {best}:", "")]
    for one in wrong:
        sure = "" if one.confidence is None else f" {_share(one.confidence)} %"
        yield [
            (f"  row {one.row}: ", ""),
            (clip(one.answer, 32), "bold"),
            (f"{sure} where it is ", ""),
            (clip(one.gold, 32), "bold"),
            (f"  {clip(one.text, 60)}", "dim"),
        ]


_TITLES = ["way", "right %", "95 %", "bal. %", "F1", "log loss", "Brier", "ECE", "risk", "unfit %"]


def _figures(way: EvaluatedWay) -> list[str]:
    figures = way.figures
    low, high = figures.interval
    return [
        way.name,
        _share(figures.accuracy),
        f"{_share(low, 0)}–{_share(high, 0)}",
        _share(figures.balanced_accuracy),
        _number(figures.macro_f1),
        _number(figures.log_loss),
        _number(figures.brier),
        _number(figures.ece),
        _number(figures.risk_area),
        _share(figures.unfit),
    ]


def import_figure() -> Any:
    """Import the class of figures; ArgumentError, with the extra to install, without matplotlib."""
    try:
        figure: type = import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise ArgumentError(f"plot: this needs matplotlib: pip install 'token-trie[plot]' ({error})") from error
    return figure
