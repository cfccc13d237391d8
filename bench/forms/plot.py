"""The picture of forms: a panel a table, a bar for each way and model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.forms.measure import FormsRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#4292c6", "#41ab5d", "#fd8d3c", "#807dba")


def plot(rows: Sequence[FormsRow], path: Path) -> None:
    """Write the PNG; without matplotlib there is none."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return
    tables = list(dict.fromkeys(row.table for row in rows))
    shown = {table: [row for row in rows if row.table == table] for table in tables}
    heights = [len({row.way for row in of_table}) for of_table in shown.values()]
    figure = Figure(figsize=(9, 1.4 + 0.5 * sum(heights) + 0.5 * len(tables)), layout="constrained")
    grid = figure.subplots(len(tables), 1, sharex=True, squeeze=False, height_ratios=heights)
    models = list(dict.fromkeys(row.model for row in rows))
    for (axes,), (table, of_table) in zip(grid, shown.items(), strict=True):
        _panel(axes, of_table, models)
        axes.set_title(table, fontsize=10, loc="left")
    grid[-1][0].set_xlabel("share of the answers that is right; of 95 in 100 samples of the cases")
    handles = {
        label: handle for (axes,) in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=len(models), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _panel(axes: "Axes", rows: Sequence[FormsRow], models: list[str]) -> None:
    ways = list(dict.fromkeys(row.way for row in rows))
    for i, model in enumerate(models):
        own = [row for row in rows if row.model == model]
        offset = 0.36 * ((len(models) - 1) / 2 - i)
        axes.barh(
            [len(ways) - ways.index(row.way) + offset for row in own],
            [row.right for row in own],
            height=0.34,
            xerr=[[row.right - row.right_low for row in own], [row.right_high - row.right for row in own]],
            color=_COLOURS[i % len(_COLOURS)],
            error_kw={"elinewidth": 0.8, "ecolor": "#555555"},
            label=model,
        )
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_yticks([len(ways) - i for i in range(len(ways))], ways)
    axes.grid(axis="x", which="major", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
