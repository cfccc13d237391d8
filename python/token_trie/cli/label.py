"""``token-trie label`` and ``token-trie extract``: a label or a record for each row of a table."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import typer

from token_trie.arrays import Floats
from token_trie.cli.options import (
    SERVED_N_CTX,
    ChoiceOptions,
    Flags,
    LeafEndOption,
    ModelOptions,
    RowPrompt,
    as_prompt,
    command,
    read_json,
    require_one_standard_input,
    say,
)
from token_trie.cli.tables import (
    RowJob,
    RowsOptions,
    Table,
    TableRow,
    draw_counts,
    prompt_of,
    require_content,
    run_job,
)
from token_trie.decisions.calibration import MIN_ROWS, Contextual
from token_trie.decisions.decision import LOW_MASS, margin_of
from token_trie.decisions.gold import Labels, is_nothing
from token_trie.decisions.many import choose_many
from token_trie.decisions.options import MAX_SCORED, RecordOptions
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.core import Llama
from token_trie.native.files import users_cache
from token_trie.questions.decide import decide_many
from token_trie.questions.options import FORMS, DecideOptions, FormName
from token_trie.questions.question import Choice, Examples, QuestionStats, make_answer
from token_trie.records.fill import Record, fill_many, read_template
from token_trie.records.nodes import Object, Union, types_in
from token_trie.sets.prompt import Prompt, Template, has_chat_template, text_of, to_json
from token_trie.sets.trie import TokenTrie
from token_trie.trust.calibration import Calibration
from token_trie.trust.gate import Gate
from token_trie.trust.metrics import interval_of, softmax
from token_trie.trust.rows import CachedRows, Readings, RowOptions, key_of, reader_of

LabelMode: TypeAlias = Literal["exact", "greedy"]

_MAX_NAMED = 10


@dataclass(frozen=True)
class RowQuestion(RowPrompt):
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
            "as JSON, with their names.",
        ),
    ] = None
    form: Annotated[FormName | None, "The form of --question. Default: what suits the model, by its file."] = None
    orders: Annotated[
        int,
        typer.Option(min=1, help="With --form listed or letters: the number of orders of the choices to average over."),
    ] = 1
    leaf_end: LeafEndOption = "longest"
    examples: Annotated[
        Path | None,
        "With --question: a table with examples. The model reads some of its rows, with their answers from "
        "column --gold, before each row.",
    ] = None
    examples_each: Annotated[
        int, typer.Option(min=1, help="Number of --examples for each answer; the first ones are used.")
    ] = 1


@dataclass(frozen=True)
class LabelOptions(RowQuestion):
    """The columns of a label: its figures, their calibration, and the gate below which a person decides."""

    mode: Annotated[
        LabelMode,
        "exact: scores every choice, and adds columns with probabilities; greedy: takes the best token at "
        "each branch point. This is faster with thousands of choices, but gives no probabilities.",
    ] = "exact"
    probabilities: Annotated[bool, "Add a column p_CHOICE with the probability of each choice."] = False
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

    def check(self) -> None:
        """Raise ArgumentError if options exclude each other."""
        is_question, is_exact, leaf_end = self.question is not None, self.mode == "exact", self.leaf_end != "longest"
        if not is_exact and (self.probabilities or leaf_end or self.given is not None):
            raise ArgumentError("--probabilities, --leaf-end and --calibration: only with --mode exact")
        if is_question and (leaf_end or not is_exact):
            raise ArgumentError(f"--{'leaf-end' if leaf_end else 'mode'}: not with --question")
        names = ("column", "form", "orders", "examples")
        others = [name for name in names if getattr(self, name) not in (None, 1)]
        if others and not is_question:
            raise ArgumentError(f"--{others[0]}: only with --question")
        if self.orders != 1 and self.form not in ("listed", "letters"):
            raise ArgumentError("--orders: needs --form listed or letters; in other forms choices have no order")
        if self.examples is None and self.examples_each != 1:
            raise ArgumentError("--examples-each: only with --examples")


class GoldRow(NamedTuple):
    """A row with a label, and what the model reads of it."""

    row: TableRow
    label: str
    asked: Any


@dataclass(frozen=True)
class _KeptAnswer:
    """A choice after a prompt, as a `Decision` has it."""

    value: str
    index: int
    probabilities: Floats
    mass: float

    @property
    def margin(self) -> float:
        return margin_of(self.probabilities)


class RowLabeller(RowJob):
    """Labels the rows of a table, by a prompt of the user's or by a question.

    ArgumentError if options exclude each other, or a row is no example; other errors as of `LabelOptions`.
    """

    doing = "labelling"

    asked: list[str] | Choice[str]
    """The labels, or the question."""
    row_options: RowOptions
    """The options of rows, for evaluation and fitting."""
    empty: Prompt | None = None
    """The prompt without the content of a row; None: a question has its own."""

    def __init__(self, table: Table, options: LabelOptions, choices: ChoiceOptions, gold: str | None) -> None:
        options.check()
        require_one_standard_input(table.path, choices.choices_file, options.prompt_file)
        texts = list(dict.fromkeys(choices.read()))
        if len(texts) == 1:
            raise ArgumentError(f"one choice, {texts[0]!r}: each row would get it; give at least two")
        if gold is not None and options.examples is None:
            table.require(gold, "--gold")
        self._options = options
        self.template = options.template()
        """The text of a row. None: that of its column, or the columns as JSON if there are several."""
        self.columns = self._columns_of(table)
        """The columns that the model reads."""
        if options.question is not None:
            self.asked = Choice(options.question, _described(texts))
            texts = list(self.asked.values)
            self.added = ["value", "probability", "confidence", "mass"]
            form: Any = replace(FORMS[options.form or "unlisted"], chat=True) if options.chat else options.form
            read = to_json(self.columns) if self.template is None else self.template.text
            self.row_options = RowOptions(columns=read, form=form, orders=options.orders)
        else:
            assert self.template is not None
            _require_no_descriptions(texts)
            self.asked = texts
            self.added = ["answer", "probability", "margin", "mass"][: 4 if options.mode == "exact" else 1]
            name = f"{self.template.text} (as a message)" if options.chat else self.template.text
            self.row_options = RowOptions(template=name, leaf_end=options.leaf_end)
            self.empty = as_prompt(self.template.fill(dict.fromkeys(self.columns, "N/A")), options.chat)
        self.choices = texts
        if options.examples is not None:
            examples = self._read_examples(options.examples, gold, options.examples_each)
            self.row_options = replace(self.row_options, examples=examples)
        self.added += ["review"] if options.gate is not None else []
        self.added += [f"p_{text}" for text in texts if options.probabilities]
        self._counts: Counter[str] = Counter()
        self._n_unfit = 0
        self._gold = gold
        self._n_of_gold = self._n_right = 0

    def _columns_of(self, table: Table) -> list[str]:
        named = self._options.column
        if self.template is not None:
            if named is not None:
                raise ArgumentError(
                    "--column and --prompt: use only one of them; {column} in the prompt names one, too"
                )
            table.check(self.template)
            return self.template.columns
        if self._options.question is None:
            raise ArgumentError("use --question, --prompt or --prompt-file")
        if named is None:
            raise ArgumentError(
                f"{table.name}: name the column to read with --column; the columns are {', '.join(table.columns)}"
            )
        for name in named:
            table.require(name, "--column")
        return list(dict.fromkeys(named))

    def _read_examples(self, path: Path, gold: str | None, n_each: int) -> Examples:
        if gold is None:
            raise ArgumentError("--examples: needs --gold, the column with their answers")
        with closing(Table(path)) as table:
            rows, problems, _ = self.read_gold(table, gold)
        if problems:
            raise ArgumentError(problems[0])
        if not rows:
            raise ArgumentError(f"{path}: no row with an answer in {gold!r}")
        examples = Examples([one.asked for one in rows], [one.label for one in rows], n_each)
        assert isinstance(self.asked, Choice)
        examples.of(self.asked, self.choices)
        return examples

    def read_gold(self, table: Table, gold: str, labels: Labels | None = None) -> tuple[list[GoldRow], list[str], int]:
        """Read the rows of a table that have a label in column `gold`, which has to be one of `labels`.

        Returns the rows, the problems of other rows, and the number of rows without a label. ArgumentError if the table
        has no such column, or the model would read it.
        """
        if gold in self.columns:
            where = "among --column" if self.template is None else "in the prompt"
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
                rows.append(GoldRow(row, label, self.ask(row.values)))
            except ArgumentError as error:
                problems.append(f"{row.where}: {error}")
        return rows, problems, n_empty

    def check(self, llm: Llama) -> None:
        """Raise an error if the choices do not fit the model, or CalibrationError if the calibration does not."""
        given = self._options.given
        if isinstance(self.asked, Choice):
            if self._options.chat and not has_chat_template(llm):
                raise ArgumentError("--chat: this model's file has no chat template; leave the option out")
        else:
            trie = TokenTrie.from_choices(llm, self.choices)
            if self._options.mode == "exact" and trie.n_nodes > MAX_SCORED:
                raise ArgumentError(
                    f"{len(trie):,} choices: --mode exact evaluates {trie.n_nodes:,} nodes for each row, which can "
                    "take minutes; use --mode greedy"
                )
        if isinstance(given, Calibration):
            given.binding.require(reader_of(llm, self.asked, self.row_options).binding)

    def columns_read(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a row that the model reads; ArgumentError if a column is missing."""
        for name in self.columns:
            if name not in values:
                raise ArgumentError(f"no column {name!r}; there are {', '.join(values)}")
        return {name: values[name] for name in self.columns}

    def ask(self, values: dict[str, Any]) -> Any:
        """Return the text of a row, or the prompt."""
        if self.template is not None:
            prompt = prompt_of(self.template, values, chat=self._options.chat and not isinstance(self.asked, Choice))
            return str(prompt) if isinstance(self.asked, Choice) else prompt
        read = self.columns_read(values)
        require_content(read)
        return to_json(read) if len(read) > 1 else text_of(*read.values())

    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        """Yield an answer to the question, or after the prompt, for each row."""
        given: Any = self._options.given
        rows, mode = self.row_options, self._options.mode
        if self._keeps:
            return self._answer_and_keep(llm, asked)
        if isinstance(self.asked, Choice):
            given = DecideOptions.calibration if given is None else None if given == "raw" else given
            options: Any = {"form": rows.form, "orders": rows.orders, "examples": rows.examples}
            return decide_many(llm, asked, self.asked, on_error="return", calibration=given, **options)
        if given == "contextual" and self.empty is not None:
            given = Contextual(self.empty)
        return choose_many(
            llm,
            asked,
            self.choices,
            mode=mode,
            probabilities=mode == "exact",
            leaf_end=rows.leaf_end,
            on_error="return",
            calibration=None if given == "raw" else given,
        )

    @property
    def _keeps(self) -> bool:
        """Whether what the model says of rows is kept for `evaluate`, which has answers of these kinds alone."""
        of = self._options
        return self._gold is not None and of.mode == "exact" and of.given != "batch" and of.examples is None

    def _answer_and_keep(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Any]:
        """Do as `answer`, where `evaluate` keeps what it reads, with the hidden states that it reads by default."""
        reader, given = reader_of(llm, self.asked, self.row_options), self._options.given
        kept = CachedRows(users_cache() / "readings", key_of(self.row_options, reader.binding))
        prior: Any = 0.0
        if given == "contextual" and self.empty is not None:
            prior = kept.read(reader, [self.empty], states=True)[0].raw[0]
        for row in kept.each(reader, asked, states=True):
            if isinstance(row, TokenTrieError):
                yield row
                continue
            weights = row.raw - prior if row.contextual is None or given == "raw" else row.contextual
            if isinstance(given, Calibration):
                weights = given.log_probabilities(Readings.of([row], reader.binding))[0]
            shares = softmax(weights[None])[0]
            if isinstance(self.asked, Choice):
                yield make_answer(self.asked, shares, row.mass, "raw", QuestionStats(0, 0))
            else:
                best = int(shares.argmax())
                yield _KeptAnswer(self.choices[best], best, shares, row.mass)

    def read(self, answer: Any, row: TableRow) -> list[Any]:
        """Return the label and its figures."""
        self._compare(answer.value, row)
        text, shares = answer.value, answer.probabilities
        values: list[Any] = [text]
        if isinstance(self.asked, Choice):
            values += [shares[text], answer.confidence, answer.mass]
            shares = shares.values()
        elif shares is not None:
            values += [shares[answer.index], answer.margin, answer.mass]
            self._n_unfit += answer.mass is not None and answer.mass < LOW_MASS  # a head needs none
        if self._options.gate is not None:
            values.append(int(not self._options.gate.decides(values[1])))
        if self._options.probabilities:
            values += [*shares]
        self._counts[text] += 1
        return [one if one is None or isinstance(one, (str, int)) else float(f"{one:.6g}") for one in values]

    def _compare(self, answer: str, row: TableRow) -> None:
        """Count a row that has a label, and whether the answer is right."""
        label = None if self._gold is None else row.values.get(self._gold)
        if is_nothing(label):
            return
        self._n_of_gold += 1
        self._n_right += text_of(label) == answer

    def summarize(self, rest: str) -> None:
        """Print how many rows have each label."""
        n = self._counts.total()
        counts = {text: self._counts[text] for text in self.choices if self._counts[text]}
        draw_counts((self.added[0], "rows"), counts, n)
        unused = [text for text in self.choices if text not in counts]
        if n and unused:
            more = f" and {len(unused) - _MAX_NAMED:,} more" if len(unused) > _MAX_NAMED else ""
            say(f"no row got: {', '.join(unused[:_MAX_NAMED])}{more}")
        given = self._options.given
        if given == "batch" and 0 < n < MIN_ROWS:
            say(
                f"fewer than {MIN_ROWS} rows are too few for --calibration batch: the probabilities are the model's own"
            )
        unfit = f"; in {self._n_unfit:,} the model gives the choices together less than 1 %" if self._n_unfit else ""
        say(f"{n:,} rows labelled{rest}{unfit}")
        if self._n_of_gold:
            share = self._n_right / self._n_of_gold
            low, high = interval_of(share, self._n_of_gold)
            say(
                f"{self._n_right:,} of {self._n_of_gold:,} with a label in {self._gold!r} are right, {share:.1%} "
                f"(95 %: {low:.0%} to {high:.0%})"
            )


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
    options: LabelOptions,
    gold: Annotated[
        str | None,
        "A column with correct answers, of --examples and of TABLE. It is not read; how many rows are right is "
        "printed, and `evaluate` does not read these rows again.",
    ] = None,
) -> None:
    """Answer a question or a prompt for each row of a table, and write the table with the answers.

    With --question, the added columns are value, probability (of this choice among the choices), confidence (how far
    the probability is above an even share) and mass (the probability that the model, without the constraint, writes one
    of the choices). With --prompt alone, they are answer, probability, margin (the distance to the next best
    probability) and mass (near 0 if none of the choices fits); with --mode greedy, only answer. Rows that cannot be
    labelled are reported on standard error.
    """
    if rows.has_rows and options.given == "batch":
        raise ArgumentError(
            f"--calibration {options.given}: depends on all rows together, and {str(rows.output)!r} has some "
            "already; remove it, or use a calibration file"
        )
    with rows.open() as table:
        run_job(RowLabeller(table, options, choices, gold), table, rows, model)
    if options.gate is not None:
        say(f"the gate: {options.gate}")


_FLAGS = Flags(
    RecordOptions,
    without=("indent", "on_text", "think", "text"),
    mode="exact: the most probable value of each choice (the default); greedy: the best token at each branch point; "
    "sampled: a random token there.",
    max_nodes="For --mode exact: number of nodes after which the search for one value ends with the best so far; 0: no "
    "limit.",
    max_tokens="Largest number of tokens of one text or number. A longer one ends there if the schema lets it, and is "
    "listed in the column truncated.",
)


class _Extraction(RowJob):
    """Extracts records by a schema: each property of an object is a column; other values are the column record."""

    doing = "extracting from"
    n_ctx = SERVED_N_CTX

    def __init__(self, schema: object, template: Template, chat: bool, options: dict[str, Any]) -> None:
        self._schema, self._template, self._chat, self._options = schema, template, chat, options
        node = read_template(schema).node
        parts = [part for part in (node.options if isinstance(node, Union) else [node]) if types_in(part) != {"null"}]
        self._names = [field.name for part in parts if isinstance(part, Object) for field in part.fields]
        self._names = self._names if len(parts) == 1 else []
        truncated = "truncated"
        while truncated in self._names:
            truncated = f"_{truncated}"
        self.added = [*(self._names or ["record"]), truncated]
        self._n = self._n_truncated = self._n_refused = 0
        self._empty: Counter[str] = Counter()

    def ask(self, values: dict[str, Any]) -> Any:
        return prompt_of(self._template, values, self._chat)

    def answer(self, llm: Llama, asked: Iterable[Any]) -> Iterator[Record[Any] | TokenTrieError]:
        for record in fill_many(llm, asked, self._schema, on_error="return", **self._options):
            if isinstance(record, TokenTrieError):
                self._n_refused += _is_refusal(record)
            yield record

    def read(self, answer: Record[Any], row: TableRow) -> list[Any]:
        record = json.loads(answer.text)
        values = [(record or {}).get(name) for name in self._names] if self._names else [record]
        self._n += 1
        self._n_truncated += bool(answer.truncated)
        self._empty.update(name for name, value in zip(self.added, values, strict=False) if value in (None, ""))
        return [*values, " ".join(pointer or "/" for pointer in answer.truncated) or None]

    def summarize(self, rest: str) -> None:
        """Print in how many rows each field is empty."""
        draw_counts(("field", "empty"), {name: self._empty[name] for name in self.added[:-1]}, self._n)
        truncated = f", {self._n_truncated:,} of them with a truncated value" if self._n_truncated else ""
        refused = f" ({self._n_refused:,} refused by the type)" if self._n_refused else ""
        say(f"{self._n:,} records extracted{truncated}{rest}{refused}")


def _is_refusal(error: BaseException | None) -> bool:
    """Whether a type refused a record that its schema allows."""
    while error is not None:
        if str(error).startswith("schema: "):
            return True
        error = error.__cause__
    return False


def _imported(given: str) -> Any:
    """Return what MODULE:NAME names; modules are found in the current folder, too."""
    module, colon, name = given.partition(":")
    if not (module and colon and name):
        raise ArgumentError(f"--type: {given!r} is not MODULE:CLASS")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module may raise anything
        raise ArgumentError(f"--type: {given!r}: {type(error).__name__}: {error}") from error
    return found


@command(
    "token-trie extract mails.csv --schema order.json -p 'Mail: {text}\\nThe order as JSON:' -o orders.csv",
    "token-trie extract mails.jsonl --type shop:Order -p '{subject}: {body}' --chat -m model.gguf -o orders.jsonl",
    "token-trie extract mails.csv --schema order.json --prompt-file ask.txt -o orders.jsonl --on-error skip",
)
def extract(
    rows: RowsOptions,
    text: RowPrompt,
    model: ModelOptions,
    write: Annotated[dict[str, Any], _FLAGS],
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="The JSON Schema of the records; - reads standard input.")
    ] = None,
    type_: Annotated[
        str | None,
        typer.Option(
            "--type", metavar="MODULE:CLASS", help="Instead: a pydantic model, a dataclass or another type in Python."
        ),
    ] = None,
) -> None:
    """Write a record for each row of a table, by a JSON Schema or a type, and the table with the records.

    The added columns are the fields of the records. In JSON lines a field has its value, and is null if absent; in CSV,
    lists and objects are JSON. The last column is truncated: JSON pointers of values that ended at --max-tokens. Rows
    without a record, or with one that a validator of --type refuses, are reported on standard error. Values are written
    as the model writes them, whatever a validator makes of them.
    """
    if (schema is None) == (type_ is None):
        raise ArgumentError("--schema and --type: use exactly one of them")
    require_one_standard_input(rows.table, schema, text.prompt_file)
    template = text.template()
    if template is None:
        raise ArgumentError("use --prompt or --prompt-file")
    form = _imported(type_) if schema is None and type_ is not None else read_json(schema or Path("-"), "--schema")
    with rows.open() as table:
        table.check(template)
        run_job(_Extraction(form, template, text.chat, write), table, rows, model)
