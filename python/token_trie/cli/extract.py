"""``token-trie extract``: a record for each row of a table."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from token_trie.cli.options import (
    SERVED_N_CTX,
    Flags,
    ModelOptions,
    RowPrompt,
    command,
    read_json,
    require_one_standard_input,
    say,
)
from token_trie.cli.rows import RowJob, RowsOptions, draw_counts, prompt_of, run_job
from token_trie.decisions.options import RecordOptions
from token_trie.errors import ArgumentError, TokenTrieError
from token_trie.native.core import Llama
from token_trie.records.fill import Record, fill_many, read_template
from token_trie.records.plan import Object, Union, types_in
from token_trie.sets.prompt import Template

_FLAGS = Flags(
    RecordOptions,
    without=("indent", "on_text", "think"),
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

    def read(self, answer: Record[Any]) -> list[Any]:
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
