"""An explanation in a terminal: a sentence, and a tree of the most probable branches."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from token_trie.decisions.decision import LOW_MASS, Decision
from token_trie.questions.explain import ROOT, Explained, Explored, add_up, children_of, path_to
from token_trie.show.trie import clip, count_leaves, percent, quote

if TYPE_CHECKING:
    from rich.bar import Bar
    from rich.console import Group
    from rich.text import Text

MAX_BRANCHES = 40
MIN_MASS, MIN_BRANCHES = 1e-4, 12
"""After so many branches, those with a smaller mass are not drawn."""


class Phrase(NamedTuple):
    """A part of a sentence, and the answer that it is about."""

    text: str
    whose: str = ""
    """"greedy", "exact", or "" for neither."""


@dataclass
class Branch:
    """A token that may come next, with the forced tokens after it; or the end of an answer that begins longer ones."""

    tokens: tuple[int, ...]
    """Tokens of the branch; empty for the end of an answer."""
    share: float
    """Probability among the tokens that are allowed there."""
    mass: float
    """Total probability of the answers after it."""
    n_leaves: int
    """The number of answers after it."""
    leaf: int | None = None
    """The answer that ends with it."""
    greedy: bool = False
    """Whether the greedy answer takes it."""
    exact: bool = False
    """Whether the most probable answer takes it."""
    parting: bool = False
    """Whether the two answers diverge after it."""
    children: list[Branch] = field(default_factory=list)
    """The branches to draw, the most probable first."""

    @property
    def n_more(self) -> int:
        """The number of answers after it that are not drawn."""
        return 0 if self.leaf is not None else self.n_leaves - sum(child.n_leaves for child in self.children)

    @property
    def more(self) -> float:
        """The mass of these answers."""
        return max(0.0, self.mass - sum(child.mass for child in self.children))


def sentence_of(explained: Explained) -> list[Phrase]:
    """Say in one sentence where the greedy and the most probable answer diverge."""
    p, greedy, exact = explained.probabilities, explained.greedy_leaf, explained.exact_leaf
    answer = Phrase(clip(explained.exact.value), "exact")
    if len(p) == 1:
        return [Phrase("The set has one answer, "), answer, Phrase(": there is nothing to choose.")]
    if explained.parting is None:
        second = float(np.sort(p)[-2])
        tail = f", which has {percent(p[exact])} of the set; the next best answer has {percent(second)}."
        return [Phrase("Greedy and exact agree on "), answer, Phrase(tail)]
    at = path_to(explained.trie, greedy).index(explained.parting)
    before = b"".join(explained.pieces[token] for token in explained.trie[greedy].tokens[:at])
    (taken, taken_share), (missed, missed_share) = (_step(explained, leaf, at) for leaf in (greedy, exact))
    return [
        Phrase(f"{f'After {quote(before)}' if before else 'At the first token'}, "),
        Phrase("greedy", "greedy"),
        Phrase(f" takes {taken} ({percent(taken_share)}) over {missed} ({percent(missed_share)}) and ends at "),
        Phrase(clip(explained.greedy.value), "greedy"),
        Phrase(f" with {percent(p[greedy])} of the set, where "),
        answer,
        Phrase(f" has {percent(p[exact])}."),
    ]


def branches_of(explained: Explored, max_branches: int = MAX_BRANCHES) -> Branch:
    """Return the root, with the branches of the two answers and the most probable ones below it."""
    root = Branch((), 1.0, 1.0, len(explained.trie), greedy=True, exact=True, parting=explained.parting == ROOT)
    drawn, n, order = [root], 0, count()
    waiting: list[tuple[float, int, Branch, Branch, int]] = []

    def wait(parent: Branch, node: int) -> None:
        for branch, end in open_node(node):
            own = branch.greedy or branch.exact
            heapq.heappush(waiting, (-np.inf if own else -branch.mass, next(order), parent, branch, end))

    open_node = _opener(explained)
    wait(root, ROOT)
    while waiting:
        priority, _, parent, branch, end = heapq.heappop(waiting)
        if priority > -np.inf:
            n += 1
            if n > max_branches or (n > MIN_BRANCHES and branch.mass < MIN_MASS):
                break
        parent.children.append(branch)
        drawn.append(branch)
        if branch.leaf is None:
            wait(branch, end)
    for branch in drawn:
        branch.children.sort(key=lambda child: -child.mass)
    return root


def _opener(explained: Explored) -> Callable[[int], Iterator[tuple[Branch, int]]]:
    """Return a function from a node to the branches after it, each with the node that it leads to."""
    core = explained.trie.core
    greedy, exact = (set(path_to(explained.trie, leaf)) for leaf in (explained.greedy_leaf, explained.exact_leaf))
    n_leaves = add_up(explained.trie, np.ones(len(explained.trie)))

    def open_node(node: int) -> Iterator[tuple[Branch, int]]:
        if (leaf := core.leaf(node)) is not None:
            mass = float(explained.probabilities[leaf])
            is_own = leaf == explained.greedy_leaf, leaf == explained.exact_leaf
            yield Branch((), explained.end_share(node), mass, 1, leaf, *is_own), node
        for child, token in zip(children_of(explained.trie, node), core.children(node).tolist(), strict=True):
            chain, end = [token], child
            while core.leaf(end) is None and len(only := children_of(explained.trie, end)) == 1:
                chain += core.children(end).tolist()
                end = only[0]
            branch = Branch(
                tokens=tuple(chain),
                share=float(explained.shares[child]),
                mass=float(explained.masses[child]),
                n_leaves=int(n_leaves[child]),
                leaf=core.leaf(end) if len(core.children(end)) == 0 else None,
                greedy=child in greedy,
                exact=child in exact,
                parting=explained.parting == end,
            )
            yield branch, end

    return open_node


def _step(explained: Explored, leaf: int, depth: int) -> tuple[str, float]:
    """Return the text and the share of the token that the path of a leaf takes at a depth."""
    path = path_to(explained.trie, leaf)
    if depth + 1 < len(path):
        return quote(explained.pieces[explained.trie[leaf].tokens[depth]]), float(explained.shares[path[depth + 1]])
    return "the end", explained.end_share(path[depth])


COLORS = {"greedy": "yellow", "exact": "green", "": ""}


def percent_bar(p: float, whose: str = "exact") -> Bar:
    """Return a bar, 30 columns wide for 100 %."""
    from rich.bar import Bar

    return Bar(1.0, 0.0, p, width=30, color=COLORS[whose])


def describe_mass(mass: float) -> str:
    """Return a sentence on the mass of the set."""
    if mass < LOW_MASS:
        return f"The model gives the whole set only {percent(mass)} – none of these may fit."
    return f"The model gives the whole set {percent(mass)} of all that it could write here."


def describe_certainty(decision: Decision[Any]) -> str:
    """Return a sentence with the margin and the entropy of a decision."""
    return f"Margin {percent(decision.margin)}, entropy {decision.entropy:.2f} nats."


def draw_sentence(explained: Explained) -> Text:
    """Return the sentence of an explanation, in color."""
    from rich.text import Text

    phrases = sentence_of(explained)
    return Text.assemble(*((text, f"bold {COLORS[whose]}" if whose else "") for text, whose in phrases))


def draw_explanation(explained: Explained, n_ranked: int = 10, max_branches: int = 30) -> Group:
    """Draw an explanation: its sentence, the best answers as bars, and the most probable branches."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

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
    from rich.text import Text

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
