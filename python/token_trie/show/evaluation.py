"""`evaluate`, with the pictures of what it finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from token_trie.native.core import Llama
from token_trie.native.options import takes
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.trust.evaluation import Evaluated, evaluate_rows
from token_trie.trust.options import RowOptions

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from typing_extensions import Unpack

    from token_trie.trust.options import RowKeywords


@dataclass(frozen=True, eq=False)
class Evaluation(Evaluated):
    """How good answers are, for several ways to answer: an `Evaluated` that rich can print and `html` can write."""

    @classmethod
    def of(cls, evaluated: Evaluated) -> Evaluation:
        """Add the pictures to what was found."""
        return cls(**{name: getattr(evaluated, name) for name in evaluated.__dataclass_fields__})

    def html(self) -> str:
        """Return a page in one file, which loads nothing from elsewhere.

        For each way it shows the reliability diagram, the accuracy by the share of rows that are decided, with a slider
        for the confidence, the confusion matrix, and the wrong rows, those with the highest confidence first.
        """
        from token_trie.show.evaluation_page import render

        return render(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in a terminal."""
        from token_trie.show.evaluation_table import draw_evaluation

        yield draw_evaluation(self)


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
    scores. The ways named after an end rule or a form, "orders" and "greedy" evaluate it once more each. What is fitted
    on labels is judged by cross-validation: each row by a fit on other rows. This needs scikit-learn (extra
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
        The ways to compare. For prompts: exact, longest, any, follow, greedy, contextual, mean, batch, fitted,
        temperature, bias, head, majority and words. For a question, unlisted, listed, letters and orders replace the
        end rules and greedy. By default exact, contextual, mean, batch and fitted, and two baselines without the model:
        majority, the most frequent class, and words, TF-IDF with logistic regression.
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
    reading = {"progress": progress, "n_parallel": n_parallel, "n_ctx": n_ctx}
    return Evaluation.of(
        evaluate_rows(
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
            **reading,
        )
    )
