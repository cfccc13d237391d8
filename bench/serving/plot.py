"""Decisions a second by the number of clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.modes.serve import ServeRow


def draw(rows: Sequence[ServeRow], path: Path) -> None:
    """Draw a panel a model and set, and a line a server."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((row.model, row.set) for row in rows))
    figure = Figure(figsize=(4 * len(panels), 3.4), layout="constrained")
    servers = list(dict.fromkeys(row.server for row in rows))
    for axes, (model, name) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for i, server in enumerate(servers):
            own = [row for row in rows if (row.model, row.set, row.server) == (model, name, server)]
            if own:
                axes.plot([r.clients for r in own], [r.per_second for r in own], "o-", color=f"C{i}", label=server)
        axes.set(title=f"{name}\n{model}", xlabel="clients", xscale="log", yscale="log")
        axes.set_xticks([1, 8, 32, 128], ["1", "8", "32", "128"])
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("decisions a second")
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=130)
