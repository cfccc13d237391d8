"""Draws the tables beside this file from those of others.

Its arguments are `banking_data/train.csv` of PolyAI-LDN/task-specific-datasets, and `data/data_full.json` and
`data/domains.json` of clinc/oos-eval.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
_N_INTENTS, _N_A_DOMAIN, _N_SKEWED = 20, 60, 600


def main() -> None:
    """Draw all."""
    banking, clinc, domains = map(Path, sys.argv[1:])
    with banking.open(newline="", encoding="utf-8") as file:
        rows = [(row["text"].strip(), row["category"]) for row in csv.DictReader(file)]
    frequent = {name for name, _ in Counter(name for _, name in rows).most_common(_N_INTENTS)}
    write("banking20.csv", ("text", "intent"), (row for row in rows if row[1] in frequent))
    of_intent = {intent: domain for domain, intents in json.loads(domains.read_text()).items() for intent in intents}
    of_domain: dict[str, list[str]] = {}
    for text, intent in json.loads(clinc.read_text())["test"]:
        of_domain.setdefault(of_intent[intent], []).append(text)
    rng = np.random.default_rng(0)
    even = [(text, name) for name, texts in of_domain.items() for text in rng.permutation(texts)[:_N_A_DOMAIN]]
    write("domains.csv", ("text", "domain"), shuffled(rng, even))
    # The most frequent is half of all, the next a quarter of all, and so on.
    shares = 0.5 ** np.arange(1, len(of_domain) + 1)
    counts = np.maximum((shares / shares.sum() * _N_SKEWED).round().astype(int), 2)
    names = rng.permutation(sorted(of_domain))
    skewed = [
        (text, name)
        for name, n in zip(names, counts, strict=True)
        for text in rng.permutation(of_domain[name])[: min(int(n), len(of_domain[name]))]
    ]
    write("domains_skewed.csv", ("text", "domain"), shuffled(rng, skewed))


def shuffled(rng: np.random.Generator, rows: list[Any]) -> list[Any]:
    """Return rows in a drawn order."""
    return [rows[i] for i in rng.permutation(len(rows))]


def write(name: str, head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> None:
    """Write a table."""
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


if __name__ == "__main__":
    main()
