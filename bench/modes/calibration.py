"""The worth of calibrations: ways of making probabilities side by side, on tables with gold labels."""

import csv
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from token_trie import Choice, evaluate

from bench.downloads import cloned
from bench.models import load
from bench.results import Results, Share, Table, progress

_FOLDER = Path(__file__).parents[1] / "data" / "tables"
_QUESTIONS = {
    "banking20": "What does the customer ask about?",
    "domains": "What is it about?",
    "domains_skewed": "What is it about?",
    "support": "Which team handles the message?",
    "banking77": "What does the customer ask about?",
    "clinc150": "What does the user want?",
    "massive": "What does the user want?",
}
_CLONED = {  # repository, commit, file
    "banking77": ("PolyAI-LDN/task-specific-datasets", "57ec275d80", "banking_data/test.csv"),
    "clinc150": ("clinc/oos-eval", "828f809393", "data/data_full.json"),
    "massive": ("muaaznoor/IntentClassificationLSTM", "75c796d911", "data/test.jsonl"),
}
_BUNDLED = [name for name in _QUESTIONS if name not in _CLONED]
_WAYS = ("exact", "contextual", "batch", "temperature", "bias", "head", "majority", "words")


def run(options: Any) -> None:
    """Evaluate all ways on all tables with all models."""
    results, rows = Results("calibration"), []
    for name in options.models:
        model = load(name, options, n_ctx=4096)
        for table, texts, gold, asked in progress(
            list(_tables([options.table] if options.table else _BUNDLED, options.cases or 500)), name
        ):
            ways = [way for way in _WAYS if isinstance(asked, Choice) or way != "contextual"]
            with tempfile.TemporaryDirectory() as folder:
                found = evaluate(model.llm, texts, gold, asked, ways=ways, cache=folder)
            for way in found.ways:
                low, high = map(Share, way.figures.interval)
                row = {"model": model.name, "table": table, "way": way.name, ">rows": len(gold)}
                row |= {">right": Share(way.figures.accuracy), ">from": low, ">to": high}
                row |= {">log loss": way.figures.log_loss, ">Brier": way.figures.brier, ">ECE": way.figures.ece}
                rows.append(row)
    results.tables.append(Table("Ways of making probabilities", rows))
    results.finish(options.output)


def _tables(names: list[str], n_rows: int) -> Iterator[tuple[str, list[str], list[str], Any]]:
    """Yield each table as a question and, of few classes, as prompts after an example of each, which is no row."""
    for name in names:
        rows, question = _rows(name), _QUESTIONS[name]
        texts = [text for text, _ in rows]
        gold = [label.replace("_", " ").replace("?", "").lower() for _, label in rows]
        order = np.random.default_rng(0).permutation(len(texts))
        classes = sorted(set(gold))
        first = {label: next(i for i in order if gold[i] == label) for label in classes if gold.count(label) > 1}
        some = [i for i in order if i not in first.values()][:n_rows]
        labels = [gold[i] for i in some]
        yield f"{name}, question", [texts[i] for i in some], labels, Choice(question, classes)
        if name in _BUNDLED:
            shown = "".join(f"Text: {texts[i]}\nTopic: {label}\n\n" for label, i in first.items())
            yield f"{name}, examples", [f"{shown}Text: {texts[i]}\nTopic:" for i in some], labels, classes


def _rows(name: str) -> list[list[str]]:
    """Return the texts of a table, each with its label."""
    if name in _BUNDLED:
        path = _FOLDER / f"{name}.csv"
    else:
        repository, commit, file = _CLONED[name]
        path = cloned(repository, commit) / file
    if path.suffix == ".json":
        return list(json.loads(path.read_text(encoding="utf-8"))["test"])
    if path.suffix == ".jsonl":
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return [[line["text"], line["label_text"]] for line in lines]
    with path.open(newline="", encoding="utf-8") as opened:
        return list(csv.reader(opened))[1:]
