"""A trie drawn as a tree; texts and numbers for people."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from token_trie.decisions.decision import LOW_MASS, Decision
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from rich.bar import Bar
    from rich.text import Text
    from rich.tree import Tree

Line: TypeAlias = list[tuple[str, str]]
"""A line of a drawing: its parts, each with its style in rich."""


def as_text(lines: Iterable[Line]) -> str:
    """Return lines as plain text."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def as_rich(lines: Iterable[Line]) -> Iterator[Text]:
    """Return lines as texts of rich."""
    from rich.text import Text

    return (Text.assemble(*line) for line in lines)


def cells(text: str) -> int:
    """Return the number of columns that a text takes in a terminal."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def padded(text: str, width: int) -> str:
    """Return a text with spaces up to a number of columns."""
    return text + " " * (width - cells(text))


def printable(text: str) -> str:
    """Return a text with control characters, line breaks and direction marks escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def percent(p: float) -> str:
    """Return a probability in percent; only an exact 0 or 1 is shown as 0 % or 100 %."""
    if 0 < p < 0.0001:
        return "<0.01 %"
    if 0.999 < p < 1:
        return ">99.9 %"
    return f"{100 * p:.0f} %" if p in (0, 1) else f"{100 * p:.{1 if p >= 0.01 else 2}f} %"


def clip(text: str | bytes, width: int = 48) -> str:
    """Return a printable text of at most width characters, for a label."""
    if isinstance(text, bytes):
        text = text.decode(errors="backslashreplace")
    text = printable(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def quote(text: str | bytes) -> str:
    """Return the text of tokens in quotes, for a sentence."""
    return f"“{clip(text)}”"


COLORS = {"greedy": "yellow", "exact": "green", "": ""}


def percent_bar(p: float) -> Bar:
    """Return a bar, 30 columns wide for 100 %."""
    from rich.bar import Bar

    return Bar(1.0, 0.0, p, width=30, color=COLORS["exact"])


def describe_mass(mass: float) -> str:
    """Return a sentence on the mass of the set."""
    if mass < LOW_MASS:
        return f"The model gives the whole set only {percent(mass)} – none of these may fit."
    return f"The model gives the whole set {percent(mass)} of all that it could write here."


def describe_certainty(decision: Decision[Any]) -> str:
    """Return a sentence with the margin and the entropy of a decision."""
    return f"Margin {percent(decision.margin)}, entropy {decision.entropy:.2f} nats."


ROOT = 0
_MAX_LINES = 200


def show_bytes(piece: bytes) -> str:
    """Return the text of a token in quotes, so that spaces and partial characters are visible."""
    try:
        return repr(piece.decode())
    except UnicodeDecodeError:
        return repr(piece)[1:]


def plain(text: str) -> str:
    """Return a text for a terminal, without markup and control characters."""
    from rich.markup import escape

    return escape(printable(text))


def count_leaves(trie: TokenTrie) -> str:
    """Return the number of leaves, with the noun."""
    return "1 leaf" if len(trie) == 1 else f"{len(trie):,} leaves"


def draw(trie: TokenTrie, piece: Callable[[int], bytes] | None = None) -> Tree:
    """Draw a trie; a chain without a branch is one line, and branches after the last line are counted.

    `piece` returns the bytes of a token id; by default, ids are shown.
    """
    from rich.tree import Tree

    core = trie.core

    def label(token: int) -> str:
        return f"[cyan]{plain(show_bytes(piece(token)))}[/] [dim]{token}[/]" if piece else f"[cyan]{token}[/]"

    def name(node: int) -> str:
        leaf = core.leaf(node)
        return "" if leaf is None else f"  [bold green]{plain(core.name(leaf))}[/]"

    def step(node: int, token: int) -> int:
        child = core.child(node, token)
        assert child is not None
        return child

    top = Tree(f"[bold]{count_leaves(trie)}[/]")
    lines = 0
    waiting = [(top, ROOT)]
    while waiting:
        branch, node = waiting.pop()
        tokens = core.children(node).tolist()
        added = []
        for i, token in enumerate(tokens):
            if lines == _MAX_LINES:
                branch.add(f"[dim]… {len(tokens) - i:,} more branches")
                break
            child, text = step(node, token), label(token)
            while core.leaf(child) is None and len(only := core.children(child)) == 1:
                text += f" {label(int(only[0]))}"
                child = step(child, int(only[0]))
            added.append((branch.add(text + name(child)), child))
            lines += 1
        waiting.extend(reversed(added))
    return top
