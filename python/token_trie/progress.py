"""Progress of a long run on standard error: a bar on a terminal or in a notebook, otherwise a line now and then."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from typing import Any

from token_trie.errors import ArgumentError

SILENT_SECONDS = 1.0
"""A shorter run shows nothing."""
SECONDS_BETWEEN_LINES = 10.0


class Progress(AbstractContextManager["Progress"]):
    """Shows the progress inside a ``with`` block, if wanted.

    `total` is the final count of `move`, if known; `noun` names the counted things, in the plural. ArgumentError if it
    is wanted without tqdm.
    """

    def __init__(self, total: float | None, noun: str, *, wanted: bool = True) -> None:
        self._total = total
        self._noun = noun
        self._wanted = wanted and sys.stderr is not None
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self._wanted:
            self._started = time.monotonic()
            self._bar = _bar(self._total)
        return self

    def move(self, n: int, done: float | None = None) -> None:
        """Show that n things are done so far; `done` is the part of the total, by default n."""
        if self._bar is not None:
            rate = n / max(time.monotonic() - self._started, 1e-9)
            pace = f"{rate:,.1f} / s" if rate >= 1 or n == 0 else f"{1 / rate:,.1f} s each"
            self._bar.set_description_str(f"{n:,} {self._noun}, {pace}", refresh=False)
            self._bar.update((n if done is None else done) - self._bar.n)

    def clear(self) -> None:
        """Remove the bar from a terminal before another line is written there; the next `move` may draw it again."""
        if self._bar is not None:
            self._bar.clear()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(total: float | None) -> Any:
    try:
        from tqdm.asyncio import tqdm_asyncio
        from tqdm.auto import tqdm
    except ModuleNotFoundError as error:
        raise ArgumentError(f"progress: {error.name} is missing; pip install 'token-trie[cli]'") from error

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread of tqdm, which only bars with `miniters` need

    class Lines(Bar):
        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            if msg is None:  # otherwise tqdm clears the line
                self.fp.write(f"{self}\n")
                self.fp.flush()

        def clear(self, nolock: bool = False) -> None:
            pass

    options = {"total": total, "delay": SILENT_SECONDS, "miniters": 0, "leave": False}
    if tqdm is tqdm_asyncio and not sys.stderr.isatty():  # notebooks have another class
        share = " ({percentage:.0f}%)" if total else ""
        return Lines(**options, mininterval=SECONDS_BETWEEN_LINES, bar_format="{desc}" + share)
    share = "{percentage:3.0f}%|{bar}| " if total else ""
    left = ", {remaining} left" if total else ""
    return Bar(**options, dynamic_ncols=True, bar_format=share + "{desc}" + left)
