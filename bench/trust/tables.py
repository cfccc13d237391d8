"""Tables with gold labels, and how their rows are asked."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from token_trie import Choice

_HERE = Path(__file__).parents[1] / "data" / "tables"


@dataclass(frozen=True)
class Table:
    """Rows, and how they are asked."""

    name: str
    texts: list[str]
    gold: list[str]
    asked: Any
    """A question; or the classes, of prompts."""


def read(name: str) -> tuple[list[str], list[str]]:
    """Return texts and labels, these as words."""
    with (_HERE / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [text for text, _ in rows], [words(label) for _, label in rows]


def words(label: str) -> str:
    """Return a label as a model would write it."""
    return label.replace("_", " ").replace("?", "").lower()


QUESTIONS = {
    "banking20": "What does the customer ask about?",
    "domains": "What is it about?",
    "domains_skewed": "What is it about?",
}


def tables(n_rows: int) -> Iterator[Table]:
    """Yield each table as a question, and as prompts behind one example a class, which are none of the rows.

    A class of one row has no example.
    """
    for name, question in QUESTIONS.items():
        texts, gold = read(name)
        order = np.random.default_rng(0).permutation(len(texts))
        classes = sorted(set(gold))
        first = {label: next(i for i in order if gold[i] == label) for label in classes if gold.count(label) > 1}
        rows = [i for i in order if i not in first.values()][:n_rows]
        some = [texts[i] for i in rows], [gold[i] for i in rows]
        yield Table(f"{name}, question", *some, Choice(question, classes))
        shown = "".join(f"Text: {texts[i]}\nTopic: {label}\n\n" for label, i in first.items())
        prompts = [f"{shown}Text: {text}\nTopic:" for text in some[0]]
        yield Table(f"{name}, examples", prompts, some[1], classes)


def protocol() -> tuple[Table, Table]:
    """Return brier's: 20 intents, the rows 500 to 800 of a permutation to fit, the rest to judge by.

    An example an intent stands before the text, out of the first 500.
    """
    texts, gold = read("banking20")
    order = np.random.default_rng(0).permutation(len(texts))
    first = {label: next(i for i in order[:500] if gold[i] == label) for label in sorted(set(gold))}
    shown = "".join(f"Text: {texts[i]}\nTopic: {label}\n\n" for label, i in first.items())
    parts = order[500:800], np.concatenate([order[:500], order[800:]])
    fit, test = (
        Table("banking20", [f"{shown}Text: {texts[i]}\nTopic:" for i in part], [gold[i] for i in part], sorted(first))
        for part in parts
    )
    return fit, test
