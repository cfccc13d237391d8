"""`explain`: where the greedy answer and the most probable whole answer diverge, branch by branch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from token_trie.arrays import Floats
from token_trie.decisions.bound_choices import BoundChoices, Reader, bind, check_scorable, read_set
from token_trie.decisions.choose import Clock, by_scores, by_steps
from token_trie.decisions.decision import Decision
from token_trie.decisions.run import Bound, Plan, PlanStep, Prefix, Request
from token_trie.decisions.think import Think
from token_trie.errors import ArgumentError
from token_trie.llama.query import LEAF_ENDS, LeafEnd, Query
from token_trie.llama.stream import Stream
from token_trie.native.checks import lookup
from token_trie.native.lifetime import lease
from token_trie.questions.scores import BoundTexts, Scored, TextsRequest
from token_trie.sets.choices import Choices, ChoicesLike
from token_trie.sets.trie import TokenTrie

ROOT = 0


@dataclass(frozen=True)
class Explored:
    """A set with the probability of every branch.

    Attributes
    ----------
    trie : TokenTrie
        The set.
    greedy_leaf, exact_leaf : int
        The leaf reached by the best token at each step, and the leaf of the most probable whole answer.
    shares : ndarray of float64, shape (trie.n_nodes,)
        For each node, level by level: the probability of its token among the tokens allowed after its parent; 1 for a
        forced token. The difference of 1 and the sum over the children of a leaf is the share of ending there.
    probabilities : ndarray of float64, shape (len(trie),)
        Probability of each leaf, under the condition that one of the leaves is the answer.
    masses : ndarray of float64, shape (trie.n_nodes,)
        For each node, the sum of the probabilities of the answers below it.
    stepwise : ndarray of float64, shape (len(trie),)
        Probability with which sampled mode draws each leaf: the product of the shares on its path.
    parting : int or None
        The node after which the greedy and the most probable answer diverge; None if they are the same.
    pieces : dict of int to bytes
        Texts of the set's tokens, as bytes.
    """

    trie: TokenTrie
    greedy_leaf: int
    exact_leaf: int
    shares: Floats = field(compare=False, repr=False)
    probabilities: Floats = field(compare=False, repr=False)
    masses: Floats = field(compare=False, repr=False)
    stepwise: Floats = field(compare=False, repr=False)
    parting: int | None
    pieces: dict[int, bytes] = field(compare=False, repr=False)

    def end_share(self, node: int) -> float:
        """Share of ending at a leaf that is the beginning of longer answers."""
        return max(0.0, 1 - float(self.shares[list(children_of(self.trie, node))].sum()))


@dataclass(frozen=True)
class Explained(Explored):
    """An explanation of a decision: `Explored`, with both decisions.

    Attributes
    ----------
    prompt : str
        The text that the model read.
    greedy, exact : Decision
        The decisions of `choose` in these modes.
    model : str
        Name of the model; empty for a handle on a file.
    """

    prompt: str
    greedy: Decision[Any]
    exact: Decision[Any]
    model: str

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
        return {
            "model": self.model,
            "prompt": self.prompt,
            "greedy": self.greedy.to_dict(),
            "exact": self.exact.to_dict(),
            "answers": answers,
        }


@dataclass(frozen=True)
class ExplainRequest(Request[Explained]):
    """A request for an explanation of a decision."""

    choices: TokenTrie | Choices[Any]
    leaf_end: LeafEnd
    leading_space: bool | None

    @classmethod
    def read(cls, choices: ChoicesLike, leaf_end: LeafEnd, leading_space: bool | None) -> ExplainRequest:
        """Read choices; ArgumentError if they cannot be scored."""
        lookup(leaf_end, LEAF_ENDS, "leaf_end")
        read = read_set(choices)
        if isinstance(read, TokenTrie):
            check_scorable(read.tokenization)
        return cls(read, leaf_end, leading_space)

    def bind(self, reader: Reader, prefix: Prefix) -> BoundExplanation:
        """Bind it to its prompt."""
        tokens, choices = bind(reader, prefix.tokens, self.choices, self.leading_space)
        text = reader.vocab.detokenize(tokens).decode(errors="replace")
        standing = prefix.tokens if prefix.is_standing else None
        return BoundExplanation(self, tokens, choices, text, pieces_of(reader, choices.trie), standing)


@dataclass(frozen=True)
class BoundExplanation(Bound[Explained]):
    """Choices after a prompt."""

    request: ExplainRequest
    tokens: list[int]
    choices: BoundChoices[Any]
    text: str
    pieces: dict[int, bytes]
    standing: list[int] | None
    """Sequence to restore on the stream afterwards; None for a stream of its own."""

    def run(self, stream: Stream) -> Explained:
        """Decide greedily and exactly, and keep the probability of every branch of the set."""
        choices = self.choices
        trie = flat(choices.trie)
        clock = Clock(stream, self.tokens)
        scores = stream.answer(Query("scores", trie, leaf_end=self.request.leaf_end))
        stats = clock.stats(scores)
        shares = stream.answer(Query("scores", trie, branches=True, with_nodes=True))
        exact = by_scores(choices, scores.logprobs, stats)
        clock = Clock(stream, self.tokens)
        steps = stream.answer(Query("greedy", trie))
        greedy = by_steps(choices, steps, clock.stats(steps))
        if self.standing is not None:
            stream.prefill(self.standing)
        assert exact.probabilities is not None
        probabilities = exact.probabilities[choices.firsts()]
        leaf_of = range(len(trie)) if choices.leaf_of is None else choices.leaf_of.tolist()
        leaves = leaf_of[greedy.index], leaf_of[exact.index]
        return Explained(
            prompt=self.text,
            greedy=greedy,
            exact=exact,
            greedy_leaf=leaves[0],
            exact_leaf=leaves[1],
            trie=trie,
            shares=np.exp(shares.nodes),
            probabilities=probabilities,
            masses=add_up(trie, probabilities),
            stepwise=np.exp(shares.logprobs),
            parting=parting_of(trie, *leaves),
            pieces=self.pieces,
            model=_model_of(stream),
        )


def _model_of(stream: Stream) -> str:
    llm = stream.llm
    if llm is None:
        return ""
    with lease(llm):
        return str(llm.metadata.get("general.name", ""))


def pieces_of(reader: Reader, trie: TokenTrie) -> dict[int, bytes]:
    """Return the texts of a set's tokens."""
    return {
        token: reader.vocab.detokenize([token], special=True) for token in np.unique(trie.core.arrays()[0]).tolist()
    }


def parting_of(trie: TokenTrie, first: int, second: int) -> int | None:
    """Return the node after which the paths of two leaves diverge; None for equal leaves."""
    if first == second:
        return None
    return [a for a, b in zip(path_to(trie, first), path_to(trie, second), strict=False) if a == b][-1]


def flat(trie: TokenTrie) -> TokenTrie:
    """Return the set with its nodes numbered level by level, which large sets do not have."""
    if trie.core.is_view:
        raise ArgumentError("choices: a filtered set is not explained; make one of what is left with only")
    return TokenTrie.of_core(trie.core.laid_out(compact=False)) if trie.core.is_compact else trie


def children_of(trie: TokenTrie, node: int) -> range:
    """Return the children of a node, in the order of their tokens."""
    tokens = trie.core.children(node)
    first = trie.core.child(node, int(tokens[0])) if len(tokens) else 0
    assert first is not None
    return range(first, first + len(tokens))


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
    core = trie.core
    # Level by level, the children of a node are adjacent, after the children of the node before it.
    parents = np.repeat(np.arange(trie.n_nodes), [len(core.children(node)) for node in range(trie.n_nodes)])
    sums = np.zeros(trie.n_nodes)
    sums[core.leaf_nodes()] = of_leaves
    for node in range(trie.n_nodes - 1, 0, -1):
        sums[parents[node - 1]] += sums[node]
    return sums


@dataclass(frozen=True, eq=False)
class TextTree:
    """Texts after a prompt, as a tree."""

    prompt: str
    """The text that the model read, including control tokens."""
    scored: Scored
    choices: BoundChoices[str]
    stepwise: Floats
    """For each leaf, the logarithm of the product of the shares on its path, including that of the end."""
    pieces: dict[int, bytes]

    def leaf_of(self, text: int) -> int:
        """Return the leaf of a text, by the position of the text."""
        return text if self.choices.leaf_of is None else int(self.choices.leaf_of[text])

    def explored(self, text: int) -> Explored:
        """Return all branches, with the path to a text and the greedy path."""
        trie, answer = flat(self.choices.trie), self.leaf_of(text)
        shares = shares_of(trie, self.stepwise)
        scores, logprobs = self.scored.logprobs, np.full(len(trie), -np.inf)
        np.logaddexp.at(logprobs, [self.leaf_of(i) for i in range(len(scores))], scores)
        weights = np.exp(logprobs - logprobs.max())
        probabilities = weights / weights.sum()
        greedy = _greedy(trie, shares)
        return Explored(
            trie=trie,
            greedy_leaf=greedy,
            exact_leaf=answer,
            shares=shares,
            probabilities=probabilities,
            masses=add_up(trie, probabilities),
            stepwise=np.exp(self.stepwise),
            parting=parting_of(trie, greedy, answer),
            pieces=self.pieces,
        )


def shares_of(trie: TokenTrie, stepwise: Floats) -> Floats:
    """Return each node's share among the tokens allowed after its parent, from the products of the leaves' shares."""
    sums = np.full(trie.n_nodes, -np.inf)
    sums[trie.core.leaf_nodes()] = stepwise
    shares = np.ones(trie.n_nodes)
    for node in range(trie.n_nodes - 1, -1, -1):
        below = children_of(trie, node)
        if len(below):
            behind = sums[list(below)]
            sums[node] = np.logaddexp.reduce([sums[node], *behind])
            if np.isfinite(sums[node]):
                shares[list(below)] = np.exp(behind - sums[node])
    return shares


def _greedy(trie: TokenTrie, shares: Floats) -> int:
    node = ROOT
    while below := children_of(trie, node):
        best = max(below, key=lambda child: float(shares[child]))
        leaf = trie.core.leaf(node)
        if leaf is not None and 1 - float(shares[list(below)].sum()) > float(shares[best]):
            return leaf
        node = best
    leaf = trie.core.leaf(node)
    assert leaf is not None
    return leaf


@dataclass(frozen=True)
class ExploreRequest(Request[TextTree]):
    """A request for the probability of each of several texts, and of each branch on its path."""

    texts: TextsRequest

    @property
    def think(self) -> Think | None:
        """How to think before the texts; None: not at all."""
        return self.texts.think

    @property
    def draws(self) -> bool:
        """Whether tokens are sampled."""
        return self.texts.draws

    def bind(self, reader: Reader, prefix: Prefix) -> _BoundTree:
        """Bind the texts to their prompt."""
        texts = self.texts.bind(reader, prefix)
        prompt = reader.vocab.detokenize(texts.tokens, special=True).decode(errors="replace")
        return _BoundTree(texts, texts.tokens, prompt, pieces_of(reader, texts.choices.trie))


@dataclass(frozen=True, eq=False)
class _BoundTree(Bound[TextTree]):
    texts: BoundTexts
    tokens: list[int]
    prompt: str
    pieces: dict[int, bytes]

    def plan(self) -> Plan[TextTree]:
        choices = self.texts.choices
        scored = yield from self.texts.plan()
        branches = yield PlanStep(self.tokens, Query("scores", choices.trie, branches=True))
        return TextTree(self.prompt, scored, choices, branches.logprobs, self.pieces)
