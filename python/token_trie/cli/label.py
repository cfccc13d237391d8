"""``token-trie label``: a label for each row of a table, by a question or by a prompt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
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
from token_trie.cli.rows import RowJob, RowsOptions, draw_counts, prompt_of, require_content, run_job
from token_trie.cli.tables import Table, TableRow, format_of, open_table
from token_trie.decisions.calibration import MIN_ROWS, Contextual
from token_trie.decisions.decision import LOW_MASS
from token_trie.decisions.gold import Labels, is_nothing
from token_trie.decisions.many import choose_many
from token_trie.decisions.options import MAX_SCORED
from token_trie.errors import ArgumentError
from token_trie.native.core import Llama
from token_trie.questions.decide import decide_many
from token_trie.questions.options import FORMS, DecideOptions, FormName
from token_trie.questions.question import Choice, Examples
from token_trie.sets.prompt import Prompt, Template, has_chat_template, text_of, to_json
from token_trie.sets.trie import TokenTrie
from token_trie.trust.calibration import Calibration
from token_trie.trust.gate import Gate
from token_trie.trust.rows import RowOptions, reader_of

LabelMode: TypeAlias = Literal["exact", "greedy"]

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
            "contextual: by those of an empty row; batch: by the mean over the rows, for labels that are about equally "
            "frequent; raw: none; or a file from `evaluate --fit`. "
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
        if self.calibration is not None and self.calibration not in ("raw", "contextual", "batch"):
            if not Path(self.calibration).exists():
                raise ArgumentError(
                    f"--calibration: {self.calibration!r} is none of raw, contextual, batch, and no file"
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


class RowLabeller(RowJob):
    """Labels rows, by a prompt of the user's or by a question.

    Attributes
    ----------
    choices : list of str
        The labels.
    asked : list of str or Choice
        The labels, or the question.
    row_options : RowOptions
        The options of rows, for evaluation and fitting.
    columns : list of str
        The columns that the model reads.
    template : Template, optional
        The text of a row. None: that of its column, or the columns as JSON if there are several.
    empty : Prompt, optional
        The prompt without the content of a row. None: a question has its own.
    """

    doing = "labelling"

    def __init__(
        self,
        asked: list[str] | Choice[str],
        choices: list[str],
        row_options: RowOptions,
        columns: list[str],
        template: Template | None,
        *,
        chat: bool,
        mode: LabelMode,
        probabilities: bool,
        calibrating: CalibrationOptions,
    ) -> None:
        self.asked, self.choices, self.row_options = asked, choices, row_options
        self.columns, self.template = columns, template
        self.empty: Prompt | None = None
        self.added = ["value", "probability", "confidence", "mass"]
        if not isinstance(asked, Choice):
            assert template is not None
            self.empty = as_prompt(template.fill(dict.fromkeys(columns, "N/A")), chat)
            self.added = ["answer", "probability", "margin", "mass"][: 4 if mode == "exact" else 1]
        self.added += ["review"] if calibrating.gate is not None else []
        self.added += [f"p_{text}" for text in choices if probabilities]
        self._chat, self._mode, self._probabilities, self._calibrating = chat, mode, probabilities, calibrating
        self._counts: Counter[str] = Counter()
        self._n_unfit = 0

    def check(self, llm: Llama) -> None:
        """Raise an error if the choices do not fit the model, or CalibrationError if the calibration does not."""
        if isinstance(self.asked, Choice):
            if self._chat and not has_chat_template(llm):
                raise ArgumentError("--chat: this model's file has no chat template; leave the option out")
        else:
            trie = TokenTrie.from_choices(llm, self.choices)
            if self._mode == "exact" and trie.n_nodes > MAX_SCORED:
                raise ArgumentError(
                    f"{len(trie):,} choices: --mode exact evaluates {trie.n_nodes:,} nodes for each row, which can "
                    "take minutes; use --mode greedy"
                )
        if isinstance(self._calibrating.given, Calibration):
            self._calibrating.given.binding.require(reader_of(llm, self.asked, self.row_options).binding)

    def columns_read(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a row that the model reads; ArgumentError if a column is missing."""
        for name in self.columns:
            if name not in values:
                raise ArgumentError(f"no column {name!r}; there are {', '.join(values)}")
        return {name: values[name] for name in self.columns}

    def ask(self, values: dict[str, Any]) -> Any:
        """Return the text of a row, or the prompt."""
        if self.template is not None:
            prompt = prompt_of(self.template, values, chat=self._chat and not isinstance(self.asked, Choice))
            return str(prompt) if isinstance(self.asked, Choice) else prompt
        read = self.columns_read(values)
        require_content(read)
        return to_json(read) if len(read) > 1 else text_of(*read.values())

    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        """Yield an answer to the question, or after the prompt, for each row."""
        given: Any = self._calibrating.given
        rows = self.row_options
        if isinstance(self.asked, Choice):
            return decide_many(
                llm,
                asked,
                self.asked,
                on_error="return",
                form=rows.form,
                orders=rows.orders,
                examples=rows.examples,
                calibration=DecideOptions.calibration if given is None else None if given == "raw" else given,
            )
        if given == "contextual":
            assert self.empty is not None
            given = Contextual(self.empty)
        return choose_many(
            llm,
            asked,
            self.choices,
            mode=self._mode,
            probabilities=self._mode == "exact",
            leaf_end=rows.leaf_end,
            on_error="return",
            calibration=None if given == "raw" else given,
        )

    def read(self, answer: Any) -> list[Any]:
        """Return the label and its figures."""
        text, shares = answer.value, answer.probabilities
        values: list[Any] = [text]
        if isinstance(self.asked, Choice):
            values += [shares[text], answer.confidence, answer.mass]
            shares = shares.values()
        elif shares is not None:
            values += [shares[answer.index], answer.margin, answer.mass]
            self._n_unfit += answer.mass is not None and answer.mass < LOW_MASS  # a head needs none
        if self._calibrating.gate is not None:
            values.append(int(not self._calibrating.gate.decides(values[1])))
        if self._probabilities:
            values += [*shares]
        self._counts[text] += 1
        return [one if one is None or isinstance(one, (str, int)) else float(f"{one:.6g}") for one in values]

    def summarize(self, rest: str) -> None:
        """Print how many rows have each label."""
        n = sum(self._counts.values())
        counts = {text: self._counts[text] for text in self.choices if self._counts[text]}
        draw_counts((self.added[0], "rows"), counts, n)
        unused = [text for text in self.choices if not self._counts[text]]
        if n and unused:
            more = f" and {len(unused) - _MAX_NAMED:,} more" if len(unused) > _MAX_NAMED else ""
            say(f"no row got: {', '.join(unused[:_MAX_NAMED])}{more}")
        given = self._calibrating.given
        if given == "batch" and 0 < n < MIN_ROWS:
            say(
                f"fewer than {MIN_ROWS} rows are too few for --calibration batch: the probabilities are the model's own"
            )
        favoured = [text for text, count in counts.items() if n >= _MIN_ROWS and count >= _NEARLY_ALL * n]
        if favoured:
            batch = "--calibration batch, if the choices are about equally frequent, or "
            if isinstance(given, Calibration) or given == "batch" or n < MIN_ROWS:
                batch = ""
            say(
                f"nearly all rows got {favoured[0]}, which the model may favour. Try {batch}token-trie evaluate, which "
                "compares ways to answer on rows whose answers are known"
            )
        unfit = f"; in {self._n_unfit:,} the model gives the choices together less than 1 %" if self._n_unfit else ""
        say(f"{n:,} rows labelled{rest}{unfit}")


@dataclass(frozen=True)
class LabellerOptions(RowPrompt):
    """The question or the prompt for each row."""

    question: Annotated[
        str | None,
        typer.Option(
            "--question",
            "-q",
            help="The question about each row, as in `decide`: about --column, or about the text of --prompt. "
            "Each choice is then NAME or NAME=DESCRIPTION.",
        ),
    ] = None
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --question: the column that the model reads. Repeat the option for each one; several are read "
            "as JSON, with their names. Default: the only column that TABLE has, besides --gold.",
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
    ) -> RowLabeller:
        """Return the labeller of a table's rows.

        ArgumentError if options exclude each other, or a row is no example; other errors as of `CalibrationOptions`.
        """
        is_question = self.question is not None
        if mode == "greedy" and (probabilities or self.leaf_end != "longest" or calibrating.given is not None):
            raise ArgumentError("--probabilities, --leaf-end and --calibration: only with --mode exact")
        if is_question and (mode != "exact" or self.leaf_end != "longest"):
            raise ArgumentError(f"--{'mode' if mode != 'exact' else 'leaf-end'}: not with --question")
        names = ("column", "form", "orders", "examples")
        others = [name for name in names if getattr(self, name) not in (None, 1)]
        if others and not is_question:
            raise ArgumentError(f"--{others[0]}: only with --question")
        if self.orders != 1 and self.form not in ("listed", "letters"):
            raise ArgumentError("--orders: needs --form listed or letters; in other forms choices have no order")
        if self.examples is None and self.examples_each != 1:
            raise ArgumentError("--examples-each: only with --examples")
        require_one_standard_input(table.path, choices.choices_file, self.prompt_file)
        texts = list(dict.fromkeys(choices.read()))
        if len(texts) == 1:
            raise ArgumentError(f"one choice, {texts[0]!r}: each row would get it; give at least two")
        if gold is not None and self.examples is None:
            table.require(gold, "--gold")
        template = self.template()
        columns = self._columns(table, gold, template)
        asked: list[str] | Choice[str] = texts
        if self.question is not None:
            form: Any = replace(FORMS[self.form or "unlisted"], chat=True) if self.chat else self.form
            described = _described(texts)
            asked, texts = Choice(self.question, described), list(described)
            read = to_json(columns) if template is None else template.text
            row_options = RowOptions(columns=read, form=form, orders=self.orders)
        elif template is None:
            raise ArgumentError("use --question, --prompt or --prompt-file")
        else:
            _require_no_descriptions(texts)
            name = f"{template.text} (as a message)" if self.chat else template.text
            row_options = RowOptions(template=name, leaf_end=self.leaf_end)
        labeller = RowLabeller(
            asked,
            texts,
            row_options,
            columns,
            template,
            chat=self.chat,
            mode=mode,
            probabilities=probabilities,
            calibrating=calibrating,
        )
        if self.examples is not None:
            labeller.row_options = replace(row_options, examples=self._read_examples(self.examples, labeller, gold))
        return labeller

    def _columns(self, table: Table, gold: str | None, template: Template | None) -> list[str]:
        """Return the columns that the model reads."""
        if template is not None:
            if self.column is not None:
                raise ArgumentError(
                    "--column and --prompt: use only one of them; {column} in the prompt names one, too"
                )
            table.check(template)
            return template.columns
        if self.column is not None:
            for name in self.column:
                table.require(name, "--column")
            return list(dict.fromkeys(self.column))
        others = [name for name in table.columns if name != gold]
        if self.question is not None and len(others) != 1:
            raise ArgumentError(
                f"{table.name}: name the column to read with --column; the columns are {', '.join(others)}"
            )
        return others

    def _read_examples(self, path: Path, labeller: RowLabeller, gold: str | None) -> Examples:
        if gold is None:
            raise ArgumentError("--examples: needs --gold, the column with their answers")
        with closing(open_table(path, format_of(path))) as table:
            rows, problems, _ = read_gold(table, gold, labeller)
        if problems:
            raise ArgumentError(problems[0])
        if not rows:
            raise ArgumentError(f"{path}: no row with an answer in {gold!r}")
        states, answers = [one.asked for one in rows], [one.label for one in rows]
        examples = Examples(states, answers, self.examples_each)
        assert isinstance(labeller.asked, Choice)
        examples.of(labeller.asked, labeller.choices)
        return examples


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
    no such column, or the model would read it.
    """
    if gold in labeller.columns:
        where = "among --column" if labeller.template is None else "in the prompt"
        raise ArgumentError(f"--gold: column {gold!r} must not be {where}")
    table.require(gold, "--gold")
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


def _described(texts: list[str]) -> dict[str, str | None]:
    """Return the names and descriptions of choices NAME or NAME=DESCRIPTION."""
    described: dict[str, str | None] = {}
    for text in texts:
        name, _, description = map(str.strip, text.partition("="))
        if not name:
            raise ArgumentError(f"--choice: {text!r} has no name before the =")
        if name in described:
            raise ArgumentError(f"--choice: {name!r} is given twice, with different descriptions")
        described[name] = description or None
    return described


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
    "token-trie label tickets.csv --column text --question 'Which team should handle this?' "
    "-c 'billing=payments and charges' -c 'technical=the app does not work' -o routed.csv",
    "token-trie label tickets.csv --column subject --column body -q 'Which team?' --choices-file teams.txt "
    "--calibration teams.json --target-accuracy 0.95 -o routed.csv",
    "token-trie label reviews.csv --prompt 'Review: {text}\\nSentiment:' -c positive -c negative -o labels.jsonl",
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
    probability) and mass (near 0 if none of the choices fits); with --mode greedy, only answer. Rows that cannot be
    labelled are reported on standard error.
    """
    if rows.has_rows and calibrating.given == "batch":
        raise ArgumentError(
            f"--calibration {calibrating.given}: depends on all rows together, and {str(rows.output)!r} has some "
            "already; remove it, or use a calibration file"
        )
    with rows.open() as table:
        labeller = asked.labeller(table, choices, gold, mode=mode, probabilities=probabilities, calibrating=calibrating)
        run_job(labeller, table, rows, model)
    if calibrating.gate is not None:
        say(f"the gate: {calibrating.gate}")
