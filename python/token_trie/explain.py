"""`explain`: where the greedy walk and the most probable whole answer part ways.

Every branch has two probabilities. Its share is what the model gives it among what the set allows there, which is all
that a walk step by step looks at. Its mass is that of all answers behind it, which is what counts in the end:

    prompt ─┬─ set      share 47 %   mass  9 %     greedy goes here, and finds little behind it
            └─ create   share 31 %   mass 87 %     the most probable whole answer begins with this
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from token_trie._chooser import check_room, chooser, fit_set, room_of
from token_trie._lease import lease
from token_trie._native import Llama, vocab_of
from token_trie._text import clip, percent, quote
from token_trie.choose import Decision, _Clock, _walk, _weigh
from token_trie.constrain import lookup
from token_trie.errors import ArgumentError
from token_trie.prompt import Prompt
from token_trie.score import ENDS, End, check_scorable, score_leaves
from token_trie.trie import TokenTrie

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Floats = npt.NDArray[np.float64]

ROOT = 0
MAX_BRANCHES = 40
MIN_MASS, FEW = 1e-4, 12
"""Less than this is drawn among the first few branches alone."""


class Phrase(NamedTuple):
    """A piece of a sentence, and whose it is."""

    text: str
    whose: str = ""
    """"greedy", "exact", or nobody's."""


@dataclass
class Branch:
    """A token that may come next, with those that leave no choice after it; or an end where longer answers go on."""

    tokens: tuple[int, ...]
    """None for an end."""
    share: float
    mass: float
    n_leaves: int
    """Answers behind it."""
    leaf: int | None = None
    """The answer that ends with it."""
    greedy: bool = False
    """Whether the greedy walk takes it."""
    exact: bool = False
    """Whether the most probable answer does."""
    parting: bool = False
    """Whether the two part ways behind it."""
    children: list[Branch] = field(default_factory=list)
    """Those to draw, the most probable first."""

    @property
    def n_more(self) -> int:
        """Answers behind it that are not drawn."""
        return 0 if self.leaf is not None else self.n_leaves - sum(child.n_leaves for child in self.children)

    @property
    def more(self) -> float:
        """Their mass."""
        return max(0.0, self.mass - sum(child.mass for child in self.children))


@dataclass(frozen=True)
class Explanation:
    """How a decision comes about. Print it with rich, or write `html` to a file.

    Attributes
    ----------
    prompt : str
        What the model read.
    greedy, exact : Decision
        As `choose` takes them.
    greedy_leaf, exact_leaf : int
        Their places in the trie.
    trie : TokenTrie
        The set.
    shares : ndarray of float64, shape (trie.n_nodes,)
        Of each node, level by level: the probability of its token among what is allowed behind its parent; 1 where
        nothing else is. What the nodes behind a leaf leave of 1 is the end of the answer.
    masses : ndarray of float64, shape (trie.n_nodes,)
        Of each node: the sum of `exact.probabilities` of the answers behind it.
    walks : ndarray of float64, shape (len(trie),)
        Of each leaf: the probability that sampled mode takes it, which is the product of the shares on its path.
    parting : int or None
        The node behind which the greedy walk and the most probable answer part ways, if they do.
    pieces : dict of int to bytes
        Texts of the set's tokens.
    model : str
        Its name.
    """

    prompt: str
    greedy: Decision
    exact: Decision
    greedy_leaf: int
    exact_leaf: int
    trie: TokenTrie
    shares: Floats = field(compare=False, repr=False)
    masses: Floats = field(compare=False, repr=False)
    walks: Floats = field(compare=False, repr=False)
    parting: int | None
    pieces: dict[int, bytes] = field(compare=False, repr=False)
    model: str

    def html(self, max_branches: int = MAX_BRANCHES) -> str:
        """Write a page that needs nothing beside itself: no network, no script.

        Parameters
        ----------
        max_branches : int
            Branches to draw beside those of the two answers: the most probable ones.
        """
        from token_trie.page import render

        return render(self, max_branches)

    def sentence(self) -> list[Phrase]:
        """Say in one sentence where the two part ways."""
        p, greedy, exact = self.probabilities, self.greedy_leaf, self.exact_leaf
        answer = Phrase(clip(self.exact.value), "exact")
        if len(p) == 1:
            return [Phrase("The set has one answer, "), answer, Phrase(": there is nothing to choose.")]
        if self.parting is None:
            second = float(np.sort(p)[-2])
            tail = f", which has {percent(p[exact])} of the set; the next best answer has {percent(second)}."
            return [Phrase("Greedy and exact agree on "), answer, Phrase(tail)]
        at = path_to(self.trie, greedy).index(self.parting)
        before = b"".join(self.pieces[token] for token in self.trie[greedy].tokens[:at])
        (taken, taken_share), (missed, missed_share) = (self._step(leaf, at) for leaf in (greedy, exact))
        return [
            Phrase(f"{f'After {quote(before)}' if before else 'At the first token'}, "),
            Phrase("greedy", "greedy"),
            Phrase(f" takes {taken} ({percent(taken_share)}) over {missed} ({percent(missed_share)}) and ends at "),
            Phrase(clip(self.greedy.value), "greedy"),
            Phrase(f" with {percent(p[greedy])} of the set, where "),
            answer,
            Phrase(f" has {percent(p[exact])}."),
        ]

    def branches(self, max_branches: int = MAX_BRANCHES) -> Branch:
        """Return the root, behind it the branches of the two answers and those with most of the mass."""
        root = Branch((), 1.0, 1.0, len(self.trie), greedy=True, exact=True, parting=self.parting == ROOT)
        drawn, n, order = [root], 0, count()
        waiting: list[tuple[float, int, Branch, Branch, int]] = []

        def wait(parent: Branch, node: int) -> None:
            for branch, end in behind(node):
                own = branch.greedy or branch.exact
                heapq.heappush(waiting, (-np.inf if own else -branch.mass, next(order), parent, branch, end))

        behind = self._opener()
        wait(root, ROOT)
        while waiting:
            priority, _, parent, branch, end = heapq.heappop(waiting)
            if priority > -np.inf:
                n += 1
                if n > max_branches or (n > FEW and branch.mass < MIN_MASS):
                    break
            parent.children.append(branch)
            drawn.append(branch)
            if branch.leaf is None:
                wait(branch, end)
        for branch in drawn:
            branch.children.sort(key=lambda child: -child.mass)
        return root

    def _opener(self) -> Callable[[int], Iterator[tuple[Branch, int]]]:
        """Return what opens a node: the branches behind it, each with the node that it leads to."""
        core = self.trie._handle
        greedy, exact = (set(path_to(self.trie, leaf)) for leaf in (self.greedy_leaf, self.exact_leaf))
        n_leaves = add_up(self.trie, np.ones(len(self.trie)))

        def behind(node: int) -> Iterator[tuple[Branch, int]]:
            if (leaf := core.leaf(node)) is not None:
                mass = float(self.probabilities[leaf])
                is_own = leaf == self.greedy_leaf, leaf == self.exact_leaf
                yield Branch((), self._end_share(node), mass, 1, leaf, *is_own), node
            for child, token in zip(children_of(self.trie, node), core.children(node).tolist(), strict=True):
                chain, end = [token], child
                while core.leaf(end) is None and len(only := children_of(self.trie, end)) == 1:
                    chain += core.children(end).tolist()
                    end = only[0]
                branch = Branch(
                    tokens=tuple(chain),
                    share=float(self.shares[child]),
                    mass=float(self.masses[child]),
                    n_leaves=int(n_leaves[child]),
                    leaf=core.leaf(end) if len(core.children(end)) == 0 else None,
                    greedy=child in greedy,
                    exact=child in exact,
                    parting=self.parting == end,
                )
                yield branch, end

        return behind

    def ranked(self, n: int) -> list[int]:
        """Return the n most probable leaves, and the greedy walk's if it is not among them."""
        order: list[int] = np.lexsort((self.trie._handle.leaf_nodes(), -self.probabilities)).tolist()
        return order[:n] + ([self.greedy_leaf] if self.greedy_leaf not in order[:n] else [])

    @property
    def probabilities(self) -> Floats:
        """Of each leaf, given that the answer is one of them."""
        assert self.exact.probabilities is not None
        return self.exact.probabilities

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in a terminal."""
        from token_trie.draw import draw_explanation

        yield draw_explanation(self)

    def _step(self, leaf: int, depth: int) -> tuple[str, float]:
        """Name what the path of a leaf takes at a depth, and its share there."""
        path = path_to(self.trie, leaf)
        if depth + 1 < len(path):
            return quote(self.pieces[self.trie[leaf].tokens[depth]]), float(self.shares[path[depth + 1]])
        return "the end", self._end_share(path[depth])

    def _end_share(self, node: int) -> float:
        """Share of ending, at a leaf that longer ones go on from."""
        return max(0.0, 1 - float(self.shares[list(children_of(self.trie, node))].sum()))


def explain(
    llm: Llama,
    prompt: Prompt,
    choices: Sequence[str] | TokenTrie,
    *,
    end: End = "longest",
    leading_space: bool | None = None,
) -> Explanation:
    """Take a decision greedily and exactly, and keep the probability of every branch of the set.

    The whole set is scored, however large: every node of it is evaluated, and what has a branch behind it twice.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    prompt : str, sequence of int, or sequence of chat messages
        As for `choose`.
    choices : sequence of str, or TokenTrie
        The answers.
    end : {"longest", "any", "follow"}
        What the probability of an answer has beside its tokens; see `score`.
    leading_space : bool, optional
        As for `TokenTrie.from_choices`.

    Returns
    -------
    Explanation

    Raises
    ------
    ArgumentError, VocabularyError, ContextError, BusyError
        As of `choose`.
    """
    lookup(end, ENDS, "end")
    if prompt is None:
        raise ArgumentError("prompt: None where text, token ids or chat messages belong")
    with lease(llm):
        trie, tokens = fit_set(llm, prompt, choices, leading_space, room_of(llm))
        check_scorable(trie)
        check_room(llm, tokens, trie)
    with chooser(llm) as handle:
        clock = _Clock(handle, tokens)
        scores = score_leaves(handle, trie, end=end)
        stats = clock.stats(n_passes=scores.n_passes, n_evaluated=scores.n_evaluated)
        walks = score_leaves(handle, trie, branches=True)
        exact = _weigh(trie, scores, stats, 1, False, None)
        greedy = _walk(handle, trie, tokens, "greedy", 1.0, 1.0)
    leaves = greedy.index, exact.index
    ways = [path_to(trie, leaf) for leaf in leaves]
    common = [a for a, b in zip(*ways, strict=False) if a == b]
    spelled = np.unique(trie._handle.arrays()[0]).tolist()
    with lease(llm):
        vocab = vocab_of(llm)
        text = vocab.detokenize(tokens).decode(errors="replace")
        pieces = {token: vocab.detokenize([token]) for token in spelled}
    if trie is not choices:
        # Equal choices are one leaf.
        greedy, exact = (replace(d, index=list(choices).index(d.value)) for d in (greedy, exact))
    assert exact.probabilities is not None
    return Explanation(
        prompt=text,
        greedy=greedy,
        exact=exact,
        greedy_leaf=leaves[0],
        exact_leaf=leaves[1],
        trie=trie,
        shares=np.exp(walks.nodes),
        masses=add_up(trie, exact.probabilities),
        walks=np.exp(walks.leaves),
        parting=None if ways[0] == ways[1] else common[-1],
        pieces=pieces,
        model=str(llm.metadata.get("general.name", "")),
    )


def children_of(trie: TokenTrie, node: int) -> range:
    """Nodes behind a node, in the order of their tokens."""
    tokens = trie._handle.children(node)
    first = trie._handle.child(node, int(tokens[0])) if len(tokens) else 0
    assert first is not None
    return range(first, first + len(tokens))


def path_to(trie: TokenTrie, leaf: int) -> list[int]:
    """Nodes from the root to a leaf's end."""
    nodes = [ROOT]
    for token in trie._handle.sequence(leaf).tolist():
        child = trie._handle.child(nodes[-1], token)
        assert child is not None
        nodes.append(child)
    return nodes


def add_up(trie: TokenTrie, of_leaves: Floats) -> Floats:
    """Sum of the leaves behind each node, its own included."""
    core = trie._handle
    # Level by level, the children of a node are neighbours, behind those of the node before.
    parents = np.repeat(np.arange(trie.n_nodes), [len(core.children(node)) for node in range(trie.n_nodes)])
    sums = np.zeros(trie.n_nodes)
    sums[core.leaf_nodes()] = of_leaves
    for node in range(trie.n_nodes - 1, 0, -1):
        sums[parents[node - 1]] += sums[node]
    return sums
