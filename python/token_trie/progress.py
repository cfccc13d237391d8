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
            self._next_line = self._started + SILENT_SECONDS
            self._bar = _bar(self._total)
        return self

    @property
    def is_due(self) -> bool:
        """Whether a `move` would show something now."""
        return self._wanted and (self._bar is not None or time.monotonic() >= self._next_line)

    def move(self, n: int, done: float | None = None, n_tokens: int = 0, n_begun: int = 0) -> None:
        """Show that n things are done so far, with tokens if any; `done` is the part of the total, by default n.

        Before the first is done, those that have begun tell how long all of them take at least.
        """
        if not self.is_due:
            return
        now, done = time.monotonic(), n if done is None else done
        seconds = max(now - self._started, 1e-9)
        rate = (n_tokens or n) / seconds
        text = f"{n:,} {self._noun}, "
        if n_tokens:
            text += f"{n_tokens:,} tokens, {rate:,.1f} tokens / s"
        else:
            text += f"{rate:,.1f} / s" if rate >= 1 or n == 0 else f"{1 / rate:,.1f} s each"
        total = self._total or 0
        at_least = f", at least {_left(seconds, n_begun, total)}" if done == 0 < n_begun < total else ""
        if self._bar is not None:
            self._bar.set_description_str(text + at_least, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        if total:
            text += f" ({done / total:.0%}){at_least}"
            text += f", {_left(seconds, done, total)}" if 0 < done < total else ""
        print(text, file=sys.stderr, flush=True)
        self._next_line = now + SECONDS_BETWEEN_LINES

    def clear(self) -> None:
        """Remove the bar from a terminal before another line is written there; the next `move` may draw it again."""
        if self._bar is not None:
            self._bar.clear()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _left(seconds: float, done: float, total: float) -> str:
    """Return how long the rest takes where a part has taken so many seconds."""
    left = seconds * (total - done) / done
    return f"{left:.0f} s left" if left < 100 else f"{left / 60:.0f} min left"


def _bar(total: float | None) -> Any:
    """Return a bar; None where standard error is no terminal and no notebook."""
    try:
        from tqdm.asyncio import tqdm_asyncio
        from tqdm.auto import tqdm
    except ModuleNotFoundError as error:
        raise ArgumentError(f"progress: {error.name} is missing; pip install 'token-trie[cli]'") from error
    if tqdm is tqdm_asyncio and not sys.stderr.isatty():  # notebooks have another class
        return None

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread of tqdm, which only bars with `miniters` need

    form = "{percentage:3.0f}%|{bar}| {desc}, {remaining} left" if total else "{desc}"
    return Bar(total=total, delay=SILENT_SECONDS, miniters=0, leave=False, dynamic_ncols=True, bar_format=form)
