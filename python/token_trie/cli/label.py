"""``token-trie label``."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as Drawn

from token_trie.cli.app import command, status
from token_trie.cli.calibrating import Calibrating
from token_trie.cli.examples import EachOption, ExamplesOption, NearestOption, put_examples
from token_trie.cli.options import (
    ChatOption,
    ChoiceOptions,
    FormOption,
    InputFormatOption,
    LeafEndOption,
    ModelOptions,
    OnError,
    QuestionOption,
    RowPromptFileOption,
    RowPromptOption,
    TableArgument,
)
from token_trie.cli.results import Results
from token_trie.cli.tables import Format, Row, Table, format_of, open_table
from token_trie.cli.template import read_template
from token_trie.cli.ways import ByPrompt, ByQuestion, LabelMode, Way
from token_trie.cli.written import digest
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.core import Llama
from token_trie.native.loaded import digest_of_model
from token_trie.progress import Progress
from token_trie.show.trie import plain


@command(
    "token-trie label tickets.csv --question 'Which team should handle this?' -c 'billing=payments and charges' "
    "-c 'technical=the app does not work' -o routed.csv",
    "token-trie label tickets.csv -q 'Which team?' --choices-file teams.txt --calibration teams.json "
    "--target-accuracy 0.95 -o routed.csv",
    "token-trie label reviews.csv --prompt 'Review: {text}\\nSentiment:' -c positive -c negative -o labels.csv",
    "token-trie label tickets.parquet -p '{subject}: {body}' --chat --choices-file teams.txt -m model.gguf "
    "-o routed.parquet --probabilities",
    "token-trie label reviews.csv -p 'Review: {text}\\nSentiment:' -c positive -c negative -o labels.csv --resume",
    "tail -n 100 log.jsonl | token-trie label - --input-format jsonl -p '{message}\\nSeverity:' -c low -c high",
)
def label(
    table: TableArgument,
    choices: ChoiceOptions,
    model: ModelOptions,
    question: QuestionOption = None,
    form: FormOption = None,
    prompt: RowPromptOption = None,
    prompt_file: RowPromptFileOption = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The table to write. Each row is written as soon as it is labelled; - is standard output.",
        ),
    ] = Path("-"),
    chat: ChatOption = False,
    mode: Annotated[
        LabelMode,
        typer.Option(
            help="exact: scores every choice, and adds columns with probabilities; greedy: takes the best token at "
            "each branch point. This is faster with thousands of choices, but gives no probabilities."
        ),
    ] = "exact",
    leaf_end: LeafEndOption = "longest",
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add a column p_CHOICE with the probability of each choice.")
    ] = False,
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="The correction of the probabilities. contextual: by those of an empty row (default with --question); "
            "batch: by the mean over the rows, for labels that are about equally frequent; raw: none (default with "
            "--prompt alone); or a file from `evaluate --fit`.",
        ),
    ] = None,
    target_accuracy: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="With a file in --calibration: add a column review, which is 1 for rows that a person should check. "
            "The other rows have this accuracy, with 95 % assurance.",
        ),
    ] = None,
    examples: ExamplesOption = None,
    gold: Annotated[
        str | None, typer.Option("--gold", help="The column of --examples with the correct answers.")
    ] = None,
    examples_each: EachOption = 1,
    nearest: NearestOption = None,
    prefix: Annotated[str, typer.Option(help="Text before the names of the added columns.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted run that wrote --output.")] = False,
    on_error: Annotated[
        OnError, typer.Option(help="For a row that cannot be labelled: stop, or report and skip it.")
    ] = OnError.stop,
    input_format: InputFormatOption = None,
    output_format: Annotated[
        Format | None, typer.Option(help="Format of --output. Default: by the ending of its name.")
    ] = None,
) -> None:
    """Answer a question or a prompt for each row of a table, and write the table with the answers.

    With --question, the added columns are value, probability (of this choice among the choices), confidence (how far
    the probability is above an even share) and mass (the probability that the model, without the constraint, writes one
    of the choices). With --prompt alone, they are answer, probability, margin (the distance to the next best
    probability) and mass (near 0 if none of the choices fits); with --mode greedy, only answer. The last two columns
    are row (the number of the row in TABLE) and run (a digest of choices and options). Rows that cannot be labelled are
    reported on standard error.
    """
    if str(output) == "-" and sys.stdout is None:
        raise ArgumentError("--output: standard output is closed; use a file")
    if mode == "greedy" and (probabilities or leaf_end != "longest" or calibration is not None):
        raise ArgumentError("--probabilities, --leaf-end and --calibration: only with --mode exact")
    if question is not None and (mode != "exact" or leaf_end != "longest"):
        raise ArgumentError("--mode and --leaf-end: not with --question")
    if question is None and form is not None:
        raise ArgumentError("--form: only with --question")
    texts = list(dict.fromkeys(choices.read()))
    template = read_template(prompt, prompt_file, is_needed=question is None)
    if [str(path) for path in (table, choices.choices_file, prompt_file)].count("-") > 1:
        raise ArgumentError("-: only one option can read standard input")
    kind = format_of(table, input_format, "--input-format")
    if output_format is None and str(output) == "-":
        output_format = Format.csv if kind is Format.csv else Format.jsonl
    to = format_of(output, output_format, "--output-format")
    calibrating = Calibrating.read(calibration, target_accuracy)
    if calibrating.given == "batch" and resume:
        raise ArgumentError(
            "--resume: not with --calibration batch, which depends on all rows; use a calibration file instead"
        )
    way: Way
    if question is not None:
        way = ByQuestion(question, texts, form, template, chat, probabilities, calibrating)
    else:
        assert template is not None
        way = ByPrompt(template, texts, mode, leaf_end, chat, probabilities, calibrating)
    put_examples(way, examples, gold, examples_each, nearest)
    run = f"{digest(way.set)}-{digest(*way.options, digest_of_model(model.path), *way.marks)}"
    with (
        closing(open_table(table, kind)) as opened,
        closing(Results(output, to, opened, way.columns, prefix, run)) as results,
    ):
        if opened.columns is not None and template is not None:
            template.check(opened.columns, f"{opened.name}: ")
        labelling = _Labelling(opened, way, results, on_error)
        if resume:
            labelling.go_on()
        if not status.is_terminal:
            status.print(f"labelling {plain(opened.name)}", highlight=False, soft_wrap=True)
        llm = model.load(4096)
        way.check(llm)  # a mistake in the choices is not reported as one of the first row
        if not resume:
            results.begin()
        try:
            labelling.run(llm)
            results.finish()
        except (TokenTrieError, OSError, KeyboardInterrupt):
            labelling.tell_how_to_go_on()
            raise
    labelling.summarize()
    if calibrating.gate is not None:
        status.print(f"the gate: {calibrating.gate}", highlight=False, soft_wrap=True)


class _Labelling:
    """Answers the rows of a table, and writes the results."""

    def __init__(self, table: Table, way: Way, results: Results, on_error: OnError) -> None:
        self._table = table
        self._way = way
        self._results = results
        self._on_error = on_error
        self._progress = Progress(table.size, "rows")
        self._under_way: deque[Row] = deque()
        self._n_bad = 0
        self._n_unfit = 0
        self._counts: Counter[str] = Counter()

    def go_on(self) -> None:
        """Skip the rows that an earlier run has labelled."""
        self._results.go_on(self._way.choices, lambda text: self._counts.update([text]))

    def run(self, llm: Llama) -> None:
        """Label the rows."""
        decisions = self._way.answer(llm, self._asked())
        with self._progress:
            for n, decision in enumerate(decisions, 1):
                row = self._under_way.popleft()
                if isinstance(decision, TokenTrieError):
                    self._report(row, str(decision.__cause__ or decision))
                else:
                    self._write(row, decision)
                self._progress.move(n, row.read)

    def _asked(self) -> Iterator[Any]:
        seen = 0
        for row in self._table.rows():
            seen = row.number
            bad = row.bad
            asked: Any = None
            try:
                if bad is None:
                    self._results.check(row)
                    asked = self._way.ask(row.values)
            except ArgumentError as error:
                bad = str(error)
            if self._results.has(row):
                continue
            if bad is None:
                self._under_way.append(row)
                yield asked
            else:
                self._report(row, bad)
        self._results.require_all(seen)

    def _write(self, row: Row, answer: Any) -> None:
        labelled = self._way.read(answer)
        self._results.write(row, [labelled.answer, *(float(f"{figure:.6g}") for figure in labelled.figures)])
        self._counts[labelled.answer] += 1
        self._n_unfit += labelled.is_unfit

    def _report(self, row: Row, message: str) -> None:
        if self._on_error is OnError.stop:
            raise ArgumentError(f"{row.where}: {message} (--on-error skip leaves such rows out)")
        self._n_bad += 1
        self._progress.clear()
        status.print(f"{plain(row.where)}: {plain(message)}", highlight=False, soft_wrap=True)

    def tell_how_to_go_on(self) -> None:
        """Print which file has the rows that are labelled."""
        if self._results.can_go_on:
            status.print(
                f"{self._results.n_written:,} rows are in {plain(self._results.name)}; --resume continues after them",
                highlight=False,
                soft_wrap=True,
            )

    def summarize(self) -> None:
        """Print the counts."""
        n = sum(self._counts.values())
        drawn = Drawn(box=None, header_style="bold")
        drawn.add_column(self._way.columns[0])
        drawn.add_column("rows", justify="right")
        drawn.add_column("%", justify="right")
        for text in self._way.choices:
            if self._counts[text]:
                drawn.add_row(plain(text), f"{self._counts[text]:,}", f"{100 * self._counts[text] / n:.1f}")
        if n:
            status.print(drawn)
        skipped = f", {self._n_bad:,} left out" if self._n_bad else ""
        unfit = f"; in {self._n_unfit:,} the model gives the choices together less than 1 %" if self._n_unfit else ""
        status.print(f"{n:,} rows labelled{skipped}{unfit}", highlight=False)
