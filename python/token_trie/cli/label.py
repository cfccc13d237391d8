"""``token-trie label``: a label for each row of a table, by a question or by a prompt."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import typer
from rich.table import Table as Drawn

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
    as_prompt,
    command,
    read,
    status,
)
from token_trie.cli.resume import ResultTable, digest
from token_trie.cli.tables import Format, Table, TableRow, format_of, open_table
from token_trie.decisions.calibration import NAMED, over_rows
from token_trie.decisions.decision import Decision
from token_trie.decisions.gold import is_nothing
from token_trie.decisions.many import choose_many
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.llama.query import LeafEnd
from token_trie.native.core import Llama
from token_trie.native.loaded import digest_of_model
from token_trie.progress import Progress
from token_trie.questions.answer import ChoiceAnswer
from token_trie.questions.decide import decide_many, read_questions
from token_trie.questions.examples import Examples
from token_trie.questions.form import Form
from token_trie.questions.options import FORMS, DecideOptions, FormName
from token_trie.questions.question import Choice
from token_trie.sets.prompt import Prompt
from token_trie.sets.template import Template, text_of, to_json
from token_trie.sets.trie import TokenTrie
from token_trie.show.trie import plain
from token_trie.trust.calibration import Calibration
from token_trie.trust.gate import Gate
from token_trie.trust.rows import RowOptions, reader_of

_RAW = "raw"


@dataclass(frozen=True)
class CalibrationOptions:
    """Calibration of labels, and the gate below which a person decides."""

    given: str | Calibration | None = None
    """None: the default of a prompt or of a question."""
    gate: Gate | None = None

    @classmethod
    def read(cls, calibration: str | None, target_accuracy: float | None) -> CalibrationOptions:
        """Read the command-line options.

        Raises
        ------
        ArgumentError, CalibrationError
            They are invalid, or exclude each other.
        OSError
            A file cannot be read.
        """
        if calibration is None or calibration == _RAW or calibration in NAMED:
            if target_accuracy is not None:
                raise ArgumentError(
                    "--target-accuracy: needs --calibration FILE, a file from token-trie evaluate --fit"
                )
            return cls(calibration)
        found = Calibration.load(Path(calibration))
        return cls(found, None if target_accuracy is None else found.gate(target_accuracy))

    @property
    def columns(self) -> list[str]:
        """Names of the columns that it adds."""
        return [] if self.gate is None else ["review"]

    def figures(self, probability: float) -> list[float]:
        """Return the values of these columns: 1 means review by a person."""
        return [] if self.gate is None else [float(not self.gate.decides(probability))]

    @property
    def marks(self) -> list[Any]:
        """Parts of the run's digest; empty for the default."""
        if self.given is None:
            return []
        given = self.given if isinstance(self.given, str) else digest(self.given.to_dict())
        return ["calibration", given, None if self.gate is None else self.gate.threshold]


def read_template(prompt: str | None, prompt_file: Path | None, *, is_needed: bool) -> Template | None:
    """Return the template of --prompt or --prompt-file; None if neither is given or needed."""
    if prompt is None and prompt_file is None and not is_needed:
        return None
    if prompt is not None and prompt_file is None:
        return Template(prompt, has_escapes=True)
    if prompt is None and prompt_file is not None:
        return Template(read(prompt_file), has_escapes=False)
    raise ArgumentError("use --question, --prompt or --prompt-file, and not both of the last two")


_ABSENT = "N/A"
_DEFAULT = CalibrationOptions()

LabelMode: TypeAlias = Literal["exact", "greedy"]


class Labelled(NamedTuple):
    """Result of a row."""

    answer: str
    figures: list[float]
    is_unfit: bool
    """Whether none of the choices seems to fit."""


class RowLabeller(ABC):
    """Labels rows."""

    choices: list[str]
    """The labels."""
    columns: list[str]
    """The columns that are added; the first is the label."""
    set: list[Any]
    """Parts of the digest: the choices."""
    options: list[Any]
    """Parts of the digest: all other options that labels depend on, except the model."""
    marks: list[Any]
    """Last parts of the digest."""
    asked: Any
    """The choices or the question, for evaluation and fitting."""
    row_options: RowOptions
    """Options of the rows, likewise."""

    @abstractmethod
    def check(self, llm: Llama) -> None:
        """Raise an error if the choices do not fit the model."""

    def _check(self, llm: Llama, calibrating: CalibrationOptions) -> None:
        """Raise CalibrationError if a calibration was fitted on something else."""
        if isinstance(calibrating.given, Calibration):
            calibrating.given.binding.require(reader_of(llm, self.asked, self.row_options).binding)

    @abstractmethod
    def ask(self, values: dict[str, Any]) -> Any:
        """Return the prompt or state of a row; ArgumentError if it has none."""

    @abstractmethod
    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        """Yield an answer or an error for each row."""

    @abstractmethod
    def read(self, answer: Any) -> Labelled:
        """Return the result of an answer."""


class PromptLabeller(RowLabeller):
    """Labels rows by a prompt."""

    def __init__(
        self,
        template: Template,
        texts: list[str],
        mode: LabelMode,
        leaf_end: LeafEnd,
        chat: bool,
        probabilities: bool,
        calibrating: CalibrationOptions = _DEFAULT,
    ) -> None:
        is_exact = mode == "exact"
        figures = ["probability", "margin", "mass"] if is_exact else []
        self.choices = self.set = texts
        self.columns = ["answer", *figures, *calibrating.columns, *(f"p_{text}" for text in texts if probabilities)]
        self.options, self.marks = [template.text, chat, leaf_end], [*([] if is_exact else [mode]), *calibrating.marks]
        name = f"{template.text} (as a message)" if chat else template.text
        self.asked, self.row_options = texts, RowOptions(template=name, leaf_end=leaf_end)
        self._calibrating = calibrating
        self._template = template
        self._mode = mode
        self._leaf_end = leaf_end
        self._chat = chat
        self._probabilities = probabilities

    def check(self, llm: Llama) -> None:
        """Raise an error if the choices do not fit the model."""
        TokenTrie.from_choices(llm, self.choices)
        self._check(llm, self._calibrating)

    @property
    def empty(self) -> Prompt:
        """The prompt without the content of a row."""
        return as_prompt(self._template.fill(dict.fromkeys(self._template.columns, _ABSENT)), self._chat)

    def ask(self, values: dict[str, Any]) -> Any:
        """Return the prompt of a row; ArgumentError if it has none."""
        return as_prompt(self._template.fill(values), self._chat)

    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        """Yield a decision or an error for each row."""
        return choose_many(
            llm,
            asked,
            self.choices,
            mode=self._mode,
            probabilities=self._mode == "exact",
            leaf_end=self._leaf_end,
            on_error="return",
            calibration=self._calibration,
        )

    @property
    def _calibration(self) -> Any:
        given = self._calibrating.given
        if isinstance(given, str):
            return None if given == _RAW else NAMED[given].with_prompt(self.empty)
        return given

    def read(self, answer: Decision[str]) -> Labelled:
        """Return the result of a decision."""
        figures: list[float | None] = []
        if answer.probabilities is not None:
            probability = answer.probabilities[answer.index]
            figures = [probability, answer.margin, answer.mass, *self._calibrating.figures(probability)]
            figures += answer.probabilities.tolist() if self._probabilities else []
        return Labelled(answer.text, [0.0 if one is None else one for one in figures], answer.fits is False)


class QuestionLabeller(RowLabeller):
    """Labels rows by a question."""

    def __init__(
        self,
        question: str,
        texts: list[str],
        form: FormName | None,
        template: Template | None,
        chat: bool,
        probabilities: bool,
        calibrating: CalibrationOptions = _DEFAULT,
    ) -> None:
        described: dict[str, str | None] = {}
        for text in texts:
            name, _, description = text.partition("=")
            if not name.strip():
                raise ArgumentError(f"--choice: {text!r} has no name before the =")
            if name in described:
                raise ArgumentError(f"--choice: {name!r} is given twice, with different descriptions")
            described[name] = description or None
        self.choices = list(described)
        self.columns = ["value", "probability", "confidence", "mass", *calibrating.columns]
        self.columns += [f"p_{name}" for name in described if probabilities]
        put: FormName | Form | None = replace(FORMS[form or "unlisted"], chat=True) if chat else form
        self.set = list(described.items())
        self.options = ["question", question, repr(put), None if template is None else template.text]
        self.marks = calibrating.marks
        self._calibrating = calibrating
        self.asked, self.row_options = Choice(question, described), RowOptions(form=put)
        self._template = template
        self._probabilities = probabilities

    def put(self, examples: Examples) -> None:
        """Put examples before each row; ArgumentError for an answer that is not a choice."""
        self.row_options = replace(self.row_options, examples=examples)
        self.marks = [*self.marks, "examples", examples.of(self.asked, self.choices).digest]

    def check(self, llm: Llama) -> None:
        """Raise an error if the question does not fit the model."""
        read_questions(self.asked, self.row_options.of_question(), llm)
        self._check(llm, self._calibrating)

    def ask(self, values: dict[str, Any]) -> Any:
        """Return the state of a row; ArgumentError if it has none."""
        return to_json(values) if self._template is None else str(self._template.fill(values))

    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        """Yield an answer or an error for each row."""
        given: Any = self._calibrating.given
        if given is None:
            given = DecideOptions.calibration
        row_options = self.row_options
        return decide_many(
            llm,
            asked,
            self.asked,
            on_error="return",
            form=row_options.form,
            examples=row_options.examples,
            calibration=None if given == _RAW else given,
        )

    def read(self, answer: ChoiceAnswer[str]) -> Labelled:
        """Return the result of an answer."""
        p = answer.probabilities
        mass = 0.0 if answer.mass is None else answer.mass
        figures = [p[answer.value], answer.confidence, mass, *self._calibrating.figures(p[answer.value])]
        figures += p.values() if self._probabilities else ()
        return Labelled(answer.value, figures, is_unfit=False)


ExamplesOption = Annotated[
    Path | None,
    typer.Option(
        "--examples",
        help="With --question: a table with examples. The model reads some of its rows, with their answers from column "
        "--gold, before each row.",
    ),
]
EachOption = Annotated[
    int, typer.Option("--examples-each", min=1, help="Number of --examples for each answer; the first ones are used.")
]
NearestOption = Annotated[
    int | None,
    typer.Option(
        "--nearest",
        min=1,
        help="Instead of the first ones, use this many --examples that share the most words with the row. Slower, "
        "because the model reads them again for each row.",
    ),
]


def put_examples(labeller: RowLabeller, path: Path | None, gold: str | None, n_each: int, nearest: int | None) -> None:
    """Put the examples of a table, if given, before the rows.

    Raises
    ------
    ArgumentError
        The options exclude each other, or a row is no example; OSError if the file cannot be read.
    """
    if path is None:
        if nearest is not None or n_each != 1:
            raise ArgumentError("--examples-each and --nearest: only with --examples")
        return
    if not isinstance(labeller, QuestionLabeller):
        raise ArgumentError("--examples: only with --question; a prompt can contain examples in its text")
    if gold is None:
        raise ArgumentError("--examples: needs --gold, the column with their answers")
    states, answers = [], []
    with closing(open_table(path, format_of(path, None, "the ending of its name"))) as table:
        if table.columns is not None and gold not in table.columns:
            raise ArgumentError(f"{table.name}: no column {gold!r}, which --gold names")
        for row in table.rows():
            if row.bad is None and is_nothing(row.values.get(gold)):
                continue
            try:
                if row.bad is not None:
                    raise ArgumentError(row.bad)
                answers.append(text_of(row.values[gold]))
                states.append(labeller.ask({name: value for name, value in row.values.items() if name != gold}))
            except ArgumentError as error:
                raise ArgumentError(f"{row.where}: {error}") from error
    if not states:
        raise ArgumentError(f"{path}: no row with an answer in {gold!r}")
    labeller.put(Examples(states, answers, n_each, nearest))


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
            help="The correction of the probabilities. "
            + "".join(f"{name}: {one.says}; " for name, one in NAMED.items())
            + f"{_RAW}: none; or a file from `evaluate --fit`. Default: {DecideOptions.calibration} with --question, "
            f"{_RAW} with --prompt alone.",
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
    calibrating = CalibrationOptions.read(calibration, target_accuracy)
    if over_rows(calibrating.given) is not None and resume:
        raise ArgumentError(
            f"--resume: not with --calibration {calibration}, which depends on all rows; use a calibration file instead"
        )
    labeller: RowLabeller
    if question is not None:
        labeller = QuestionLabeller(question, texts, form, template, chat, probabilities, calibrating)
    else:
        assert template is not None
        labeller = PromptLabeller(template, texts, mode, leaf_end, chat, probabilities, calibrating)
    put_examples(labeller, examples, gold, examples_each, nearest)
    run = f"{digest(labeller.set)}-{digest(*labeller.options, digest_of_model(model.path), *labeller.marks)}"
    with (
        closing(open_table(table, kind)) as opened,
        closing(ResultTable(output, to, opened, labeller.columns, prefix, run)) as results,
    ):
        if opened.columns is not None and template is not None:
            template.check(opened.columns, f"{opened.name}: ")
        labelling = _Labelling(opened, labeller, results, on_error)
        if resume:
            labelling.resume()
        if not status.is_terminal:
            status.print(f"labelling {plain(opened.name)}", highlight=False, soft_wrap=True)
        llm = model.load(4096)
        labeller.check(llm)  # a mistake in the choices is not reported as one of the first row
        if not resume:
            results.begin()
        try:
            labelling.run(llm)
            results.finish()
        except (TokenTrieError, OSError, KeyboardInterrupt):
            labelling.print_how_to_resume()
            raise
    labelling.summarize()
    if calibrating.gate is not None:
        status.print(f"the gate: {calibrating.gate}", highlight=False, soft_wrap=True)


class _Labelling:
    """Labels the rows of a table and writes the results."""

    def __init__(self, table: Table, labeller: RowLabeller, results: ResultTable, on_error: OnError) -> None:
        self._table = table
        self._labeller = labeller
        self._results = results
        self._on_error = on_error
        self._progress = Progress(table.size, "rows")
        self._under_way: deque[TableRow] = deque()
        self._n_bad = 0
        self._n_unfit = 0
        self._counts: Counter[str] = Counter()

    def resume(self) -> None:
        """Skip rows that an earlier run labelled."""
        self._results.resume(self._labeller.choices, lambda text: self._counts.update([text]))

    def run(self, llm: Llama) -> None:
        """Label the rows."""
        decisions = self._labeller.answer(llm, self._asked())
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
                    asked = self._labeller.ask(row.values)
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

    def _write(self, row: TableRow, answer: Any) -> None:
        labelled = self._labeller.read(answer)
        self._results.write(row, [labelled.answer, *(float(f"{figure:.6g}") for figure in labelled.figures)])
        self._counts[labelled.answer] += 1
        self._n_unfit += labelled.is_unfit

    def _report(self, row: TableRow, message: str) -> None:
        if self._on_error is OnError.stop:
            raise ArgumentError(f"{row.where}: {message} (--on-error skip leaves such rows out)")
        self._n_bad += 1
        self._progress.clear()
        status.print(f"{plain(row.where)}: {plain(message)}", highlight=False, soft_wrap=True)

    def print_how_to_resume(self) -> None:
        """Print how to resume."""
        if self._results.can_resume:
            status.print(
                f"{self._results.n_written:,} rows are in {plain(self._results.name)}; --resume continues after them",
                highlight=False,
                soft_wrap=True,
            )

    def summarize(self) -> None:
        """Print the counts."""
        n = sum(self._counts.values())
        drawn = Drawn(box=None, header_style="bold")
        drawn.add_column(self._labeller.columns[0])
        drawn.add_column("rows", justify="right")
        drawn.add_column("%", justify="right")
        for text in self._labeller.choices:
            if self._counts[text]:
                drawn.add_row(plain(text), f"{self._counts[text]:,}", f"{100 * self._counts[text] / n:.1f}")
        if n:
            status.print(drawn)
        skipped = f", {self._n_bad:,} left out" if self._n_bad else ""
        unfit = f"; in {self._n_unfit:,} the model gives the choices together less than 1 %" if self._n_unfit else ""
        status.print(f"{n:,} rows labelled{skipped}{unfit}", highlight=False)
