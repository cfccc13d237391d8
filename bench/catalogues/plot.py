"""Bytes a member by size, and candidates by depth."""

from collections.abc import Sequence
from pathlib import Path

from bench.catalogues.figures import CatalogueRow


def plot(rows: Sequence[CatalogueRow], path: Path) -> None:
    """Draw both beside each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    sizes, depths = figure.subplots(1, 2)
    uniform = [row for row in rows if row.set == "uniform"]
    for quantity, style in (("bytes a member", "o-"), ("bytes a member on a device", "s--")):
        for who in dict.fromkeys(row.contender for row in uniform if row.quantity == quantity):
            of = sorted((r.members, r.value) for r in uniform if (r.contender, r.quantity) == (who, quantity))
            sizes.plot(*zip(*of, strict=True), style, label=f"{who}{quantity.removeprefix('bytes a member')}")
    sizes.set(xscale="log", yscale="log", xlabel="members", ylabel="bytes a member")
    timed = [row for row in uniform if row.quantity.startswith("candidates")]
    largest = max((row.members for row in timed if row.contender == "STATIC"), default=0) or max(
        (row.members for row in timed), default=0
    )
    for who in dict.fromkeys(row.contender for row in timed if row.members == largest):
        found = sorted(
            (r.depth, r.value) for r in timed if (r.contender, r.members) == (who, largest) and r.depth is not None
        )
        depths.plot(*zip(*found, strict=True), "o-", label=who)
    depths.set(yscale="log", xlabel="tokens before", ylabel=f"µs, candidates of 140 rows, {largest:,} members")
    for axes in (sizes, depths):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)
