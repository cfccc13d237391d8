"""``token-trie label``: a label for each row of a table, by a question or by a prompt."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import typer

from token_trie.cli.options import (
    ChoiceOptions,
    LeafEndOption,
    ModelOptions,
    RowPrompt,
    as_prompt,
    command,
    require_one_standard_input,
    say,
)
from token_trie.cli.rows import RowJob, RowsOptions, digest, draw_counts, prompt_of, require_content, run_job
from token_trie.cli.tables import Table, TableRow, format_of, open_table
from token_trie.decisions.calibration import MIN_ROWS, NAMED, over_rows
from token_trie.decisions.decision import LOW_MASS, Decision
from token_trie.decisions.gold import Labels, is_nothing
from token_trie.decisions.many import choose_many
from token_trie.decisions.options import MAX_SCORED
from token_trie.errors import ArgumentError
from token_trie.native.core import Llama
from token_trie.questions.decide import decide_many
from token_trie.questions.examples import Examples, digest_of
from token_trie.questions.form import Form
from token_trie.questions.options import FORMS, DecideOptions, FormName
from token_trie.questions.question import Choice, ChoiceAnswer
from token_trie.sets.prompt import Prompt, Template, has_chat_template, text_of, to_json
from token_trie.sets.trie import TokenTrie
from token_trie.trust.calibration import Calibration
from token_trie.trust.gate import Gate
from token_trie.trust.rows import RowOptions, reader_of

LabelMode: TypeAlias = Literal["exact", "greedy"]

_ABSENT = "N/A"
_N_LOOKED_AT = 20
_MAX_NAMED = 10
_MIN_ROWS, _NEARLY_ALL = 4, 0.9


@dataclass(frozen=True)
class CalibrationOptions:
    """Calibration of labels, and the gate below which a person decides."""

    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="The correction of the probabilities. "
            + "".join(f"{name}: {one.says}; " for name, one in NAMED.items())
            + "raw: none; or a file from `evaluate --fit`. "
            f"Default: {DecideOptions.calibration} with --question, raw with --prompt alone.",
        ),
    ] = None
    target_accuracy: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="With a file in --calibration: add a column review, which is 1 for rows that a person should check. "
            "The other rows have this accuracy, with 95 % assurance.",
        ),
    ] = None

    @cached_property
    def given(self) -> str | Calibration | None:
        """A name, a fitted calibration, or None for the default.

        ArgumentError if options exclude each other; CalibrationError or OSError if the file has no calibration.
        """
        if self.calibration is not None and self.calibration not in ("raw", *NAMED):
            if not Path(self.calibration).exists():
                raise ArgumentError(
                    f"--calibration: {self.calibration!r} is none of raw, {', '.join(NAMED)}, and no file"
                )
            return Calibration.load(Path(self.calibration))
        if self.target_accuracy is not None:
            raise ArgumentError("--target-accuracy: needs --calibration FILE, a file from token-trie evaluate --fit")
        return self.calibration

    @cached_property
    def gate(self) -> Gate | None:
        """The gate; errors as of `given`."""
        if self.target_accuracy is None or not isinstance(self.given, Calibration):
            return None
        return self.given.gate(self.target_accuracy)

    @property
    def columns(self) -> list[str] | None:
        """Columns of the table that a calibration was fitted on; None if not known. Errors as of `given`."""
        try:
            columns: list[str] = json.loads(self.given.binding.columns if isinstance(self.given, Calibration) else "")
            return columns
        except ValueError:  # a template
            return None

    @property
    def marks(self) -> list[Any]:
        """Parts of the run's digest."""
        given = digest(self.given.to_dict()) if isinstance(self.given, Calibration) else self.given
        return [given, None if self.gate is None else self.gate.threshold]


def _folded(value: object) -> str:
    return text_of(value).strip().casefold()


class RowLabeller(RowJob):
    """Labels rows: `choices` are the labels.

    `asked` and `row_options` are the choices or the question, and the options of rows, for evaluation and fitting.
    `template` is the text of a row; None: all columns, except those in `unread`. `empty` is the prompt without the
    content of a row; None: a question has its own.
    """

    choices: list[str]
    asked: Any
    row_options: RowOptions
    template: Template | None
    empty: Prompt | None = None

    doing = "labelling"

    def __init__(
        self,
        calibrating: CalibrationOptions,
        columns: list[str],
        template: Template | None,
        choices: list[str],
        probabilities: bool,
        described: list[Any],
        options: list[Any],
    ) -> None:
        figures = [*columns[1:], *([] if calibrating.gate is None else ["review"])]
        figures += [f"p_{text}" for text in choices if probabilities]
        self.columns = {columns[0]: "string"} | dict.fromkeys(figures, "float64")
        if calibrating.gate is not None:
            self.columns["review"] = "int64"
        self.options = [*options, *calibrating.marks]
        self.marks = {"other choices": described, "another prompt, option or profile": self.options}
        self.choices, self._labels = choices, set(map(_folded, choices))
        self.calibrating = calibrating
        self.template = template
        self.unread: set[str] = set()
        self._only: tuple[str, ...] = ()  # the columns of the calibration, if these alone are read
        self._seen: set[str] = set()  # the columns that had a cell
        self._probabilities = probabilities
        self._counts: Counter[str] = Counter()
        self._n_unfit = 0

    def look_at(self, table: Table, gold: str | None, is_whole: bool) -> None:
        """Check the template against a table; without one, find out which columns are read.

        These are the ones that the calibration was fitted on, if the table has them, or those that hold no labels:
        all but `gold` and the columns whose first cells are all choices, in the whole table or its first rows.
        """
        self.options.append(gold)
        if self.template is not None:
            if table.columns is not None:
                self.template.check(table.columns, f"{table.name}: ")
            return
        cells: dict[str, list[str]] = {name: [] for name in table.columns or ()}
        fitted = self.calibrating.columns or ()
        rows = table.ahead(None if is_whole else _N_LOOKED_AT)
        if table.columns is None and not {name for row in rows for name in row.values}.issuperset(fitted):
            rows = table.ahead(None)  # a column of the calibration may come later
        for row in rows:
            for name, value in row.values.items():
                texts = cells.setdefault(name, [])
                if len(texts) < _N_LOOKED_AT and not is_nothing(value):
                    texts.append(_folded(value))
        found = [name for name, texts in cells.items() if texts and {*texts} <= self._labels and name != gold]
        self._seen = {name for name, texts in cells.items() if texts}
        self.unread = set() if gold is None else {gold}
        known = {*cells} - self.unread
        if fitted and known.issuperset(fitted):
            self._only = tuple(fitted)
        elif found and self._seen - self.unread.union(found):
            self._leave_out(found, "the first rows have")
        columns = self._only or tuple(name for name in cells if name not in self.unread)
        self.row_options = replace(self.row_options, columns=to_json(columns))

    def _leave_out(self, columns: list[str], where: str) -> None:
        self.unread.update(columns)
        say(f"not read, because {where} choices there: {', '.join(columns)} (--prompt names the columns to read)")

    def columns_read(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a row that the model reads; a new column that begins with a choice is left out."""
        if self.template is not None:
            return {name: values[name] for name in self.template.columns}
        if self._only:
            return {name: values[name] for name in self._only if name in values}
        for name, value in values.items():
            if name not in self._seen and name not in self.unread and not is_nothing(value):
                self._seen.add(name)
                if _folded(value) in self._labels:
                    self._leave_out([name], "a later row has one of the")
        return {name: value for name, value in values.items() if name not in self.unread}

    def check(self, llm: Llama) -> None:
        """Raise an error if the choices do not fit the model, or CalibrationError if the calibration does not.

        It completes `options`.
        """
        if isinstance(self.calibrating.given, Calibration):
            self.calibrating.given.binding.require(reader_of(llm, self.asked, self.row_options).binding)

    def values(self, text: str, figures: list[float | None], probabilities: Iterable[float]) -> dict[str, Any]:
        """Return the values of the added columns; the first figure is the probability of the text."""
        if figures and self.calibrating.gate is not None:
            figures = [*figures, int(not self.calibrating.gate.decides(figures[0] or 0.0))]
        numbers = [*figures, *(probabilities if self._probabilities else ())]
        cells = (one if one is None or isinstance(one, int) else float(f"{one:.6g}") for one in numbers)
        return dict(zip(self.columns, [text, *cells], strict=True))

    def count(self, values: Mapping[str, Any]) -> None:
        """Count the label of a row."""
        self._counts[str(values[next(iter(self.columns))])] += 1
        if "margin" in values and not is_nothing(values["mass"]):  # a head needs none
            self._n_unfit += float(values["mass"]) < LOW_MASS

    def summarize(self, n_left_out: int) -> None:
        """Print how many rows have each label."""
        n = sum(self._counts.values())
        counts = {text: self._counts[text] for text in self.choices if self._counts[text]}
        draw_counts((next(iter(self.columns)), "rows"), counts, n)
        unused = [text for text in self.choices if not self._counts[text]]
        if n and unused:
            more = f" and {len(unused) - _MAX_NAMED:,} more" if len(unused) > _MAX_NAMED else ""
            say(f"no row got: {', '.join(unused[:_MAX_NAMED])}{more}")
        favoured = [text for text, count in counts.items() if n >= _MIN_ROWS and count >= _NEARLY_ALL * n]
        given, batch = self.calibrating.given, "--calibration batch, if the choices are about equally frequent, or "
        if over_rows(given) is not None and 0 < n < MIN_ROWS:
            say(
                f"fewer than {MIN_ROWS} rows are too few for --calibration batch: the probabilities are the model's own"
            )
        if favoured:
            batch = "" if isinstance(given, Calibration) or over_rows(given) or n < MIN_ROWS else batch
            say(
                f"nearly all rows got {favoured[0]}, which the model may favour. Try {batch}token-trie evaluate, which "
                "compares ways to answer on rows whose answers are known"
            )
        skipped = f", {n_left_out:,} left out" if n_left_out else ""
        unfit = f"; in {self._n_unfit:,} the model gives the choices together less than 1 %" if self._n_unfit else ""
        say(f"{n:,} rows labelled{skipped}{unfit}")


class _PromptLabeller(RowLabeller):
    def __init__(
        self,
        asked: LabellerOptions,
        template: Template,
        texts: list[str],
        mode: LabelMode,
        probabilities: bool,
        calibrating: CalibrationOptions,
    ) -> None:
        figures = ["probability", "margin", "mass"] if mode == "exact" else []
        options = [template.text, asked.chat, asked.leaf_end, mode]
        super().__init__(calibrating, ["answer", *figures], template, texts, probabilities, texts, options)
        name = f"{template.text} (as a message)" if asked.chat else template.text
        self.asked, self.row_options = texts, RowOptions(template=name, leaf_end=asked.leaf_end)
        self.empty = as_prompt(template.fill(dict.fromkeys(template.columns, _ABSENT)), asked.chat)
        self._template = template
        self._chat = asked.chat
        self._mode = mode

    def check(self, llm: Llama) -> None:
        trie = TokenTrie.from_choices(llm, self.choices)
        if self._mode == "exact" and trie.n_nodes > MAX_SCORED:
            raise ArgumentError(
                f"{len(trie):,} choices: --mode exact evaluates {trie.n_nodes:,} nodes for each row, which can take "
                "minutes; use --mode greedy"
            )
        super().check(llm)

    def ask(self, values: dict[str, Any]) -> Any:
        return prompt_of(self._template, values, self._chat)

    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        given: Any = self.calibrating.given
        if given in NAMED:
            assert self.empty is not None
            given = NAMED[given].with_prompt(self.empty)
        return choose_many(
            llm,
            asked,
            self.choices,
            mode=self._mode,
            probabilities=self._mode == "exact",
            leaf_end=self.row_options.leaf_end,
            on_error="return",
            calibration=None if given == "raw" else given,
        )

    def read(self, answer: Decision[str]) -> dict[str, Any]:
        if answer.probabilities is None:
            return self.values(answer.text, [], [])
        figures = [float(answer.probabilities[answer.index]), answer.margin, answer.mass]
        return self.values(answer.text, figures, answer.probabilities.tolist())


class _QuestionLabeller(RowLabeller):
    def __init__(
        self,
        asked: LabellerOptions,
        question: str,
        template: Template | None,
        texts: list[str],
        probabilities: bool,
        calibrating: CalibrationOptions,
    ) -> None:
        described: dict[str, str | None] = {}
        for text in texts:
            name, _, description = map(str.strip, text.partition("="))
            if not name:
                raise ArgumentError(f"--choice: {text!r} has no name before the =")
            if name in described:
                raise ArgumentError(f"--choice: {name!r} is given twice, with different descriptions")
            described[name] = description or None
        form: FormName | Form | None = replace(FORMS[asked.form or "unlisted"], chat=True) if asked.chat else asked.form
        options = ["question", question, repr(form), None if template is None else template.text, asked.orders]
        columns, choices = ["value", "probability", "confidence", "mass"], list(described.items())
        super().__init__(calibrating, columns, template, list(described), probabilities, choices, options)
        self.asked = Choice(question, described)
        self._is_chat = asked.chat
        read = "" if template is None else template.text  # otherwise known from the table
        self.row_options = RowOptions(columns=read, form=form, orders=asked.orders)

    def put(self, examples: Examples) -> None:
        """Put examples before each row; ArgumentError for an answer that is not a choice."""
        self.row_options = replace(self.row_options, examples=examples)
        self.options += ["examples", digest_of(examples.of(self.asked, self.choices))]

    def check(self, llm: Llama) -> None:
        if self._is_chat and not has_chat_template(llm):
            raise ArgumentError("--chat: this model's file has no chat template; leave the option out")
        super().check(llm)

    def ask(self, values: dict[str, Any]) -> Any:
        asked = None if self.template is None else str(self.template.fill(values))
        read = self.columns_read(values)
        require_content(read)
        return to_json(read) if asked is None else asked

    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        given: Any = self.calibrating.given
        named = DecideOptions.calibration if given is None else None if given == "raw" else given
        rows = self.row_options
        return decide_many(
            llm,
            asked,
            self.asked,
            on_error="return",
            form=rows.form,
            orders=rows.orders,
            examples=rows.examples,
            calibration=named,
        )

    def read(self, answer: ChoiceAnswer[str]) -> dict[str, Any]:
        p = answer.probabilities
        return self.values(answer.value, [p[answer.value], answer.confidence, answer.mass], p.values())


@dataclass(frozen=True)
class LabellerOptions(RowPrompt):
    """The question or the prompt for each row."""

    question: Annotated[
        str | None,
        typer.Option(
            "--question",
            "-q",
            help="The question to answer about each row, as in `decide`: about all its columns, or about the text of "
            "--prompt. Each choice is then NAME or NAME=DESCRIPTION.",
        ),
    ] = None
    form: Annotated[
        FormName | None,
        typer.Option(help="The form of --question. Default: what suits the model, by its file."),
    ] = None
    orders: Annotated[
        int,
        typer.Option(min=1, help="With --form listed or letters: the number of orders of the choices to average over."),
    ] = 1
    leaf_end: LeafEndOption = "longest"
    examples: Annotated[
        Path | None,
        typer.Option(
            help="With --question: a table with examples. The model reads some of its rows, with their answers from "
            "column --gold, before each row.",
        ),
    ] = None
    examples_each: Annotated[
        int, typer.Option(min=1, help="Number of --examples for each answer; the first ones are used.")
    ] = 1

    def labeller(
        self,
        table: Table,
        choices: ChoiceOptions,
        gold: str | None,
        *,
        mode: LabelMode = "exact",
        probabilities: bool = False,
        calibrating: CalibrationOptions,
        is_whole: bool = False,
    ) -> RowLabeller:
        """Return the labeller of a table's rows, which it may look at as a whole.

        ArgumentError if options exclude each other, or a row is no example; other errors as of `CalibrationOptions`.
        """
        if mode == "greedy" and (probabilities or self.leaf_end != "longest" or calibrating.given is not None):
            raise ArgumentError("--probabilities, --leaf-end and --calibration: only with --mode exact")
        if self.question is not None and (mode != "exact" or self.leaf_end != "longest"):
            raise ArgumentError(f"--{'mode' if mode != 'exact' else 'leaf-end'}: not with --question")
        if self.question is None and (self.form is not None or self.orders != 1):
            raise ArgumentError(f"--{'form' if self.form is not None else 'orders'}: only with --question")
        if self.orders != 1 and self.form not in ("listed", "letters"):
            raise ArgumentError("--orders: needs --form listed or letters; in other forms choices have no order")
        require_one_standard_input(table.path, choices.choices_file, self.prompt_file)
        texts = list(dict.fromkeys(choices.read()))
        if len(texts) == 1:
            raise ArgumentError(f"one choice, {texts[0]!r}: each row would get it; give at least two")
        template = self.template()
        if gold is not None and self.examples is None:
            _require_gold(table, gold)
        if self.question is None:
            if template is None:
                raise ArgumentError("use --question, --prompt or --prompt-file")
            if self.examples is not None:
                raise ArgumentError("--examples: only with --question; a prompt can contain examples in its text")
            _require_no_descriptions(texts)
            by_prompt = _PromptLabeller(self, template, texts, mode, probabilities, calibrating)
            by_prompt.look_at(table, gold, is_whole)
            return by_prompt
        labeller = _QuestionLabeller(self, self.question, template, texts, probabilities, calibrating)
        labeller.look_at(table, gold, is_whole)
        if self.examples is not None:
            labeller.put(self._read_examples(self.examples, labeller, gold))
        elif self.examples_each != 1:
            raise ArgumentError("--examples-each: only with --examples")
        return labeller

    def _read_examples(self, path: Path, labeller: RowLabeller, gold: str | None) -> Examples:
        if gold is None:
            raise ArgumentError("--examples: needs --gold, the column with their answers")
        with closing(open_table(path, format_of(path, None, "the ending of its name"))) as table:
            examples, problems, _ = read_gold(table, gold, labeller)
        if problems:
            raise ArgumentError(problems[0])
        if not examples:
            raise ArgumentError(f"{path}: no row with an answer in {gold!r}")
        states, answers = [one.asked for one in examples], [one.label for one in examples]
        return Examples(states, answers, self.examples_each)


class GoldRow(NamedTuple):
    """A row with a label, and what the model reads of it."""

    row: TableRow
    label: str
    asked: Any


def read_gold(
    table: Table, gold: str, labeller: RowLabeller, labels: Labels | None = None
) -> tuple[list[GoldRow], list[str], int]:
    """Read the rows of a table that have a label in column `gold`, which has to be one of `labels`.

    Returns the rows, the problems of other rows, and the number of rows without a label. ArgumentError if the table has
    no such column, or the prompt has it.
    """
    if labeller.template is not None and gold in labeller.template.columns:
        raise ArgumentError(f"--gold: column {gold!r} must not be in the prompt")
    _require_gold(table, gold)
    rows: list[GoldRow] = []
    problems: list[str] = []
    n_empty = 0
    for row in table.rows():
        try:
            if row.bad is not None:
                raise ArgumentError(row.bad)
            if is_nothing(row.values.get(gold)):
                n_empty += 1
                continue
            label = text_of(row.values[gold])
            if labels is not None and labels.position(label) is None:
                raise ArgumentError(f"{gold}: {labels.refusal(label)}")
            rows.append(GoldRow(row, label, labeller.ask(row.values)))
        except ArgumentError as error:
            problems.append(f"{row.where}: {error}")
    return rows, problems, n_empty


def _require_gold(table: Table, gold: str) -> None:
    if table.columns is not None and gold not in table.columns:
        raise ArgumentError(
            f"{table.name}: no column {gold!r}, which --gold names; the columns are {', '.join(table.columns)}"
        )


def _require_no_descriptions(texts: list[str]) -> None:
    """Raise ArgumentError for choices NAME=DESCRIPTION: several words, or all with different names."""
    described = [text for text in texts if re.match(r"\s*[^=\s][^=]*=(?!=)\s*\S", text)]
    worded = [text for text in described if len(text.partition("=")[2].split()) > 1]
    names = {text.partition("=")[0].strip() for text in described}
    if worded or len(names) == len(texts):
        raise ArgumentError(
            f"--choice: {(worded or described)[0]!r}: a description needs --question; with --prompt, a choice is the "
            "whole text that the model writes"
        )


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
    rows: RowsOptions,
    choices: ChoiceOptions,
    model: ModelOptions,
    asked: LabellerOptions,
    calibrating: CalibrationOptions,
    mode: Annotated[
        LabelMode,
        typer.Option(
            help="exact: scores every choice, and adds columns with probabilities; greedy: takes the best token at "
            "each branch point. This is faster with thousands of choices, but gives no probabilities."
        ),
    ] = "exact",
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add a column p_CHOICE with the probability of each choice.")
    ] = False,
    gold: Annotated[
        str | None,
        typer.Option("--gold", help="A column with correct answers, of --examples and of TABLE, which is not read."),
    ] = None,
) -> None:
    """Answer a question or a prompt for each row of a table, and write the table with the answers.

    With --question, the added columns are value, probability (of this choice among the choices), confidence (how far
    the probability is above an even share) and mass (the probability that the model, without the constraint, writes one
    of the choices). With --prompt alone, they are answer, probability, margin (the distance to the next best
    probability) and mass (near 0 if none of the choices fits); with --mode greedy, only answer. The last two columns
    are row (the number of the row in TABLE) and run (a digest of choices, options and model). Rows that cannot be
    labelled are reported on standard error.
    """
    if rows.resume and over_rows(calibrating.given) is not None:
        raise ArgumentError(
            f"--resume: not with --calibration {calibrating.given}, which depends on all rows; use a calibration file "
            "instead"
        )
    with rows.open() as table:
        labeller = asked.labeller(table, choices, gold, mode=mode, probabilities=probabilities, calibrating=calibrating)
        run_job(labeller, table, rows, model)
    if calibrating.gate is not None:
        say(f"the gate: {calibrating.gate}")
