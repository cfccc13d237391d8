"""``token-trie label``."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer
from rich.table import Table as Drawn

from token_trie.cli.app import command, status
from token_trie.cli.options import ChatOption, ChoiceOptions, LeafEndOption, ModelOptions, as_prompt, read
from token_trie.cli.results import Results
from token_trie.cli.tables import Format, Row, Table, format_of, open_table
from token_trie.cli.template import Template
from token_trie.cli.written import digest
from token_trie.decisions.decision import Decision
from token_trie.decisions.many import choose_many
from token_trie.decisions.options import LeafEnd
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.core import Llama
from token_trie.progress import Progress
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie
from token_trie.show.trie import plain


class OnError(str, Enum):
    """What to do with a row that cannot be labelled."""

    stop = "stop"
    skip = "skip"


LabelMode: TypeAlias = Literal["exact", "greedy"]


@command(
    "token-trie label reviews.csv --prompt 'Review: {text}\\nSentiment:' -c positive -c negative -o labels.csv",
    "token-trie label tickets.parquet -p '{subject}: {body}' --chat --choices-file teams.txt -m model.gguf "
    "-o routed.parquet --probabilities",
    "token-trie label reviews.csv -p 'Review: {text}\\nSentiment:' -c positive -c negative -o labels.csv --resume",
    "tail -n 100 log.jsonl | token-trie label - --input-format jsonl -p '{message}\\nSeverity:' -c low -c high",
)
def label(
    table: Annotated[
        Path,
        typer.Argument(metavar="TABLE", help="CSV, JSON lines or Parquet; - for standard input.", show_default=False),
    ],
    choices: ChoiceOptions,
    model: ModelOptions,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="Text with {column} for what a row has there, and \\n for a line break."),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="A file with that text, in which \\n is no line break.")
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The table to write, a row as soon as it is labelled; - is standard output."
        ),
    ] = Path("-"),
    chat: ChatOption = False,
    mode: Annotated[
        LabelMode,
        typer.Option(
            help="exact scores every choice and adds figures; greedy takes the best token at each branch point, which "
            "is faster with thousands of choices, and adds none."
        ),
    ] = "exact",
    leaf_end: LeafEndOption = "longest",
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add a column for the probability of each choice, p_CHOICE.")
    ] = False,
    prefix: Annotated[str, typer.Option(help="In front of the names of the columns added.")] = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the run that wrote --output was interrupted.")
    ] = False,
    on_error: Annotated[
        OnError, typer.Option(help="A row that cannot be labelled ends the run, or is reported and skipped.")
    ] = OnError.stop,
    input_format: Annotated[Format | None, typer.Option(help="By default, what the name of the file tells.")] = None,
    output_format: Annotated[Format | None, typer.Option(help="By default, what the name of the file tells.")] = None,
) -> None:
    """Answer a prompt for each row of a table, many at once; write the table with the answers.

    The columns added are answer, probability (that it is this one of the choices), margin (by which it is above the
    next), mass (the model's own probability for all choices together; near 0, none of them fits), row (its number in
    TABLE) and run (a digest of choices and options); greedy answers have no probability, margin and mass. Rows that
    cannot be labelled are named on standard error.
    """
    if str(output) == "-" and sys.stdout is None:
        raise ArgumentError("--output: standard output is closed; name a file")
    if mode == "greedy" and (probabilities or leaf_end != "longest"):
        raise ArgumentError("--probabilities and --leaf-end: go with --mode exact")
    texts = list(dict.fromkeys(choices.read()))
    template = _template(prompt, prompt_file)
    if [str(path) for path in (table, choices.choices_file, prompt_file)].count("-") > 1:
        raise ArgumentError("-: standard input is one, and is asked for twice; give the other another way")
    kind = format_of(table, input_format, "--input-format")
    if output_format is None and str(output) == "-":
        output_format = Format.csv if kind is Format.csv else Format.jsonl
    to = format_of(output, output_format, "--output-format")
    is_exact = mode == "exact"
    marks = [] if is_exact else [mode]
    run = f"{digest(texts)}-{digest(template.text, chat, leaf_end, _identity(model.path), *marks)}"
    figures = ["probability", "margin", "mass"] if is_exact else []
    added = ["answer", *figures, *(f"p_{text}" for text in texts if probabilities)]
    with (
        closing(open_table(table, kind)) as opened,
        closing(Results(output, to, opened, added, prefix, run)) as results,
    ):
        if opened.columns is not None:
            template.check(opened.columns, f"{opened.name}: ")
        labelling = _Labelling(opened, template, texts, results, chat, on_error)
        if resume:
            labelling.go_on()
        if not status.is_terminal:
            status.print(f"labelling {plain(opened.name)}", highlight=False, soft_wrap=True)
        llm = model.load(4096)
        TokenTrie.from_choices(llm, texts)  # a mistake in the choices is not reported as one of the first row
        if not resume:
            results.begin()
        try:
            labelling.run(llm, mode, leaf_end, probabilities)
            results.finish()
        except (TokenTrieError, OSError, KeyboardInterrupt):
            labelling.tell_how_to_go_on()
            raise
    labelling.summarize()


def _template(prompt: str | None, prompt_file: Path | None) -> Template:
    if prompt is not None and prompt_file is None:
        return Template(prompt, has_escapes=True)
    if prompt is None and prompt_file is not None:
        return Template(read(prompt_file), has_escapes=False)
    raise ArgumentError("--prompt, or --prompt-file: one of the two")


_SOME_BYTES = 1 << 20


def _identity(model: Path) -> list[Any]:
    """Return what identifies a model, without reading all of it: its size, and its first, middle and last megabyte."""
    some = hashlib.sha256()
    size = model.stat().st_size
    with model.open("rb") as file:
        for place in (0, size // 2, max(size - _SOME_BYTES, 0)):
            file.seek(place)
            some.update(file.read(_SOME_BYTES))
    return [size, some.hexdigest()]


class _Labelling:
    """Answers the rows of a table, and writes the results."""

    def __init__(
        self, table: Table, template: Template, choices: list[str], results: Results, chat: bool, on_error: OnError
    ) -> None:
        self._table = table
        self._template = template
        self._choices = choices
        self._results = results
        self._chat = chat
        self._on_error = on_error
        self._progress = Progress(table.size, "rows")
        self._under_way: deque[Row] = deque()
        self._n_bad = 0
        self._n_unfit = 0
        self._counts: Counter[str] = Counter()

    def go_on(self) -> None:
        """Skip the rows that an earlier run has labelled."""
        self._results.go_on(self._choices, lambda text: self._counts.update([text]))

    def run(self, llm: Llama, mode: LabelMode, leaf_end: LeafEnd, probabilities: bool) -> None:
        """Label the rows."""
        decisions = choose_many(
            llm,
            self._prompts(),
            self._choices,
            mode=mode,
            probabilities=mode == "exact",
            leaf_end=leaf_end,
            on_error="return",
        )
        with self._progress:
            for n, decision in enumerate(decisions, 1):
                row = self._under_way.popleft()
                if isinstance(decision, TokenTrieError):
                    self._report(row, str(decision.__cause__ or decision))
                else:
                    self._write(row, decision, probabilities)
                self._progress.move(n, row.read)

    def _prompts(self) -> Iterator[Prompt]:
        seen = 0
        for row in self._table.rows():
            seen = row.number
            bad = row.bad
            text = ""
            try:
                if bad is None:
                    self._results.check(row)
                    text = self._template.fill(row.values)
            except ArgumentError as error:
                bad = str(error)
            if self._results.has(row):
                continue
            if bad is None:
                self._under_way.append(row)
                yield as_prompt(text, self._chat)
            else:
                self._report(row, bad)
        self._results.require_all(seen)

    def _write(self, row: Row, decision: Decision[str], probabilities: bool) -> None:
        figures: list[float | None] = []
        if decision.probabilities is not None:
            figures = [decision.probabilities[decision.index], decision.margin, decision.mass]
            figures += decision.probabilities.tolist() if probabilities else []
        self._results.write(row, [decision.text, *(float(f"{figure:.6g}") for figure in figures)])
        self._counts[decision.text] += 1
        self._n_unfit += decision.fits is False

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
                f"{self._results.n_written:,} rows are in {plain(self._results.name)}; --resume goes on behind them",
                highlight=False,
                soft_wrap=True,
            )

    def summarize(self) -> None:
        """Print the counts."""
        n = sum(self._counts.values())
        drawn = Drawn(box=None, header_style="bold")
        drawn.add_column("answer")
        drawn.add_column("rows", justify="right")
        drawn.add_column("%", justify="right")
        for text in self._choices:
            if self._counts[text]:
                drawn.add_row(plain(text), f"{self._counts[text]:,}", f"{100 * self._counts[text] / n:.1f}")
        if n:
            status.print(drawn)
        skipped = f", {self._n_bad:,} left out" if self._n_bad else ""
        unfit = f"; in {self._n_unfit:,} the model gives the choices together less than 1 %" if self._n_unfit else ""
        status.print(f"{n:,} rows labelled{skipped}{unfit}", highlight=False)
