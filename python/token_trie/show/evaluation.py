"""`evaluate`, with its results as a table in a terminal."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from token_trie.arrays import Ints
from token_trie.errors import ArgumentError, CalibrationError
from token_trie.native.core import Llama
from token_trie.native.options import takes
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.show.trie import clip, percent, printable
from token_trie.trust.calibration import Calibration
from token_trie.trust.evaluate import EvaluatedWay, EvaluationRows
from token_trie.trust.gate import Gate, find_gate
from token_trie.trust.metrics import N_BINS, Figures, Point
from token_trie.trust.rows import DEFAULT_NAME, Readings, RowOptions

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from typing_extensions import Unpack

    from token_trie.trust.rows import RowKeywords


SIZE, LEFT, BOTTOM = 280.0, 40.0, 34.0
"""Pixels: the side of a diagram, and the margins to the left of it and below it."""
N_WRONG, N_CONFUSED, N_MATRIX, N_POINTS = 100, 12, 25, 1000
"""Maximum numbers of wrong rows, confusions, classes of a drawn matrix, and points of a curve."""


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
    """How good answers are, for several ways to answer, on the same rows; rich can print it and `html` can write it."""

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
    readings: Readings | None = field(repr=False)
    """The readings with the given options."""
    groups: Ints = field(repr=False)
    """Shape (n_rows,): equal rows have the same number."""
    n_folds: int
    fitted: Mapping[str, Calibration]
    """The calibrations of the ways that were fitted, by their kind."""

    @classmethod
    def of(cls, rows: EvaluationRows) -> Evaluation:
        """Answer rows in all ways; CalibrationError if none can be taken."""
        ways = rows.answer()  # first, because it adds notes
        return cls(
            classes=rows.classes,
            gold=rows.gold,
            texts=tuple(rows.texts),
            numbers=tuple(range(len(rows.given))),
            ways=ways,
            notes=tuple(rows.notes),
            n_read=rows.n_read,
            readings=rows.read.get((rows.options, DEFAULT_NAME)),
            groups=rows.groups,
            n_folds=rows.n_folds,
            fitted=dict(rows.calibrations),
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

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration on all rows of the best way, if labels fit it, or else of the kind that is best held out.

        CalibrationError if the rows do not allow one.
        """
        for kind in (self.best.name, "auto"):
            found = self.fitted.get(kind)
            if found is not None and found.held_out is not None:
                return found
        if self.readings is None:
            raise CalibrationError("calibration: no way was taken that reads the rows; take fitted")
        return Calibration.of(self.readings, self.gold, n_folds=self.n_folds, groups=self.groups)

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

        The best way was chosen on these rows, so its assurance covers all ways that it was chosen from.
        """
        one = self.best if way is None else self[way]
        if one.confidence is None:
            raise ArgumentError(f"way: {one.name!r} has no probabilities")
        n_ways = 1 if way is not None else max(1, len([other for other in self.ways if other.of != "words"]))
        is_right = one.answers == self.gold
        return find_gate(one.confidence, is_right, target_accuracy, groups=self.groups, n_ways=n_ways)

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

    def html(self) -> str:
        """Return a page in one file, which loads nothing from elsewhere.

        For each way it shows the reliability diagram, the accuracy by the share of rows that are decided, with a slider
        for the confidence, the confusion matrix, and the wrong rows, those with the highest confidence first.
        """
        script = Path(__file__).with_name("evaluation.js").read_text(encoding="utf-8")
        allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        ways = [_way(self, way) for way in self.ways]
        points = [[[p.confidence, p.n, p.accuracy] for p in way["points"]] for way in ways]
        data = json.dumps({"n": len(self.gold), "points": points, "size": SIZE, "left": LEFT})
        page: str = _page().render(
            e=self,
            ways=ways,
            best=self.best,
            tells_unfit=any(way.figures.unfit is not None for way in self.ways),
            script=script,
            allowed=allowed,
            data=data,
            size=SIZE,
            left=LEFT,
            bar_width=SIZE / N_BINS - 3,
            width=LEFT + SIZE + 12,
            height=SIZE + BOTTOM + 12,
            n_wrong=N_WRONG,
        )
        return page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw a table with a row for each way, and remarks below it."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column("way", no_wrap=True)
        titles = ["right %", "95 %", "bal. %", "F1", "log loss", "Brier", "ECE", "risk"]
        titles += ["unfit %"] if any(way.figures.unfit is not None for way in self.ways) else []
        for title in titles:
            table.add_column(title, justify="right", no_wrap=True)
        best = self.best.name
        for way in self.ways:
            figures = way.figures
            low, high = figures.interval
            cells: list[RenderableType] = [
                Text(way.name, "bold green" if way.name == best else "dim" if way.of == "words" else ""),
                share(figures.accuracy),
                f"[dim]{share(low, 0)}–{share(high, 0)}[/]",
                share(figures.balanced_accuracy),
                number(figures.macro_f1),
                number(figures.log_loss),
                number(figures.brier),
                number(figures.ece),
                number(figures.risk_area),
                share(figures.unfit),
            ]
            table.add_row(*cells[: len(titles) + 1])
        yield table
        yield ""
        n, n_classes = len(self.gold), len(self.classes)
        yield Text(f"{n:,} rows, {n_classes:,} choices; {self.n_read:,} rows read by the model", "dim")
        fitted = [way.name for way in self.ways if way.of == "labels"]
        if fitted:
            yield Text(f"{', '.join(fitted)}: each row is judged by a calibration that was fitted on others", "dim")
        for note in self.notes:
            yield Text(printable(note), "yellow")
        wrong = self.wrong[:3]
        if wrong:
            yield Text(f"surest mistakes of {best}:")
        for row in wrong:
            sure = "" if row.confidence is None else f" {share(row.confidence)} %"
            answer, gold = (clip(row.answer, 32), "bold"), (clip(row.gold, 32), "bold")
            text = clip(row.text, 60), "dim"
            yield Text.assemble(f"  row {row.row}: ", answer, sure, " where it is ", gold, "  ", text)


@cache
def _page() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, clip=clip, comma="{:,}".format, three="{:.3f}".format)
    return environment.get_template("evaluation.html")


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
    scores. The ways named after an end rule or a form, "orders", "greedy" and "domain" evaluate more. What is fitted on
    labels is judged by cross-validation: each row by a fit on other rows. This needs scikit-learn (extra
    ``calibration``).

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
        less what a prompt without content gives. fitted: by a `Calibration` fitted on labels. Two baselines without the
        model: majority, the most frequent class, and words, TF-IDF with logistic regression. With other options: each
        kind of `Calibration` by its name; for prompts, exact with each `leaf_end` by its name; for a question,
        contextual with each form by its name, and orders, the form listed in four orders. By default exact, contextual,
        mean (of prompts), batch, fitted, majority and words.
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


def share(p: float | None, digits: int = 1) -> str:
    """Return a share in percent, without the sign."""
    return "–" if p is None else f"{100 * p:.{digits}f}"


def number(figure: float | None) -> str:
    """Return a number with three decimals."""
    return "–" if figure is None else f"{figure:.3f}"


def _way(evaluated: Evaluation, way: EvaluatedWay) -> dict[str, Any]:
    figures = way.figures
    points = _thinned(figures.coverage)
    matrix = np.array(figures.confusion)
    wrong = evaluated.wrong_by(way.name)
    return {
        "name": way.name,
        "says": way.says,
        "of": way.of,
        "f": figures,
        "bars": _bars(figures),
        "points": points,
        "matrix": _matrix(evaluated.classes, matrix) if len(matrix) <= N_MATRIX else [],
        "confused": _confused(evaluated.classes, matrix),
        "wrong": wrong[:N_WRONG],
        "n_wrong": len(wrong),
    }


def _bars(figures: Figures) -> list[tuple[float, Point]]:
    """Return the left edge of the bar of each bin, and its point."""
    width = SIZE / N_BINS
    bins = [math.ceil(point.confidence * N_BINS - 1e-9) - 1 for point in figures.reliability]
    return [
        (LEFT + width * min(N_BINS - 1, max(0, at)) + 1.5, point)
        for at, point in zip(bins, figures.reliability, strict=True)
    ]


def _thinned(points: tuple[Point, ...]) -> list[Point]:
    if len(points) <= N_POINTS:
        return list(points)
    kept = np.unique(np.linspace(0, len(points) - 1, N_POINTS).round().astype(int))
    return [points[i] for i in kept]


def _matrix(classes: tuple[str, ...], matrix: Any) -> list[dict[str, Any]]:
    totals = matrix.sum(axis=1)
    return [
        {
            "name": name,
            "n": int(total),
            "cells": [(int(n), round(100 * n / max(total, 1))) for n in row],
        }
        for name, row, total in zip(classes, matrix, totals, strict=True)
    ]


def _confused(classes: tuple[str, ...], matrix: Any) -> list[tuple[str, str, int]]:
    """Return the most frequent confusions: gold class, answer, number of rows."""
    off = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-off, axis=None, kind="stable")[:N_CONFUSED]
    pairs = [np.unravel_index(i, off.shape) for i in order]
    return [(classes[i], classes[j], int(off[i, j])) for i, j in pairs if off[i, j]]
