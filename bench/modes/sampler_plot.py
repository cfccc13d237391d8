"""The sampler mode's picture: constraint and build, a dot for each set."""

from pathlib import Path
from typing import TYPE_CHECKING

from bench.contenders import FREE, OURS
from bench.results import Row
from bench.table import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SETS = {"30 actions": "#9ecae1", "1,000 ids": "#4292c6", "100,000 ids": "#08306b"}
_PANELS = {"mask": "constraint in one step: fill + apply", "build": "build the set, cold"}


def plot(rows: list[Row], path: Path) -> None:
    """Write the PNG; without matplotlib there is none."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return
    models = list(dict.fromkeys((row.model, row.n_vocab) for row in rows))
    who = [name for name in dict.fromkeys(row.contender for row in rows) if name != FREE]
    figure = Figure(figsize=(6.2 * len(_PANELS), 1.2 + 2.9 * len(models)), layout="constrained")
    grid = figure.subplots(len(models), len(_PANELS), sharex="col", sharey=True, squeeze=False)
    for line, (model, n_vocab) in zip(grid, models, strict=True):
        here = [row for row in rows if row.model == model]
        for axes, (quantity, title) in zip(line, _PANELS.items(), strict=True):
            _panel(axes, [row for row in here if row.quantity == quantity], here, who)
            axes.set_title(f"{title}, {n_vocab:,} tokens", fontsize=10, loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("microseconds, median and p10 to p90 (log)")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(_SETS), frameon=False)
    figure.savefig(path, dpi=150)


def _panel(axes: "Axes", rows: list[Row], all_rows: list[Row], who: list[str]) -> None:
    places = {name: len(who) - i for i, name in enumerate(who)}
    for offset, (answers, colour) in zip((0.24, 0.0, -0.24), _SETS.items(), strict=True):
        dots = [row for row in rows if row.set == answers and row.median_us is not None]
        medians = [row.median_us or 0.0 for row in dots]
        axes.errorbar(
            medians,
            [places[row.contender] + offset for row in dots],
            xerr=[
                [m - (row.p10_us or m) for m, row in zip(medians, dots, strict=True)],
                [(row.p90_us or m) - m for m, row in zip(medians, dots, strict=True)],
            ],
            fmt="o",
            color=colour,
            markersize=6,
            label=answers,
        )
        for row in all_rows:
            if row.failed and row.set == answers and row.quantity == "all":
                axes.annotate(
                    f"{answers}: out", (0.99, places[row.contender] + offset), xycoords=("axes fraction", "data"),
                    ha="right", va="center", fontsize=7, color=colour,
                )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda us, _: short(us))
    axes.set_ylim(0.4, len(who) + 0.6)
    axes.set_yticks(list(places.values()), list(places))
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in OURS else "normal")
    axes.grid(axis="x", which="major", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
