"""`explain`: where the greedy walk and the most probable whole answer part ways.

Every branch has two probabilities. Its share is what the model gives it among what the set allows there, which is all
that a walk step by step looks at. Its mass is that of all answers behind it, which is what counts in the end:

    prompt ─┬─ set      share 47 %   mass  9 %     greedy goes here, and finds little behind it
            └─ create   share 31 %   mass 87 %     the most probable whole answer begins with this
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from token_trie.decisions.answers import ask
from token_trie.decisions.decision import Decision
from token_trie.decisions.native_scores import ENDS, End, check_scorable, score_leaves
from token_trie.decisions.ways import Clock, walk, weigh
from token_trie.errors import ArgumentError
from token_trie.llama.chooser import check_room, chooser, room_of
from token_trie.native.arguments import lookup
from token_trie.native.core import Llama, vocab_of
from token_trie.native.lease import lease
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie

Floats = npt.NDArray[np.float64]

ROOT = 0


@dataclass(frozen=True)
class Explained:
    """How a decision comes about.

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
    probabilities : ndarray of float64, shape (len(trie),)
        Of each leaf, given that the answer is one of them.
    masses : ndarray of float64, shape (trie.n_nodes,)
        Of each node: the sum of the probabilities of the answers behind it.
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
    greedy: Decision[Any]
    exact: Decision[Any]
    greedy_leaf: int
    exact_leaf: int
    trie: TokenTrie
    shares: Floats = field(compare=False, repr=False)
    probabilities: Floats = field(compare=False, repr=False)
    masses: Floats = field(compare=False, repr=False)
    walks: Floats = field(compare=False, repr=False)
    parting: int | None
    pieces: dict[int, bytes] = field(compare=False, repr=False)
    model: str

    def ranked(self, n: int) -> list[int]:
        """Return the n most probable leaves, and the greedy walk's if it is not among them."""
        order: list[int] = np.lexsort((self.trie._handle.leaf_nodes(), -self.probabilities)).tolist()
        return order[:n] + ([self.greedy_leaf] if self.greedy_leaf not in order[:n] else [])

    def to_dict(self) -> dict[str, Any]:
        """Return both decisions and the probabilities of every answer, the most probable first, for JSON."""
        answers = [
            {
                "text": self.trie[leaf].name,
                "probability": float(self.probabilities[leaf]),
                "walk": float(self.walks[leaf]),
                "tokens": list(self.trie[leaf].tokens),
            }
            for leaf in self.ranked(len(self.trie))
        ]
        return {
            "model": self.model,
            "prompt": self.prompt,
            "greedy": self.greedy.to_dict(),
            "exact": self.exact.to_dict(),
            "answers": answers,
        }

    def end_share(self, node: int) -> float:
        """Share of ending, at a leaf that longer ones go on from."""
        return max(0.0, 1 - float(self.shares[list(children_of(self.trie, node))].sum()))


def weigh_branches(llm: Llama, prompt: Prompt, choices: ChoicesLike, end: End, leading_space: bool | None) -> Explained:
    """Take a decision greedily and exactly, and keep the probability of every branch of the set."""
    lookup(end, ENDS, "end")
    if prompt is None:
        raise ArgumentError("prompt: None where text, token ids or chat messages belong")
    with lease(llm):
        tokens, answers = ask(llm, prompt, choices, leading_space=leading_space)
        trie = answers.trie
        check_scorable(trie)
        check_room(room_of(llm), len(tokens), trie)
    with chooser(llm) as handle:
        clock = Clock(handle, tokens)
        scores = score_leaves(handle, trie, end=end)
        stats = clock.stats(n_passes=scores.n_passes, n_evaluated=scores.n_evaluated)
        walks = score_leaves(handle, trie, branches=True)
        exact = weigh(answers, scores, stats)
        greedy = walk(handle, answers, tokens, "greedy")
    assert exact.probabilities is not None
    probabilities = exact.probabilities[answers.firsts()]
    leaf_of = range(len(trie)) if answers.leaf_of is None else answers.leaf_of.tolist()
    leaves = leaf_of[greedy.index], leaf_of[exact.index]
    ways = [path_to(trie, leaf) for leaf in leaves]
    common = [a for a, b in zip(*ways, strict=False) if a == b]
    spelled = np.unique(trie._handle.arrays()[0]).tolist()
    with lease(llm):
        vocab = vocab_of(llm)
        text = vocab.detokenize(tokens).decode(errors="replace")
        pieces = {token: vocab.detokenize([token]) for token in spelled}
    return Explained(
        prompt=text,
        greedy=greedy,
        exact=exact,
        greedy_leaf=leaves[0],
        exact_leaf=leaves[1],
        trie=trie,
        shares=np.exp(walks.nodes),
        probabilities=probabilities,
        masses=add_up(trie, probabilities),
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
