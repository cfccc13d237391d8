"""`explain`: where the greedy answer and the most probable whole answer diverge, branch by branch."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from token_trie.arrays import Floats
from token_trie.decisions.bound_choices import bind, check_size
from token_trie.decisions.choose import ScoreRequest, by_scores, by_steps, cost_of
from token_trie.decisions.decision import LOW_MASS, Decision
from token_trie.decisions.options import MAX_SCORED, ScoreOptions
from token_trie.decisions.request import Prefix, Request
from token_trie.errors import ArgumentError
from token_trie.llama.query import Ask, Keep, LeafEnd, Plan, Query
from token_trie.native.core import Llama, vocab_of
from token_trie.plan import Model, run
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie
from token_trie.show.trie import (
    COLORS,
    ROOT,
    Line,
    as_rich,
    as_text,
    cells,
    clip,
    count_leaves,
    describe_certainty,
    describe_mass,
    padded,
    percent,
    quote,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_N_SHOWN, _BAR = 10, 30
"""Number of drawn answers, and the columns of a bar for 100 %."""
MAX_BRANCHES = 30
"""Number of drawn branches besides those of the two answers."""
MIN_MASS, MIN_BRANCHES = 1e-4, 12
"""After so many branches, those with a smaller mass are not drawn."""


@dataclass(frozen=True)
class Explanation:
    """How a decision comes about, with the probability of every branch; `print` draws it, and rich draws it in color.

    Attributes
    ----------
    trie : TokenTrie
        The set.
    greedy_leaf, exact_leaf : int
        The leaf reached by the best token at each step, and the leaf of the most probable whole answer.
    probabilities : ndarray of float64, shape (len(trie),)
        Probability of each leaf, under the condition that one of the leaves is the answer.
    stepwise : ndarray of float64, shape (len(trie),)
        Probability with which sampled mode draws each leaf: the product of the shares on its path.
    shares : ndarray of float64, shape (trie.n_nodes,)
        Probability of each node's token among the tokens allowed after its parent. It is 1 for a forced token. The
        difference of 1 and the sum over the children of a leaf is the share of ending there.
    pieces : dict of int to bytes
        Texts of the set's tokens, as bytes.
    prompt : str
        The text that the model read.
    greedy, exact : Decision
        The decisions of `choose` in these modes.
    model : str
        Name of the model; empty for a handle on a file.
    """

    trie: TokenTrie
    greedy_leaf: int
    exact_leaf: int
    probabilities: Floats = field(compare=False, repr=False)
    stepwise: Floats = field(compare=False, repr=False)
    shares: Floats = field(compare=False, repr=False)
    pieces: dict[int, bytes] = field(compare=False, repr=False)
    prompt: str
    greedy: Decision[Any]
    exact: Decision[Any]
    model: str

    @cached_property
    def masses(self) -> Floats:
        """Sum of the probabilities of the answers below each node."""
        return add_up(self.trie, self.probabilities)

    @cached_property
    def parting(self) -> int | None:
        """The node after which the greedy and the most probable answer diverge; None if they are the same."""
        if self.greedy_leaf == self.exact_leaf:
            return None
        return [a for a, b in zip(*self._paths, strict=False) if a == b][-1]

    @cached_property
    def _paths(self) -> tuple[list[int], list[int]]:
        return path_to(self.trie, self.greedy_leaf), path_to(self.trie, self.exact_leaf)

    @cached_property
    def _n_leaves(self) -> Floats:
        return add_up(self.trie, np.ones(len(self.trie)))

    def branches(self) -> Branch:
        """Return the root, with the branches of the two answers and the most probable ones below it."""
        root = Branch((), 1.0, 1.0, len(self.trie), greedy=True, exact=True)
        drawn, n, order = [root], 0, count()
        waiting: list[tuple[float, int, Branch, Branch, int]] = []

        def wait(parent: Branch, node: int) -> None:
            for branch, end in self._after(node):
                own = branch.greedy or branch.exact
                heapq.heappush(waiting, (-np.inf if own else -branch.mass, next(order), parent, branch, end))

        wait(root, ROOT)
        while waiting:
            priority, _, parent, branch, end = heapq.heappop(waiting)
            if priority > -np.inf:
                n += 1
                if n > MAX_BRANCHES or (n > MIN_BRANCHES and branch.mass < MIN_MASS):
                    break
            parent.children.append(branch)
            drawn.append(branch)
            if branch.leaf is None:
                wait(branch, end)
        for branch in drawn:
            branch.children.sort(key=lambda child: -child.mass)
        return root

    def _after(self, node: int) -> Iterator[tuple[Branch, int]]:
        """Yield the branches after a node, each with the node that it leads to."""
        core = self.trie.core
        if (leaf := core.leaf(node)) is not None:
            is_own = leaf == self.greedy_leaf, leaf == self.exact_leaf
            yield Branch((), self._end_share(node), float(self.probabilities[leaf]), 1, leaf, *is_own), node
        for child, token in zip(children_of(self.trie, node), core.children(node).tolist(), strict=True):
            chain, end = [token], child
            while core.leaf(end) is None and len(only := children_of(self.trie, end)) == 1:
                chain += core.children(end).tolist()
                end = only[0]
            leaf = core.leaf(end) if len(core.children(end)) == 0 else None
            is_own = child in self._paths[0], child in self._paths[1]
            share, mass, n_leaves = (float(each[child]) for each in (self.shares, self.masses, self._n_leaves))
            yield Branch(tuple(chain), share, mass, int(n_leaves), leaf, *is_own), end

    def _end_share(self, node: int) -> float:
        """Return the share of ending at a leaf that is the beginning of longer answers."""
        return max(0.0, 1 - float(self.shares[children_of(self.trie, node)].sum()))

    def ranked(self, n: int) -> list[int]:
        """Return the n most probable leaves, and the greedy leaf if it is not one of them."""
        order: list[int] = np.lexsort((self.trie.core.leaf_nodes(), -self.probabilities)).tolist()
        return order[:n] + ([self.greedy_leaf] if self.greedy_leaf not in order[:n] else [])

    def to_dict(self) -> dict[str, Any]:
        """Return both decisions and the probability of each answer, the most probable first, for JSON."""
        answers = [
            {
                "text": self.trie[leaf].name,
                "probability": float(self.probabilities[leaf]),
                "stepwise": float(self.stepwise[leaf]),
                "tokens": list(self.trie[leaf].tokens),
            }
            for leaf in self.ranked(len(self.trie))
        ]
        decisions = {"greedy": self.greedy.to_dict(), "exact": self.exact.to_dict()}
        return {"model": self.model, "prompt": self.prompt, **decisions, "answers": answers}

    def sentence(self) -> Line:
        """Say in one sentence where the greedy and the most probable answer diverge.

        Each part has the answer that it is about: "greedy", "exact", or "" for neither.
        """
        p, greedy, exact = self.probabilities, self.greedy_leaf, self.exact_leaf
        answer = clip(self.exact.value), "exact"
        if len(p) == 1:
            return [("The set has one answer, ", ""), answer, (": there is nothing to choose.", "")]
        if self.parting is None:
            second = float(np.sort(p)[-2])
            tail = f", which has {percent(p[exact])} of the set; the next best answer has {percent(second)}."
            return [("Greedy and exact agree on ", ""), answer, (tail, "")]
        at = self._paths[0].index(self.parting)
        before = b"".join(self.pieces[token] for token in self.trie[greedy].tokens[:at])
        (taken, taken_share), (missed, missed_share) = (self._step(leaf, at) for leaf in (greedy, exact))
        return [
            (f"{f'After {quote(before)}' if before else 'At the first token'}, ", ""),
            ("greedy", "greedy"),
            (f" takes {taken} ({percent(taken_share)}) over {missed} ({percent(missed_share)}) and ends at ", ""),
            (clip(self.greedy.value), "greedy"),
            (f" with {percent(p[greedy])} of the set, where ", ""),
            answer,
            (f" has {percent(p[exact])}.", ""),
        ]

    def _step(self, leaf: int, depth: int) -> tuple[str, float]:
        """Return the text and the share of the token that the path of a leaf takes at a depth."""
        path = path_to(self.trie, leaf)
        if depth + 1 < len(path):
            return quote(self.pieces[self.trie[leaf].tokens[depth]]), float(self.shares[path[depth + 1]])
        return "the end", self._end_share(path[depth])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in color."""
        yield from as_rich(draw_explanation(self))

    def __str__(self) -> str:
        return as_text(draw_explanation(self))


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


def explain(
    llm: Llama,
    prompt: Prompt,
    choices: ChoicesLike,
    *,
    leaf_end: LeafEnd = "longest",
    leading_space: bool | None = None,
    max_scored: int | None = MAX_SCORED,
) -> Explanation:
    """Take a decision greedily and exactly, and keep the probability of every branch of the set.

    The whole set is scored: every node is evaluated, and nodes before a branch point twice.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    prompt, choices
        As for `choose`.
    leaf_end : {"longest", "any", "follow"}
        What the probability of an answer contains besides its tokens; see `score`.
    leading_space : bool, optional
        As for `TokenTrie.from_choices`.
    max_scored : int or None
        As for `score`.

    Returns
    -------
    Explanation

    Raises
    ------
    ArgumentError, VocabularyError, ContextError, BusyError
        As for `choose`.
    """
    options = ScoreOptions(leaf_end=leaf_end, leading_space=leading_space, max_scored=max_scored)
    return run(llm, prompt, ExplainRequest.read(llm, choices, options).plan)


@dataclass(frozen=True)
class ExplainRequest(Request[Explanation]):
    """A request for an explanation of a decision."""

    scores: ScoreRequest
    model: str

    @classmethod
    def read(cls, llm: Llama | None, choices: ChoicesLike, options: ScoreOptions) -> ExplainRequest:
        """Read choices; ArgumentError if they cannot be scored."""
        if llm is not None:
            vocab_of(llm)
        name = "" if llm is None else str(llm.metadata.get("general.name", ""))
        return cls(ScoreRequest.read(choices, options), name)

    def after(self, model: Model, prefix: Prefix) -> Plan[Explanation]:
        """Plan an exact and a greedy decision, and the scores of every branch; ArgumentError for a filtered set."""
        options = self.scores.options
        tokens, choices = bind(model, prefix.tokens, self.scores.choices, options.leading_space)
        check_size(choices.trie, options.max_scored)
        n_prompt, trie = len(tokens), choices.trie
        if len(trie) < trie.core.n_leaves:
            raise ArgumentError("choices: a filtered set is not explained; make one of what is left with only")
        (scores,) = yield [Ask(tokens, Query("scores", trie, leaf_end=options.leaf_end))]
        exact = by_scores(choices, scores.logprobs, cost_of(n_prompt, scores))
        (steps,) = yield [Ask(tokens, Query("greedy", trie))]
        greedy = by_steps(choices, steps, cost_of(n_prompt, steps))
        (branches,) = yield [Ask(tokens, Query("scores", trie, branches=True))]
        assert exact.probabilities is not None
        leaf_of = range(len(trie)) if choices.leaf_of is None else choices.leaf_of.tolist()
        yield [Keep(prefix.tokens)]
        return Explanation(
            trie=trie,
            greedy_leaf=leaf_of[greedy.index],
            exact_leaf=leaf_of[exact.index],
            probabilities=exact.probabilities[choices.firsts()],
            stepwise=np.exp(branches.logprobs),
            shares=shares_of(trie, branches.logprobs),
            pieces={
                token: model.vocab.detokenize([token], special=True)
                for token in np.unique(trie.core.arrays()[0]).tolist()
            },
            prompt=model.vocab.detokenize(tokens).decode(errors="replace"),
            greedy=greedy,
            exact=exact,
            model=self.model,
        )


def children_of(trie: TokenTrie, node: int) -> list[int]:
    """Return the children of a node, in the order of their tokens."""
    children: list[int] = trie.core.child_nodes(node).tolist()
    return children


def path_to(trie: TokenTrie, leaf: int) -> list[int]:
    """Return the nodes from the root to a leaf's end."""
    nodes = [ROOT]
    for token in trie.core.sequence(leaf).tolist():
        child = trie.core.child(nodes[-1], token)
        assert child is not None
        nodes.append(child)
    return nodes


def add_up(trie: TokenTrie, of_leaves: Floats) -> Floats:
    """Return for each node the sum over the leaves below it and its own leaf."""
    sums = np.zeros(trie.n_nodes)
    sums[trie.core.leaf_nodes()] = of_leaves
    for node in range(trie.n_nodes - 1, -1, -1):  # children have higher numbers
        sums[node] += sums[children_of(trie, node)].sum()
    return sums


def shares_of(trie: TokenTrie, stepwise: Floats) -> Floats:
    """Return each node's share among the tokens allowed after its parent, from the products of the leaves' shares."""
    sums = np.full(trie.n_nodes, -np.inf)
    sums[trie.core.leaf_nodes()] = stepwise
    shares = np.ones(trie.n_nodes)
    for node in range(trie.n_nodes - 1, -1, -1):
        below = children_of(trie, node)
        if len(below):
            behind = sums[below]
            sums[node] = np.logaddexp.reduce([sums[node], *behind])
            if np.isfinite(sums[node]):
                shares[below] = np.exp(behind - sums[node])
    return shares


def draw_explanation(explained: Explanation) -> Iterator[Line]:
    """Draw an explanation: its sentence, the best answers with bars, and the most probable branches."""
    yield [(text, f"bold {COLORS[whose]}" if whose else "") for text, whose in explained.sentence()]
    yield []
    yield from _answers(explained)
    yield []
    mass = explained.exact.mass or 0.0
    facts = f"{describe_mass(mass)} {describe_certainty(explained.exact)}"
    yield [(facts, "yellow" if mass < LOW_MASS else "dim")]
    yield []
    yield [
        (count_leaves(explained.trie), "bold"),
        ("  share of what is allowed there", "yellow"),
        ("  part of the set after it", "green"),
    ]
    yield from _below(explained, explained.branches(), "")


def _answers(explained: Explanation) -> Iterator[Line]:
    """Draw a table of the best answers."""
    ranked = explained.ranked(_N_SHOWN)
    names = {leaf: clip(explained.trie[leaf].name) for leaf in ranked}
    left_out = len(explained.trie) - len(ranked)
    more = f"… {left_out:,} more" if left_out else ""
    n = max(map(cells, ["answer", more, *names.values()]))
    yield [(padded("answer", n + _BAR + 4), "dim"), ("  whole", "dim green"), ("  step by step", "dim yellow")]
    for leaf in ranked:
        whose = "exact" if leaf == explained.exact_leaf else "greedy" if leaf == explained.greedy_leaf else ""
        p, stepwise = float(explained.probabilities[leaf]), float(explained.stepwise[leaf])
        yield [
            (padded(names[leaf], n + 2), f"bold {COLORS[whose]}" if whose else ""),
            (padded("█" * round(_BAR * p), _BAR), COLORS["exact"]),
            (f"{percent(p):>9}", "green"),
            (f"{percent(stepwise):>14}", "yellow"),
        ]
    if more:
        rest = max(0.0, 1 - sum(float(explained.probabilities[leaf]) for leaf in ranked))
        yield [(f"{padded(more, n + 2 + _BAR)}{percent(rest):>9}", "dim")]


def _below(explained: Explanation, branch: Branch, indent: str) -> Iterator[Line]:
    """Draw the branches below a branch as a tree."""
    lines: list[tuple[Line, Branch | None]] = [(_label(explained, child), child) for child in branch.children]
    if branch.n_more:
        lines.append(([(f"… {branch.n_more:,} more ({percent(branch.more)})", "dim")], None))
    for i, (line, child) in enumerate(lines, 1):
        yield [(f"{indent}{'└── ' if i == len(lines) else '├── '}", ""), *line]
        if child is not None:
            yield from _below(explained, child, f"{indent}{'    ' if i == len(lines) else '│   '}")


def _label(explained: Explanation, branch: Branch) -> Line:
    whose = [name for name, on in (("greedy", branch.greedy), ("exact", branch.exact)) if on]
    tokens = b"".join(explained.pieces[token] for token in branch.tokens)
    label = [
        (quote(tokens) if branch.tokens else "the end", f"bold {COLORS[whose[-1]]}" if whose else ""),
        (f"  {percent(branch.share)}", "yellow"),
        (f"  {percent(branch.mass)}", "green"),
    ]
    if branch.leaf is not None:
        label.append((f"  {clip(explained.trie[branch.leaf].name)}", "bold"))
    return label + [(f"  ← {name}", COLORS[name]) for name in whose]
