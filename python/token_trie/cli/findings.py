"""What `token-trie doctor` finds, and how it shows that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from rich.table import Table

from token_trie.show.trie import plain

Verdict: TypeAlias = Literal["good", "fair", "poor"]

_MARKS: dict[Verdict, str] = {"good": "[green]✓", "fair": "[yellow]![/]", "poor": "[bold red]✗"}


@dataclass(frozen=True)
class Finding:
    """One thing about a model or a machine."""

    about: str
    verdict: Verdict
    """Fair: it works, with less speed or worse answers; poor: something does not work."""
    told: str
    change: str | None = None
    """What would make it better."""


def found(about: str, told: str, *, fair: str | None = None, poor: str | None = None) -> Finding:
    """Return a finding, good where nothing is to be changed: what is, where it is fair, or poor."""
    return Finding(about, "poor" if poor else "fair" if fair else "good", told, poor or fair)


def draw(findings: list[Finding]) -> Table:
    """Return them as a table: a verdict, what there is, and what to change."""
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        told = plain(finding.told)
        if finding.change:
            told += f"\n[dim]→ {plain(finding.change)}"
        table.add_row(_MARKS[finding.verdict], finding.about, told)
    return table
