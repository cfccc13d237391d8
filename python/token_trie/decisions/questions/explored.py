"""How the texts that a question may be answered with come about, branch by branch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from token_trie.decisions.bound import BoundChoices, Reader
from token_trie.decisions.explain import ROOT, Explored, add_up, children_of, flat, parting_of, pieces_of
from token_trie.decisions.questions.scores import BoundTexts, Floats, Scored, TextsRequest
from token_trie.decisions.request import Batched, Bound, Prefix, Request
from token_trie.decisions.think import Think
from token_trie.llama.batch import Batch
from token_trie.llama.query import Answer, Query
from token_trie.llama.stream import Stream
from token_trie.sets.trie import TokenTrie


@dataclass(frozen=True, eq=False)
class TextTree:
    """Texts behind a prompt, as a tree."""

    prompt: str
    """What the model read, control tokens too."""
    scored: Scored
    choices: BoundChoices[str]
    stepwise: Floats
    """Of each leaf: natural logarithm of the product of its shares, the end's among them."""
    pieces: dict[int, bytes]

    def leaf_of(self, text: int) -> int:
        """Return the leaf of a text, by its place."""
        return text if self.choices.leaf_of is None else int(self.choices.leaf_of[text])

    def explored(self, text: int) -> Explored:
        """Return all branches, with the way to a text and where the best token at each step leads."""
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
    """Return the share of each node among what is allowed behind its parent, of the products of the leaves' shares."""
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
    """How probable each of several texts is, and each branch on the way to it."""

    texts: TextsRequest

    @property
    def think(self) -> Think | None:
        """What the model does first."""
        return self.texts.think

    @property
    def draws(self) -> bool:
        """Whether something is."""
        return self.texts.draws

    def bind(self, reader: Reader, prefix: Prefix) -> _BoundTree:
        """Bind the texts to what they stand behind."""
        texts = self.texts.bind(reader, prefix)
        prompt = reader.vocab.detokenize(texts.tokens, special=True).decode(errors="replace")
        return _BoundTree(texts, texts.tokens, prompt, pieces_of(reader, texts.choices.trie))


@dataclass(frozen=True, eq=False)
class _BoundTree(Bound[TextTree], Batched[TextTree]):
    texts: BoundTexts
    tokens: list[int]
    prompt: str
    pieces: dict[int, bytes]

    def run(self, stream: Stream) -> TextTree:
        scored = self.texts.run(stream)
        return self.tree(scored, stream.answer(self.stepwise).logprobs)

    def batched(self) -> _BoundTree:
        return self

    def submit(self, batch: Batch) -> int:
        return self.texts.submit(batch)

    def read(self, answer: Answer) -> _BoundSteps:
        return _BoundSteps(self, self.texts.read(answer))

    @property
    def stepwise(self) -> Query:
        """The second query after the prompt: for the branches."""
        return Query("scores", self.texts.choices.trie, branches=True)

    def tree(self, scored: Scored, stepwise: Floats) -> TextTree:
        return TextTree(self.prompt, scored, self.texts.choices, stepwise, self.pieces)


@dataclass(frozen=True, eq=False)
class _BoundSteps(Batched[TextTree]):
    """The second reading behind the same prompt: of the branches."""

    first: _BoundTree
    scored: Scored

    def submit(self, batch: Batch) -> int:
        return batch.submit(self.first.tokens, self.first.stepwise)

    def read(self, answer: Answer) -> TextTree:
        return self.first.tree(self.scored, answer.logprobs)
