"""Scores of texts after prompts: the part of questions that needs streams and batches."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, TypeAlias

import numpy as np

from token_trie.arrays import Floats, States
from token_trie.decisions.bound_choices import BoundChoices, Reader, bind, check_finite, reader_of
from token_trie.decisions.many import Admission
from token_trie.decisions.run import Plan, PlanStep, Prefix, Request, drive, read_on
from token_trie.errors import TokenTrieError
from token_trie.llama.batch import Batch, Sequential
from token_trie.llama.query import LeafEnd, Query
from token_trie.llama.reproducible import reproducible
from token_trie.llama.stream import Stream
from token_trie.native.core import Llama
from token_trie.sets.choices import Choices
from token_trie.sets.prompt import Prompt

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
    mass: float
    """Total probability of all texts."""
    n_prompt: int
    n_evaluated: int
    state: States | None = None
    """The hidden state after the prompt, if requested."""


@dataclass(frozen=True, eq=False)
class Reading(Request[Scored]):
    """A request for the probability of each of several texts after a prompt."""

    prompt: Prompt
    texts: tuple[str, ...]
    with_state: bool = False
    """Whether the hidden state after the prompt is needed."""

    def tokenized(self, llm: Llama) -> Reading:
        """Return it with the tokens of the prompt instead of its text."""
        return replace(self, prompt=reader_of(llm).tokenize(self.prompt))

    @cached_property
    def digest(self) -> str:
        """Digest of a tokenized reading: the prompt's tokens, and the texts that are scored after them."""
        evaluated = json.dumps([list(self.prompt), self.texts])
        return hashlib.sha256(evaluated.encode()).hexdigest()

    def bound(self, reader: Reader, tokens: list[int]) -> tuple[list[int], BoundChoices[str]]:
        """Return the prompt's tokens before the texts, and the texts."""
        return bind(reader, tokens, Choices(self.texts, self.texts))

    def steps(self, reader: Reader, prefix: Prefix, *, is_beside: bool = False) -> Plan[Scored]:
        """Score the texts; `is_beside` is that of `PlanStep`."""
        tokens, choices = self.bound(reader, prefix.tokens)
        query = Query("scores", choices.trie, leaf_end=LEAF_END, with_state=self.with_state)
        answer = yield PlanStep(tokens, query, is_beside)
        of_leaves = answer.logprobs
        check_finite(of_leaves)
        lengths = np.diff(choices.trie.core.arrays()[1]).astype(np.float64)
        mass, leaf_of = math.fsum(np.exp(of_leaves)), choices.leaf_of
        if leaf_of is not None:
            of_leaves, lengths = (of_leaves - np.log(np.maximum(np.bincount(leaf_of), 1)))[leaf_of], lengths[leaf_of]
        state = answer.state if len(answer.state) else None
        return Scored(of_leaves, lengths, mass, len(tokens), int(answer.figures.n_evaluated), state)

    def alone(self, llm: Llama) -> Scored:
        """Score each text by itself, so that its score does not depend on the other texts, bit by bit.

        Errors are those of `score`.
        """
        reader = reader_of(llm)
        prefix = Prefix(reader.tokenize(self.prompt))
        context = reproducible(llm)
        sequences, scores = list[_Sequence](), list[Floats]()
        for text in self.texts:
            # By itself, because other texts may change the prompt's last tokens.
            tokens, choices = Reading("", (text,)).bound(reader, prefix.tokens)
            sequences.append((len(tokens), tuple(choices.trie[0].tokens)))
            scores += context.score(tokens, [sequences[-1][1]])
        logprobs = np.array([of_tokens.sum() for of_tokens in scores]) + _ends(sequences, scores)
        check_finite(logprobs)
        mass = math.fsum(np.exp(list(dict(zip(sequences, logprobs, strict=True)).values())))
        n_evaluated = sum(len(own) - 1 for _, own in sequences)
        lengths = np.array([len(own) for _, own in sequences], np.float64)
        shared = np.log([sequences.count(one) for one in sequences])
        return Scored(logprobs - shared, lengths, mass, len(prefix.tokens), n_evaluated)


def score_in(stream: Stream, reading: Reading, *, is_beside: bool) -> Scored:
    """Score texts after a prompt that becomes the stream's sequence; with is_beside, the sequence does not change."""
    prefix = Prefix(stream.tokenize(reading.prompt))
    return drive(read_on(stream, partial(reading.steps, prefix=prefix, is_beside=is_beside)), stream)


_Sequence: TypeAlias = tuple[int, tuple[int, ...]]
"""Number of prompt tokens before the text, and the text's tokens, which may include the end of the prompt."""


def _ends(sequences: list[_Sequence], scores: list[Floats]) -> Floats:
    """Return for each sequence the log-probability that none of the longer sequences continues it."""
    longer: dict[_Sequence, dict[int, float]] = {one: {} for one in sequences}
    for (n_prompt, own), of_tokens in zip(sequences, scores, strict=True):
        for n in range(1, len(own)):
            if (n_prompt, own[:n]) in longer:
                longer[n_prompt, own[:n]][own[n]] = float(of_tokens[n])
    going_on = [math.fsum(map(math.exp, longer[one].values())) for one in sequences]
    with np.errstate(divide="ignore"):
        return np.log1p(-np.minimum(going_on, 1.0))


def score_all(
    llm: Llama, batch: Batch | Sequential, readings: Iterable[Callable[[], Reading]]
) -> Iterator[Scored | TokenTrieError]:
    """Score texts after many prompts in a batch; yield the scores or the error of each, in order."""
    for _, result in Admission(llm, batch, (partial(prompted, make) for make in readings)).results(in_order=True):
        yield result


def prompted(make: Callable[[], Reading]) -> tuple[Prompt, Reading]:
    """Make a reading; return its prompt and itself."""
    reading = make()
    return reading.prompt, reading
