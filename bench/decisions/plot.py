"""The picture of decisions: a panel a model and device, a dot for each mode and set."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.decisions.figures import DecisionRow
from bench.decisions.table import device_of
from bench.table import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#08306b", "#4292c6", "#9ecae1", "#41ab5d", "#a1d99b")


def plot(rows: Sequence[DecisionRow], path: Path) -> bool:
    """Write the PNG; without matplotlib there is none, and False is returned."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return False
    models = list(dict.fromkeys((row.model, row.n_vocab, device_of(row)) for row in rows))
    modes = list(dict.fromkeys(row.mode for row in rows))
    sets = list(dict.fromkeys(row.set for row in rows))
    figure = Figure(figsize=(9, 1.2 + (0.8 + 0.42 * len(modes)) * len(models)), layout="constrained")
    grid = figure.subplots(len(models), 1, sharex=True, sharey=True, squeeze=False)
    for (axes,), (model, n_vocab, where) in zip(grid, models, strict=True):
        _panel(axes, [row for row in rows if (row.model, device_of(row)) == (model, where)], modes, sets)
        axes.set_title(f"{model}, {n_vocab:,} tokens, on {where}", fontsize=10, loc="left")
    grid[-1][0].set_xlabel("milliseconds a decision, prompt evaluated: median, and p90 to the right (log)")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(sets), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return True


def _panel(axes: "Axes", rows: Sequence[DecisionRow], modes: list[str], sets: list[str]) -> None:
    places = {mode: len(modes) - i for i, mode in enumerate(modes)}
    for i, name in enumerate(sets):
        dots = [row for row in rows if row.set == name]
        offset = 0.2 * ((len(sets) - 1) / 2 - i)
        axes.errorbar(
            [row.latency_ms["p50"] for row in dots],
            [places[row.mode] + offset for row in dots],
            xerr=[[0.0] * len(dots), [row.latency_ms["p90"] - row.latency_ms["p50"] for row in dots]],
            fmt="o",
            color=_COLOURS[i % len(_COLOURS)],
            markersize=6,
            label=name,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda ms, _: short(ms))
    axes.set_ylim(0.4, len(modes) + 0.6)
    axes.set_yticks(list(places.values()), list(places))
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text().startswith("strict-trie") else "normal")
    axes.grid(axis="x", which="major", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
