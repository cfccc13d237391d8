"""Several runs as one table and one picture."""

import json
from dataclasses import fields
from pathlib import Path

import typer

from bench.decisions.figures import DecisionRow
from bench.decisions.plot import plot
from bench.decisions.table import device_table, remarks, tables
from bench.results import SCHEMA, Bar
from bench.table import bars_table, wide_console


def run(paths: list[Path], output: Path | None) -> None:
    """Print what the files hold, and write the picture."""
    rows: dict[tuple[str, str | None, str, str], DecisionRow] = {}
    bars: list[Bar] = []
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            known = document["schema"] == SCHEMA and document["mode"] != "sampler"
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise typer.BadParameter(f"{path}: not the result of free, strict-guided, strict-trie(-ffi) or decide")
        for entry in document["rows"]:
            row = DecisionRow(**{name: entry.get(name) for name in (field.name for field in fields(DecisionRow))})
            # A run given later takes the place of an earlier one.
            rows[row.model, row.device or row.backend, row.set, row.mode] = row
        bars += [Bar(**{key: value for key, value in bar.items() if key != "met"}) for bar in document["bars"]]
    # As first met, but all of a model together.
    models = list(dict.fromkeys(key[:2] for key in rows))
    sets = list(dict.fromkeys(key[:3] for key in rows))
    ordered = [rows[key] for key in sorted(rows, key=lambda key: (models.index(key[:2]), sets.index(key[:3])))]
    console = wide_console(190)
    for table in tables(ordered):
        console.print(table)
    console.print(remarks(ordered))
    if len({row.device or row.backend for row in ordered}) > 1:
        console.print(device_table(ordered))
    if bars:
        console.print(bars_table(bars))
    if output is not None:
        console.print(f"Written: {output}" if plot(ordered, output) else "No picture: pip install matplotlib")
