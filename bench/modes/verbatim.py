"""Values that stand in a document, verbatim and as free strings: how many are in it, and how many are right."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from token_trie import choose, fill

from bench.models import Model, load
from bench.modes.record import object_schema
from bench.results import Results, Table, progress
from bench.sets import data
from bench.timing import watch

_N_DOCUMENTS = 30
_TITLE = "Fields of documents, the same schema with verbatim values and with free strings"
_CAPTION = "In the text: of the values that are not null. CPU s: of a document, which is read anew."
Document = tuple[str, dict[str, str | None]]


def documents() -> Iterator[Document]:
    """Yield texts with the values that a person would find in them."""
    given, rng = data("documents.json"), np.random.default_rng(0)
    for i in range(60):
        template = given["templates"][i % len(given["templates"])]
        values = {name: str(rng.choice(each)) for name, each in given["values"].items()}
        yield (
            template.format(**values),
            {name: values[name] if f"{{{name}}}" in template else None for name in given["fields"]},
        )


def run(options: Any) -> None:
    """Fill the records of the second half of the documents, which nothing was chosen on, with all models."""
    results, rows = Results("verbatim"), []
    for name in options.models:
        rows += _measure(load(name, options, n_ctx=2048), [*documents()][_N_DOCUMENTS:][: options.cases])
    results.tables.append(Table(_TITLE, rows, _CAPTION))
    results.finish(options.output)


def _measure(model: Model, given: list[Document]) -> list[dict[str, Any]]:
    fields = data("documents.json")["fields"]
    asked = "Copy from the text above, as JSON:\n" + "\n".join(f"- {name}: {what}" for name, what in fields.items())
    ways: dict[str, dict[str, Any]] = {"verbatim": {"x_verbatim": True}, "free strings": {}}
    found: dict[str, list[tuple[int, int, int, int]]] = {way: [] for way in ways}
    for text, expected in progress(given, model.name):
        messages: list[Any] = [{"role": "user", "content": f"{text}\n\n{asked}"}]
        for way, mark in ways.items():
            string = {"type": "string", **mark}
            schema = object_schema({**dict.fromkeys(fields, string), "phone": {"anyOf": [string, {"type": "null"}]}})
            choose(model.llm, "Something else:", ["a", "b"])  # replaces what was read
            with watch() as took:
                record = fill(model.llm, messages, schema, text=text if mark else None)
            values = [value for value in record.value.values() if value is not None]
            right = sum(record.value[name] == value for name, value in expected.items())
            found[way].append((sum(value in text for value in values), len(values), right, took.cpu_ns))
    totals = {way: np.sum(each, axis=0).tolist() for way, each in found.items()}
    return [
        {
            "model": model.name,
            "values": way,
            ">in the text": f"{n_in} of {n}",
            ">right": f"{right} of {len(fields) * len(given)}",
            ">CPU s": ns / 1e9 / len(given),
        }
        for way, (n_in, n, right, ns) in totals.items()
    ]
