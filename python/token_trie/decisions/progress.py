"""How far a long run is: a bar on a terminal, a line now and then elsewhere, both on standard error."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Moves as it is told.

    Parameters
    ----------
    total : float, optional
        What `move` counts to.
    noun : str
        What is done, in the plural.
    wanted : bool
        Whether to show anything.
    """

    def __init__(self, total: float | None, noun: str, *, wanted: bool = True) -> None:
        self._total = total
        self._noun = noun
        self._wanted = wanted
        self._n = 0

    def __enter__(self) -> Progress:
        if self._wanted:
            from rich.console import Console
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._console: Console = Console(stderr=True)
            columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._is_drawn = self._console.is_terminal or self._console.is_jupyter
            self._bar = Bar(*columns, console=self._console, transient=True, disable=not self._is_drawn)
            self._bar.start()
            self._task = self._bar.add_task(f"0 {self._noun}", total=self._total)
            self._started = self._said = time.monotonic()
        return self

    def move(self, n: int, done: float | None = None) -> None:
        """Say that n are done in all, and how much of the total that is, by default n."""
        if not self._wanted:
            return
        self._n = n
        now = time.monotonic()
        text = f"{n:,} {self._noun}, {n / max(now - self._started, 1e-9):,.1f} / s"
        completed = n if done is None else done
        self._bar.update(self._task, completed=completed, description=text)
        if not self._is_drawn and now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            share = f" ({completed / self._total:.0%})" if self._total else ""
            self._console.print(text + share, highlight=False)

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        if self._wanted:
            self._bar.stop()
