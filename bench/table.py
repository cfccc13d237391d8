"""Numbers for people."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from string import Formatter

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.results import Bar


def figure(us: float) -> str:
    """Return a number at three digits: 0.071, 12.5, 839, 71.1k, 1.07M."""
    if us >= 999_500:
        return f"{us / 1e6:.2f}M"
    if us >= 999.5:
        return f"{us / 1e3:.3g}k"
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}" if us >= 10 else f"{us:.2f}" if us >= 1 else f"{us:.3f}"


def short(value: float) -> str:
    """Return a power of ten as a tick label: 0.1, 10, 1k, 100k, 1M."""
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def wide_console(width: int) -> Console:
    """Return a console, of this width where it is no terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = width
    return console


def progress_bar(console: Console, *, counts: bool = True) -> Progress:
    """Return a bar that disappears at the end; with the count of steps, if `counts`."""
    count: list[ProgressColumn] = [MofNCompleteColumn()] if counts else []
    columns = TextColumn("{task.description}"), BarColumn(), *count, TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True)


Begin = Callable[[str, int | None], None]
"""Shows which part of the work begins, and its number of steps."""


def model_bars(names: Iterable[str], console: Console) -> Iterator[tuple[str, Begin, Callable[[], None]]]:
    """Yield each model's name, under a bar of its own, with the functions that begin a part and end a step there."""
    with progress_bar(console) as progress:
        for name in names:
            bar = progress.add_task(f"{name}: loading", total=None)

            def begin(what: str, total: int | None, bar: TaskID = bar, name: str = name) -> None:
                progress.update(bar, description=f"{name}: {what}", total=total, completed=0)

            yield name, begin, partial(progress.advance, bar)


PROMPTS = "Prompts are plain text with examples, without a chat template."


def plain_table(title: str, *columns: str, caption: str | None = None) -> Table:
    """Return an empty table; columns that begin with > are flush right."""
    table = Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=not right)
    return table


class _Cells(Formatter):
    """Writes None as nothing."""

    def format_field(self, value: object, format_spec: str) -> str:
        return "" if value is None else str(super().format_field(value, format_spec))


def table_of(rows: Iterable[object], title: str, columns: str, caption: str | None = None) -> Table:
    """Return a table of rows; columns, between bars, are a name and the format of cells: ">ms = {0.ms:.1f}"."""
    names, cells = zip(*(column.strip().split(" = ") for column in columns.split("|")), strict=True)
    table = plain_table(title, *names, caption=caption)
    for row in rows:
        table.add_row(*(_Cells().format(cell, row) for cell in cells))
    return table


def bars_table(bars: list[Bar]) -> Table:
    """Return every bar with its ratio."""
    table = plain_table("Bars", "bar", ">measured", ">asked", "met")
    for bar in bars:
        word = {True: "[green]yes[/]", False: "[red]no[/]", None: "?"}[bar.met]
        measured = "unknown" if bar.ratio is None else _amount(bar.ratio, bar.unit)
        table.add_row(bar.text, measured, f"{'>=' if bar.at_least else '<='} {_limit(bar.limit, bar.unit)}", word)
    return table


def _amount(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:,.{0 if value >= 100 else 2}f} x"
    return f"{value * 100:.4g} %" if unit == "%" else f"{value:,.0f}"


def _limit(value: float, unit: str) -> str:
    return f"{value * 100:g} %" if unit == "%" else f"{value:,g} {unit}".rstrip()
