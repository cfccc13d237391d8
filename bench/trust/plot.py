"""Accuracy and calibration of ways, a panel a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.modes.calibration import CalibrationRow


def plot(rows: Sequence[CalibrationRow], path: Path) -> None:
    """Draw a point a way and table: how often it is right, and how far its probabilities are off."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row.model for row in rows))
    tables = list(dict.fromkeys(row.table for row in rows))
    ways = list(dict.fromkeys(row.way for row in rows))
    figure = Figure(figsize=(6 * len(models), 4), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        for row in (row for row in rows if row.model == model and row.ece == row.ece):
            marker = "os^vDP*X"[tables.index(row.table) % 8]
            axes.scatter(row.right, row.ece, color=f"C{ways.index(row.way)}", marker=marker)
        axes.set(title=model, xlabel="right", ylabel="ECE")
        axes.grid(alpha=0.3)
    for i, way in enumerate(ways):
        figure.axes[0].scatter([], [], color=f"C{i}", label=way)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=130)
