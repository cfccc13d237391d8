"""An evaluation in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from token_trie.show.texts import clip, printable
from token_trie.trust.evaluation import Evaluated, WrongRow


def share(p: float | None, digits: int = 1) -> str:
    """Return a share in percent, without the sign."""
    return "–" if p is None else f"{100 * p:.{digits}f}"


def number(figure: float | None) -> str:
    """Return a figure, with three digits behind the point."""
    return "–" if figure is None else f"{figure:.3f}"


def draw_evaluation(evaluated: Evaluated) -> Group:
    """Draw a row a way, and below what is to be known beside the figures."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("way", no_wrap=True)
    tells_unfit = any(way.figures.unfit is not None for way in evaluated.ways)
    titles = ["right %", "95 %", "bal. %", "F1", "log loss", "Brier", "ECE", "risk", *["unfit %"][: int(tells_unfit)]]
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    best = evaluated.best.name
    for way in evaluated.ways:
        figures = way.figures
        low, high = figures.interval
        cells: list[RenderableType] = [
            Text(way.name, "bold green" if way.name == best else "dim" if way.of == "words" else ""),
            share(figures.accuracy),
            f"[dim]{share(low, 0)}–{share(high, 0)}[/]",
            share(figures.balanced_accuracy),
            number(figures.macro_f1),
            number(figures.log_loss),
            number(figures.brier),
            number(figures.ece),
            number(figures.risk_area),
            share(figures.unfit),
        ]
        table.add_row(*cells[: len(titles) + 1])
    return Group(table, "", *_notes(evaluated))


def _notes(evaluated: Evaluated) -> list[Text]:
    n, n_classes = len(evaluated.gold), len(evaluated.classes)
    notes = [Text(f"{n:,} rows, {n_classes:,} choices; {evaluated.n_read:,} rows read by the model", "dim")]
    fitted = [way.name for way in evaluated.ways if way.of == "labels"]
    if fitted:
        notes.append(Text(f"{', '.join(fitted)}: each row by what was fitted on others", "dim"))
    notes += [Text(printable(note), "yellow") for note in evaluated.notes]
    wrong = evaluated.wrong[:3]
    if wrong:
        notes.append(Text(f"surest mistakes of {evaluated.best.name}:"))
        notes += [_mistake(row) for row in wrong]
    return notes


def _mistake(row: WrongRow) -> Text:
    sure = "" if row.confidence is None else f" {share(row.confidence)} %"
    return Text.assemble(
        f"  row {row.row}: ",
        (clip(row.answer, 32), "bold"),
        sure,
        " where it is ",
        (clip(row.gold, 32), "bold"),
        (f"  {clip(row.text, 60)}", "dim"),
    )
