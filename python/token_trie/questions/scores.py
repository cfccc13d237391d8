"""Scores of texts after a prompt: what a model gives the options of a question."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from token_trie.arrays import Floats, States
from token_trie.decisions.bound_choices import BoundChoices, Prior, bind, check_finite
from token_trie.llama.query import Answer, Ask, LeafEnd, Query
from token_trie.plan import Model
from token_trie.sets.choices import Choices

LEAF_END: Final[LeafEnd] = "longest"
"""The rule of `choose`: texts that nest exclude each other, so that their probabilities can be added and compared."""


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of the texts of a reading."""

    logprobs: Floats
    """Log-probability of each text, without those of longer texts.

    Texts with equal tokens share it evenly.
    """
    lengths: Floats
    """Number of tokens of each text."""
    mass: float = math.nan
    """Total probability of all texts."""
    n_prompt: int = 0
    n_evaluated: int = 0
    n_cached: int = 0
    """Tokens of the prompt from the prefix cache of a batch."""
    state: States | None = None
    """The hidden state after the prompt, if requested."""


@dataclass(frozen=True, eq=False)
class Reading:
    """Several texts after a prompt, which the model scores."""

    tokens: list[int]
    choices: BoundChoices[str]
    with_state: bool = False
    """Whether the hidden state after the prompt is needed."""

    @classmethod
    def of(cls, model: Model, tokens: list[int], texts: tuple[str, ...], *, with_state: bool = False) -> Reading:
        """Bind texts to the tokens of a prompt; errors as of `bind`."""
        return cls(*bind(model, tokens, Choices(texts, texts)), with_state)

    @property
    def step(self) -> Ask:
        """The step for the scores."""
        return Ask(self.tokens, Query("scores", self.choices.trie, leaf_end=LEAF_END, with_state=self.with_state))

    @property
    def prior_step(self) -> Ask:
        """The step for the scores as a prior."""
        return Prior(self.tokens, self.choices, LEAF_END).step

    def scored(self, answer: Answer) -> Scored:
        """Return the scores by the answer; ContextError if none is finite."""
        of_leaves, leaf_of = answer.logprobs, self.choices.leaf_of
        check_finite(of_leaves)
        mass = math.fsum(np.exp(of_leaves))
        lengths = np.diff(self.choices.trie.core.arrays()[1]).astype(np.float64)
        if leaf_of is not None:
            of_leaves, lengths = (of_leaves - np.log(np.maximum(np.bincount(leaf_of), 1)))[leaf_of], lengths[leaf_of]
        state, figures = answer.state if len(answer.state) else None, answer.figures
        return Scored(of_leaves, lengths, mass, len(self.tokens), figures.n_evaluated, figures.n_shared, state)
