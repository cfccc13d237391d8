"""An explanation in a terminal."""

from __future__ import annotations

from typing import Any

from rich.bar import Bar
from rich.console import Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from token_trie.decisions.decision import LOW_MASS, Decision
from token_trie.decisions.explain import Explained
from token_trie.show.branches import Branch, branches_of, sentence_of
from token_trie.show.texts import clip, percent, quote
from token_trie.show.trie import count_leaves

COLORS = {"greedy": "yellow", "exact": "green", "": ""}


def percent_bar(p: float, whose: str = "exact") -> Bar:
    """Return a bar; 100 % is 30 columns wide."""
    return Bar(1.0, 0.0, p, width=30, color=COLORS[whose])


def describe_mass(mass: float) -> str:
    """Return a sentence on whether the set fits at all."""
    if mass < LOW_MASS:
        return f"The model gives the whole set only {percent(mass)} – none of these may fit."
    return f"The model gives the whole set {percent(mass)} of all that it could write here."


def describe_certainty(decision: Decision[Any]) -> str:
    """Return a sentence with margin and entropy of a decision with probabilities."""
    return f"Margin {percent(decision.margin)}, entropy {decision.entropy:.2f} nats."


def draw_sentence(explained: Explained) -> Text:
    """Return the sentence of an explanation, in color."""
    phrases = sentence_of(explained)
    return Text.assemble(*((text, f"bold {COLORS[whose]}" if whose else "") for text, whose in phrases))


def draw_explanation(explained: Explained, n_ranked: int = 10, max_branches: int = 30) -> Group:
    """Draw an explanation: its sentence, the best answers as bars, and the branches that matter."""
    ranked = explained.ranked(n_ranked)
    answers = Table(box=None, padding=(0, 2, 0, 0))
    for title, whose in (("answer", ""), ("", ""), ("whole", "exact"), ("step by step", "greedy")):
        answers.add_column(title, justify="right" if whose else "left", header_style=f"dim {COLORS[whose]}")
    for leaf in ranked:
        whose = "exact" if leaf == explained.exact_leaf else "greedy" if leaf == explained.greedy_leaf else ""
        p, stepwise = float(explained.probabilities[leaf]), float(explained.stepwise[leaf])
        name = Text(clip(explained.trie[leaf].name), f"bold {COLORS[whose]}" if whose else "")
        answers.add_row(name, percent_bar(p), f"[green]{percent(p)}", f"[yellow]{percent(stepwise)}")
    if (n_more := len(explained.trie) - len(ranked)) > 0:
        rest = max(0.0, 1 - sum(float(explained.probabilities[leaf]) for leaf in ranked))
        answers.add_row(f"[dim]… {n_more:,} more", "", f"[dim]{percent(rest)}")
    top = Tree(
        f"[bold]{count_leaves(explained.trie)}[/]  [yellow]share of what is allowed there[/]  "
        "[green]part of the set behind it[/]"
    )
    waiting = [(top, branches_of(explained, max_branches))]
    while waiting:
        tree, branch = waiting.pop()
        waiting += reversed([(tree.add(_branch_label(explained, child)), child) for child in branch.children])
        if branch.n_more:
            tree.add(f"[dim]… {branch.n_more:,} more ({percent(branch.more)})")
    mass = explained.exact.mass or 0.0
    facts = f"{describe_mass(mass)} {describe_certainty(explained.exact)}"
    certainty = Text(facts, "yellow" if mass < LOW_MASS else "dim")
    return Group(draw_sentence(explained), "", answers, "", certainty, "", top)


def _branch_label(explained: Explained, branch: Branch) -> Text:
    whose = [name for name, on in (("greedy", branch.greedy), ("exact", branch.exact)) if on]
    tokens = b"".join(explained.pieces[token] for token in branch.tokens)
    label = Text()
    label.append(quote(tokens) if branch.tokens else "the end", f"bold {COLORS[whose[-1]]}" if whose else "")
    label.append(f"  {percent(branch.share)}", "yellow").append(f"  {percent(branch.mass)}", "green")
    if branch.leaf is not None:
        label.append(f"  {clip(explained.trie[branch.leaf].name)}", "bold")
    for name in whose:
        label.append(f"  ← {name}", COLORS[name])
    return label
