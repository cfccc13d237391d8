"""The sampler mode's tables, one a model."""

from collections.abc import Iterator
from itertools import groupby

from rich.table import Table

from bench.results import Row
from bench.table import figure, plain_table

_COLUMNS = {
    "build": "build",
    "hit": "build, cached",
    "fill": "fill",
    "apply": "apply",
    "cold": "fill+apply, cold",
    "step": "whole step",
}


def tables(rows: list[Row]) -> Iterator[Table]:
    """Yield a table for each model, a line for each set and contender."""
    for (model, n_vocab), of_model in groupby(rows, key=lambda row: (row.model, row.n_vocab)):
        here = list(of_model)
        table = plain_table(
            f"{model}, {n_vocab:,} tokens: median microseconds (p10 to p90)",
            "set",
            "contender",
            *(f">{title}" for title in _COLUMNS.values()),
            caption=_caption(here),
        )
        measured = [row for row in here if row.leaves > 0]
        for answers, of_set in groupby(measured, key=lambda row: (row.set, row.branching)):
            lines = list(of_set)
            title = f"{answers[0]}\n[dim]{answers[1]} first tokens[/]"
            for who in dict.fromkeys(row.contender for row in lines):
                by_quantity = {row.quantity: row for row in lines if row.contender == who}
                cells = [_cell(by_quantity.get(quantity)) for quantity in _COLUMNS]
                if "all" in by_quantity:
                    cells[0] = "out"
                table.add_row(title, who, *cells)
                title = ""
            table.add_section()
        yield table


def _cell(row: Row | None) -> str:
    if row is None or row.median_us is None or row.p10_us is None or row.p90_us is None:
        return ""
    return f"{figure(row.median_us)} [dim]({figure(row.p10_us)}-{figure(row.p90_us)})[/]"


def _caption(rows: list[Row]) -> str:
    setups = [
        f"{row.contender} {row.median_us / 1e6:.1f} s"
        for row in rows
        if row.quantity == "setup" and row.median_us is not None and row.median_us > 1e4
    ]
    lines = [f"Once a model, before any set: {', '.join(setups)}."] if setups else []
    lines += [f"Out: {row.contender}, {row.set}: {row.failed}" for row in rows if row.failed]
    return "\n".join(lines)
