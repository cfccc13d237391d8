"""A trie as a picture in text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from token_trie._text import clip, percent, printable, quote
from token_trie.choose import Decision
from token_trie.trie import TokenTrie

if TYPE_CHECKING:
    from token_trie.explain import Branch, Explanation

ROOT = 0
LOW_COVERAGE = 0.01
"""Of a set that is said not to fit."""
COLORS = {"greedy": "yellow", "exact": "green", "": ""}


def show_bytes(piece: bytes) -> str:
    """Text of a token, in quotes, so that spaces and half characters can be seen."""
    try:
        return repr(piece.decode())
    except UnicodeDecodeError:
        return repr(piece)[1:]


def plain(text: str) -> str:
    """Text that a terminal prints and nothing else: no markup, no control characters."""
    return escape(printable(text))


def count_leaves(trie: TokenTrie) -> str:
    """Say how many leaves there are."""
    return "1 leaf" if len(trie) == 1 else f"{len(trie):,} leaves"


def draw(trie: TokenTrie, piece: Callable[[int], bytes] | None = None, max_lines: int = 200) -> Tree:
    """Draw a trie; chains without a branch stand on one line.

    Parameters
    ----------
    trie : TokenTrie
        The set.
    piece : callable, optional
        From a token id to its bytes; without it, ids are shown.
    max_lines : int
        Lines at most, the root apart; what is left out is counted.
    """
    core = trie._handle

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
            if lines == max_lines:
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


def percent_bar(p: float, whose: str = "exact") -> Bar:
    """Bar of 100 % in 30 columns."""
    return Bar(1.0, 0.0, p, width=30, color=COLORS[whose])


def describe_coverage(coverage: float) -> str:
    """Say whether the set fits at all."""
    if coverage < LOW_COVERAGE:
        return f"The model gives the whole set only {percent(coverage)} – none of these may fit."
    return f"The model gives the whole set {percent(coverage)} of all that it could write here."


def describe_certainty(decision: Decision) -> str:
    """Margin and entropy of a decision with probabilities."""
    return f"Margin {percent(decision.margin)}, entropy {decision.entropy:.2f} nats."


def draw_sentence(explanation: Explanation) -> Text:
    """Color the sentence of an explanation."""
    phrases = explanation.sentence()
    return Text.assemble(*((text, f"bold {COLORS[whose]}" if whose else "") for text, whose in phrases))


def draw_explanation(explanation: Explanation, n_ranked: int = 10, max_branches: int = 30) -> Group:
    """Draw an explanation: its sentence, the best answers as bars, and the branches that matter."""
    ranked = explanation.ranked(n_ranked)
    answers = Table(box=None, padding=(0, 2, 0, 0))
    for title, whose in (("answer", ""), ("", ""), ("whole", "exact"), ("step by step", "greedy")):
        answers.add_column(title, justify="right" if whose else "left", header_style=f"dim {COLORS[whose]}")
    for leaf in ranked:
        whose = "exact" if leaf == explanation.exact_leaf else "greedy" if leaf == explanation.greedy_leaf else ""
        p, walk = float(explanation.probabilities[leaf]), float(explanation.walks[leaf])
        name = Text(clip(explanation.trie[leaf].name), f"bold {COLORS[whose]}" if whose else "")
        answers.add_row(name, percent_bar(p), f"[green]{percent(p)}", f"[yellow]{percent(walk)}")
    if (n_more := len(explanation.trie) - len(ranked)) > 0:
        rest = max(0.0, 1 - sum(float(explanation.probabilities[leaf]) for leaf in ranked))
        answers.add_row(f"[dim]… {n_more:,} more", "", f"[dim]{percent(rest)}")
    top = Tree(
        f"[bold]{count_leaves(explanation.trie)}[/]  [yellow]share of what is allowed there[/]  "
        "[green]part of the set behind it[/]"
    )
    waiting = [(top, explanation.branches(max_branches))]
    while waiting:
        tree, branch = waiting.pop()
        waiting += reversed([(tree.add(_branch_label(explanation, child)), child) for child in branch.children])
        if branch.n_more:
            tree.add(f"[dim]… {branch.n_more:,} more ({percent(branch.more)})")
    coverage = explanation.exact.coverage or 0.0
    facts = f"{describe_coverage(coverage)} {describe_certainty(explanation.exact)}"
    certainty = Text(facts, "yellow" if coverage < LOW_COVERAGE else "dim")
    return Group(draw_sentence(explanation), "", answers, "", certainty, "", top)


def _branch_label(explanation: Explanation, branch: Branch) -> Text:
    whose = [name for name, on in (("greedy", branch.greedy), ("exact", branch.exact)) if on]
    tokens = b"".join(explanation.pieces[token] for token in branch.tokens)
    label = Text()
    label.append(quote(tokens) if branch.tokens else "the end", f"bold {COLORS[whose[-1]]}" if whose else "")
    label.append(f"  {percent(branch.share)}", "yellow").append(f"  {percent(branch.mass)}", "green")
    if branch.leaf is not None:
        label.append(f"  {clip(explanation.trie[branch.leaf].name)}", "bold")
    for name in whose:
        label.append(f"  ← {name}", COLORS[name])
    return label
