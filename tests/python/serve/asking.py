"""The page, as a person uses it."""

from __future__ import annotations

import json
from typing import Any

from browser import Tab

FIRST = ".question:first-child"
SETTLED = "!document.body.classList.contains('old') && document.querySelector('#status').textContent"


def bars(page: Tab, card: str = FIRST) -> dict[str, float]:
    """Return what a question's bars say, in their order."""
    rows = page.run(
        f"[...document.querySelectorAll({json.dumps(card + ' .bars li')})]"
        ".map(row => [row.querySelector('bdi').textContent, row.querySelector('b').textContent])"
    )
    return {name: float(p.strip("<>% \u00a0")) for name, p in rows}


def text(page: Tab, selector: str) -> str:
    told: str = page.run(f"document.querySelector({json.dumps(selector)}).innerText")
    return told


def write(page: Tab, selector: str, words: str) -> None:
    """Put words into a field in place of what it has, and wait for the answers."""
    page.click(selector)
    page.select_all()
    page.type(words)
    page.until("document.body.classList.contains('old')")
    page.until(SETTLED)


def body_of(page: Tab) -> Any:
    """Return the body of the request to copy."""
    page.click("#written [value=curl] + span")
    curl = text(page, "#request")
    return json.loads(curl.partition("-d '")[2].removesuffix("'").replace("'\\''", "'"))
