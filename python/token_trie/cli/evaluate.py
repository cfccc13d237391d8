"""``token-trie evaluate``."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, get_args

import typer

from token_trie.cli.label import GoldRow, LabelOptions, RowLabeller, RowQuestion
from token_trie.cli.options import (
    ChoiceOptions,
    JsonOption,
    ModelOptions,
    command,
    console,
    print_json,
    require_output,
    say,
)
from token_trie.cli.tables import InputFormatOption, OnRowError, Table, TableArgument
from token_trie.decisions.gold import Labels
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.query import LeafEnd
from token_trie.native.core import Llama
from token_trie.native.files import users_cache
from token_trie.questions.options import FORMS
from token_trie.sets.prompt import text_of
from token_trie.show.evaluation import Evaluation, import_figure
from token_trie.trust.evaluate import DEFAULT, EvaluatedWay, EvaluationRows, ways_of


@dataclass(frozen=True)
class EvaluationOptions:
    """The methods to compare, and the files to write."""

    way: Annotated[
        list[str] | None,
        "A method to compare; repeat the option for each. "
        f"For a prompt: {', '.join(ways_of(is_question=False))}. "
        f"For a question: {', '.join(ways_of(is_question=True))}. "
        f"Default, where it is listed: {', '.join(DEFAULT)}.",
    ] = None
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation of fitted methods.")] = 10
    target_accuracy: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Find the lowest confidence from which the best method (with --fit, the one that is written) reaches "
            "this accuracy, with 95 % assurance, and tell how many rows reach it.",
        ),
    ] = None
    fit: Annotated[
        Path | None,
        "Write the best of the compared calibrations (temperature, bias, head), fitted on all rows, to this file, "
        "for `label --calibration`.",
    ] = None
    plot: Annotated[
        Path | None, "Draw the reliability, and the risk by coverage, into a picture (needs token-trie[plot])."
    ] = None
    cache: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Folder that keeps the model's results, so that no row is read twice. Default: the user's cache.",
        ),
    ] = None
    no_cache: Annotated[bool, "Do not keep results."] = False

    def check(self, *read: Path | None) -> None:
        """Raise ArgumentError if options exclude each other, or an output is one of the files that are read."""
        if self.cache is not None and self.no_cache:
            raise ArgumentError("--cache and --no-cache: use only one of them")
        if self.target_accuracy in (0.0, 1.0):
            raise ArgumentError(f"--target-accuracy: {self.target_accuracy} is not between 0 and 1")
        for option, path, other in (("--plot", self.plot, None), ("--fit", self.fit, self.plot)):
            if path is not None:
                require_output(option, path, other, *read)
        if self.plot is not None:
            import_figure()  # fails before rows are read in vain

    @property
    def folder(self) -> Path | None:
        """The folder that keeps results, if any."""
        return None if self.no_cache else self.cache or users_cache() / "readings"


@command(
    "token-trie evaluate gold.csv --column text --question 'Which team should handle this?' "
    "-c 'billing=payments and charges' -c 'technical=the app does not work' --gold team",
    "token-trie evaluate gold.csv -p 'Review: {text}\\nSentiment:' -c positive -c negative --gold label --plot r.png",
    "token-trie evaluate gold.csv -p '{text}\\nTopic:' --choices-file topics.txt --gold topic --way exact --way greedy",
    "token-trie evaluate gold.csv --column text -q 'Which team?' --choices-file teams.txt --gold team "
    "--target-accuracy 0.95 --fit teams.json",
)
def evaluate(
    table: TableArgument,
    gold: Annotated[str, "The column with the correct answers."],
    choices: ChoiceOptions,
    model: ModelOptions,
    asked: RowQuestion,
    options: EvaluationOptions,
    as_json: JsonOption = False,
    on_error: Annotated[OnRowError, "For a row whose label is not a choice: stop, or report and skip it."] = "stop",
    input_format: InputFormatOption = None,
) -> None:
    """Compare methods on a table with known answers.

    For each method, the command shows the accuracy with a confidence interval, whether the probabilities can be trusted
    (log loss, Brier, ECE), and the accuracy of only the confident answers (risk area). Fitted methods are tested on
    rows that were not used to fit them. Rows without a label are left out. The command needs token-trie[calibration].
    """
    options.check(table, choices.choices_file, asked.prompt_file, asked.examples, model.path)
    with closing(Table(table, input_format)) as opened:
        labeller = RowLabeller(opened, LabelOptions(**vars(asked)), choices, gold)
        rows, n_left_out, n_empty = _read_rows(labeller, opened, gold, on_error)
    llm = model.load(4096)
    labeller.check(llm)
    try:
        evaluation, n_unread = _evaluated(llm, labeller, rows, on_error, options)
    except KeyboardInterrupt:
        if options.folder is not None:
            say("run the same command again to continue: the results so far are kept")
        raise
    _show(evaluation, options, as_json)
    if n_empty:
        say(f"{n_empty:,} rows without a label are left out")
    if n_left_out + n_unread:
        say(f"{n_left_out + n_unread:,} rows of no use are left out")
    if evaluation.best.of != "words":
        say(f"label by {evaluation.best.name}: {_label_options(evaluation.best, options.fit)}")
    written = ("the picture", options.plot), ("the calibration", options.fit)
    for what, path in (*written, ("what the model said of the rows", options.folder)):
        if path is not None:
            say(f"{what} is in {path}")


def _read_rows(labeller: RowLabeller, table: Table, gold: str, on_error: OnRowError) -> tuple[list[GoldRow], int, int]:
    """Return the rows with a label, the number of those that are left out, and of those without a label."""
    rows, problems, n_empty = labeller.read_gold(table, gold, Labels(labeller.choices, labeller.choices))
    if problems and on_error == "stop":
        n_others = len(problems) - 1
        others = f"; so {'is' if n_others == 1 else 'are'} {n_others:,} more" if n_others else ""
        raise ArgumentError(f"{problems[0]}{others} (--on-error skip leaves such rows out)")
    for problem in problems:
        say(problem)
    if not rows:
        raise ArgumentError(f"{table.name}: no row with a label in {gold!r}")
    return rows, len(problems), n_empty


def _show(evaluation: Evaluation, options: EvaluationOptions, as_json: bool) -> None:
    """Print an evaluation and its gate, and write the files."""
    if not as_json:
        console.print(evaluation)  # before what may fail: a picture, a fit, or a gate
    if options.plot is not None:
        evaluation.plot(options.plot)
    if options.fit is not None:
        evaluation.calibration.save(options.fit)
    way = evaluation.best.name if options.fit is None else evaluation.calibration.kind  # the one that `label` takes
    gate = None if options.target_accuracy is None else evaluation.gate(options.target_accuracy, way)
    if as_json:
        print_json(evaluation.to_dict() | ({} if gate is None else {"gate": vars(gate)}))
    elif gate is not None:
        console.print(f"{way}: {gate}", highlight=False)


def _label_options(best: EvaluatedWay, fit: Path | None) -> str:
    """Return the options of `label` that answer in the best way."""
    name = best.name
    if name in ("contextual", "batch"):
        options = f"--calibration {name}"
    elif name in FORMS:
        options = f"--form {name}"
    elif name in get_args(LeafEnd):
        options = f"--calibration raw --leaf-end {name}"
    elif name in _OPTIONS_OF:
        options = _OPTIONS_OF[name]
    else:
        file = "FILE, which evaluate --fit FILE writes" if fit is None else str(fit)
        options = f"--calibration {file}"
    return f"token-trie label TABLE, with the same model, choices and prompt or question, and {options}"


_OPTIONS_OF = {
    "exact": "--calibration raw",
    "greedy": "--mode greedy",
    "orders": "--form listed --orders 4",
}


def _evaluated(
    llm: Llama, labeller: RowLabeller, rows: list[GoldRow], on_error: OnRowError, options: EvaluationOptions
) -> tuple[Evaluation, int]:
    """Evaluate rows, and count those that the model cannot read: each is left out, or an error that names it."""
    n_left_out = 0
    while True:
        failed: dict[int, TokenTrieError] = {}
        try:
            found = Evaluation.of(
                EvaluationRows(
                    llm,
                    [one.asked for one in rows],
                    [one.label for one in rows],
                    labeller.asked,
                    labeller.row_options,
                    texts=[" ".join(map(text_of, labeller.columns_read(one.row.values).values())) for one in rows],
                    progress=True,
                    failed=None if on_error == "stop" else failed,
                    ways=options.way,
                    empty=labeller.empty,
                    n_folds=options.folds,
                    cache=options.folder,
                )
            )
        except TokenTrieError as error:
            placed = re.match(r"(?:prompts|states)\[(\d+)\]: ", str(error))
            if placed is None:
                raise
            failed = failed or {int(placed[1]): error}
            for i, one in sorted(failed.items()):
                problem = f"{rows[i].row.where}: {str(one).partition(']: ')[2]}"
                if on_error == "stop":
                    raise type(one)(f"{problem} (--on-error skip leaves such rows out)") from one
                say(problem)
            n_left_out += len(failed)
            rows = [one for i, one in enumerate(rows) if i not in failed]
        else:
            return replace(found, numbers=tuple(one.row.number for one in rows)), n_left_out
