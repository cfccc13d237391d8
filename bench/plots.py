"""Pictures of results, drawn into figures of matplotlib."""

from collections.abc import Sequence
from typing import Any

from bench.contenders import FREE

Rows = Sequence[dict[str, Any]]
_COLOURS = ("#08306b", "#4292c6", "#9ecae1", "#41ab5d", "#a1d99b")


def _dots(axes: Any, rows: Rows, lines: list[str], line: str, value: str, low: str, high: str) -> None:
    """Draw a line for each contender and a dot for each set, on a logarithmic axis."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    for i, name in enumerate(sets):
        dots = [row for row in rows if row["set"] == name]
        axes.errorbar(
            [row[value] for row in dots],
            [len(lines) - lines.index(row[line]) + 0.2 * ((len(sets) - 1) / 2 - i) for row in dots],
            xerr=[[row[value] - row[low] for row in dots], [row[high] - row[value] for row in dots]],
            fmt="o",
            color=_COLOURS[i % len(_COLOURS)],
            label=name,
        )
    axes.set(xscale="log", ylim=(0.4, len(lines) + 0.6))
    axes.set_yticks(range(len(lines), 0, -1), lines)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)


def sampler(rows: Rows, picture: Any) -> None:
    """Draw the constraint and the build, a dot for each set."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    sets = ("30 actions", "1,000 ids", "100,000 ids")
    who = [name for name in dict.fromkeys(row["contender"] for row in rows) if name != FREE]
    picture.set_size_inches(12.4, 1.2 + 2.9 * len(models))
    grid = picture.subplots(len(models), 2, sharex="col", sharey=True, squeeze=False)
    for line, model in zip(grid, models, strict=True):
        for axes, (quantity, title) in zip(
            line, {"mask": "constraint in one step: fill + apply", "build": "build the set, cold"}.items(), strict=True
        ):
            shown = [r for r in rows if (r["model"], r["quantity"]) == (model, quantity) and r["set"] in sets]
            _dots(axes, shown, who, "contender", "median_us", "p10_us", "p90_us")
            axes.set_title(f"{title}, {model}", fontsize=10, loc="left")
            axes.set_xlabel("microseconds, median and p10 to p90 (log)")
    picture.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper right", ncols=3, frameon=False)


def decide(rows: Rows, picture: Any) -> None:
    """Draw a panel for each model and device, and a dot for each mode and set."""
    panels = list(dict.fromkeys((row["model"], row["device"]) for row in rows))
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    picture.set_size_inches(9, 1.2 + (0.8 + 0.42 * len(modes)) * len(panels))
    grid = picture.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, panel in zip(grid, panels, strict=True):
        shown = [row for row in rows if (row["model"], row["device"]) == panel]
        _dots(axes, shown, modes, "mode", ">p50", ">p50", ">p90")
        axes.set_title(", on ".join(panel), fontsize=10, loc="left")
    grid[-1].set_xlabel("milliseconds a decision, prompt evaluated: median, and p90 to the right (log)")
    picture.legend(*grid[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, frameon=False)


def catalogue(rows: Rows, picture: Any) -> None:
    """Draw bytes a member by size, and the time for candidates by depth."""
    picture.set_size_inches(11, 4)
    sizes, depths = picture.subplots(1, 2)
    uniform = [row for row in rows if row["set"] == "uniform"]
    candidates = [row for row in uniform if row["quantity"].startswith("candidates")]
    static = [row for row in candidates if row["contender"] == "STATIC"]
    largest = max((row["members"] for row in static or candidates), default=0)
    for who in dict.fromkeys(row["contender"] for row in uniform):
        for quantity in ("bytes a member", "bytes a member on a device"):
            of = [row for row in uniform if (row["contender"], row["quantity"]) == (who, quantity)]
            _line(sizes, of, "members", who + quantity.removeprefix("bytes a member"))
        _line(depths, [r for r in candidates if (r["contender"], r["members"]) == (who, largest)], "depth", who)
    sizes.set(xscale="log", yscale="log", xlabel="members", ylabel="bytes a member")
    depths.set(yscale="log", xlabel="tokens before", ylabel=f"µs, candidates of 140 rows, {largest:,} members")
    for axes in (sizes, depths):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def serve(rows: Rows, picture: Any) -> None:
    """Draw answers a second, a bar for each server."""
    servers = [name for name in (">token-trie", ">llama-server") if any(name in row for row in rows)]
    models, clients = (list(dict.fromkeys(row[of] for row in rows)) for of in ("model", ">clients"))
    picture.set_size_inches(12.4, 0.8 + 3.2 * len(models))
    grid = picture.subplots(len(models), len(clients), sharey=True, squeeze=False)
    for line, model in zip(grid, models, strict=True):
        for axes, n in zip(line, clients, strict=True):
            own = [row for row in rows if (row["model"], row[">clients"]) == (model, n)]
            for i, name in enumerate(servers):
                at = [k + 0.27 * i for k in range(len(own))]
                axes.barh(at, [row.get(name, 0) for row in own], 0.25, color=_COLOURS[i], label=name[1:])
            axes.set_yticks([k + 0.27 for k in range(len(own))], [row["answer"] for row in own])
            axes.set(title=f"{n} clients" if n > 1 else "one client", xlabel="answers a second")
            axes.spines[["top", "right"]].set_visible(False)
        line[0].invert_yaxis()
        line[0].set_ylabel(model)
    grid[0][-1].legend(fontsize=8)


def _line(axes: Any, rows: Rows, x: str, label: str) -> None:
    if rows:
        axes.plot(*zip(*sorted((row[x], row["value"]) for row in rows), strict=True), "o-", label=label)
