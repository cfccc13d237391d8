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
    """What answers are worth, by several ways of answering: `Evaluated`. Print it with rich, or write `html`."""

    @classmethod
    def of(cls, evaluated: Evaluated) -> Evaluation:
        """Add the pictures to what was found."""
        return cls(**{name: getattr(evaluated, name) for name in evaluated.__dataclass_fields__})

    def html(self) -> str:
        """Write a page that needs nothing beside itself, and asks nobody for anything.

        It has, of each way, the reliability diagram, the curve of accuracy against the share of rows that are decided,
        with a slider for the confidence, the confusion matrix, and the rows that were wrong, surest first.
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

    Several ways of answering are measured side by side. The model reads each row once, and most ways are arithmetic on
    what it says; those named after an end rule, a form or "orders" and "greedy" ask it once more each. What is fitted
    on labels is judged by cross-validation: each row by what was fitted on others. It needs scikit-learn, by the extra
    `calibration`.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. Its own context is not touched.
    prompts : iterable
        The rows: prompts as of `choose`, or, of a question, states as of `decide`.
    gold : iterable
        The right answer of each: a text of the choices, or a value that they stand for.
    choices : choices as of `choose`, Choice, Predicate or Score
        The answers, or a question.
    ways : iterable of str, optional
        Which; for prompts of exact, longest, any, follow, greedy, contextual, mean, batch, fitted, temperature, bias,
        head, majority and words, for a question of unlisted, listed, letters and orders in place of end rules and
        greedy. By default exact, contextual, mean, batch, fitted, and for honesty majority, the most frequent class,
        and words, TF-IDF with logistic regression.
    empty : str, sequence of int, or sequence of chat messages, optional
        The prompt without its content, which contextual takes; a question has its own.
    texts : iterable of str, optional
        What the rows say, for words and for people; by default the prompts.
    n_folds : int
        Folds of the cross-validation.
    cache : path, optional
        A folder that keeps what the model says of rows, without the rows themselves, so that no row is read again: not
        for another metric, nor by a run that goes on where one was interrupted.
    progress, n_parallel, n_ctx
        As of `choose_many`.
    **options
        Those of `RowOptions`.

    Returns
    -------
    Evaluation

    Raises
    ------
    ArgumentError
        A label is none of the choices, with its position; options that do not fit each other; scikit-learn is missing.
    ArgumentError, VocabularyError, ContextError
        Of a prompt, with its position.
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
