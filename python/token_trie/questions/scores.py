"""Scores of texts after prompts: the part of questions that needs streams and batches."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np

from token_trie.arrays import Floats, States
from token_trie.decisions.bound_choices import BoundChoices, Reader, bind, check_finite, reader_of
from token_trie.decisions.calibration import Calibrator, Mean
from token_trie.decisions.run import Admission, Bound, Plan, PlanStep, Prefix, Request, Thought, read_on, run
from token_trie.decisions.think import Think, think_first
from token_trie.errors import TokenTrieError
from token_trie.llama.batch import Batch, Sequential
from token_trie.llama.query import Answer, LeafEnd, Query
from token_trie.llama.reproducible import reproducible
from token_trie.llama.stream import Stream
from token_trie.llama.text import TextOptions, write_text
from token_trie.native.core import Llama
from token_trie.native.lifetime import lease
from token_trie.questions.answer import Answered
from token_trie.sets.choices import Choices
from token_trie.sets.lru import Memory
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie

LEAF_END: Final[LeafEnd] = "longest"
"""The rule of `choose`: texts that nest exclude each other, so that their probabilities can be added and compared."""


class Reading(NamedTuple):
    """A query for the model: the probability of each of several texts after a prompt."""

    prompt: Prompt
    texts: tuple[str, ...]
    think: Think | None = None
    """How to think before the texts; None: not at all."""
    labels: tuple[int, ...] = ()
    """Single tokens to score instead of texts."""
    with_state: bool = False
    """Whether the hidden state after the prompt is needed."""
    with_scores: bool = True
    """Whether the probabilities are needed."""

    def tokenized(self, llm: Llama) -> Reading:
        """Return it with the tokens of the prompt instead of its text."""
        with lease(llm):
            return self._replace(prompt=reader_of(llm).tokenize(self.prompt))

    @property
    def digest(self) -> str:
        """Digest of a tokenized reading: the prompt's tokens, and the texts or tokens that are scored after them."""
        evaluated = json.dumps([list(self.prompt), self.texts, self.labels])
        return hashlib.sha256(evaluated.encode()).hexdigest()

    @property
    def request(self) -> ScoredRequest:
        """The request after the prompt."""
        if not self.with_scores:
            return StateRequest(self.think)
        return TextsRequest(self.texts, self.think, self.labels, self.with_state)


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of the texts of a reading."""

    logprobs: Floats
    """Log-probability of each text, without those of longer texts; empty if none was requested.

    Texts with equal tokens share it evenly.
    """
    lengths: Floats
    """Number of tokens of each text."""
    mass: float
    """Total probability of all texts."""
    n_prompt: int
    n_evaluated: int
    thought: str | None = None
    """The thought before the texts."""
    state: States | None = None
    """The hidden state after the prompt, if requested."""


def mean_of(scored: Sequence[Scored]) -> Scored | None:
    """Return the mean of the scores of the same texts after several prompts; None without prompts."""
    if len(scored) < 2:
        return scored[0] if scored else None
    return replace(scored[0], logprobs=np.mean([one.logprobs for one in scored], axis=0))


def with_scored(mean: Mean, scored: Scored | TokenTrieError) -> Mean:
    """Return the mean with the scores of one more state; errors and scores that are not finite are left out."""
    if isinstance(scored, TokenTrieError) or not np.isfinite(scored.logprobs).all():
        return mean
    return mean.with_rows(scored.logprobs[None])


def priors_of_means(means: Sequence[Mean]) -> list[Scored | None]:
    """Return the means of a question's views as priors; all None if one of them has too few states."""
    values = [mean.prior for mean in means]
    if any(value is None for value in values):
        return [None] * len(values)
    return [Scored(value, np.ones_like(value), math.nan, 0, 0) for value in values if value is not None]


def score_texts(llm: Llama, reading: Reading) -> Scored:
    """Score texts; a beginning that the prompt shares with the previous prompt is not evaluated again.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError, BusyError, CancelledError
        As for `score`.
    """
    return run(llm, reading.prompt, reading.request)


def score_in(stream: Stream, reading: Reading, *, is_beside: bool) -> Scored:
    """Score texts after a prompt that becomes the stream's sequence; with is_beside, the sequence does not change."""
    tokens, thought = stream.tokenize(reading.prompt), None
    if reading.think is not None:
        stream.prefill(tokens)
        thought = think_first(stream, reading.think)
        tokens = stream.tokens
    prefix = Prefix(tokens, thought=None if thought is None else Thought(thought, 0.0))
    request = reading._replace(think=None).request
    bound = read_on(stream, lambda reader: request.bind(reader, prefix))
    return bound.run_beside(stream) if is_beside and isinstance(bound, BoundTexts) else bound.run(stream)


def score_alone(llm: Llama, reading: Reading) -> Scored:
    """Score each text by itself, so that its score does not depend on the other texts, bit by bit.

    Errors are those of `score_texts`.
    """
    with lease(llm):
        reader = reader_of(llm)
        prefix = Prefix(reader.tokenize(reading.prompt))
        parts = [TextsRequest((text,)) for text in reading.texts] or [
            TextsRequest((), None, (t,)) for t in reading.labels
        ]
    context = reproducible(llm)
    sequences, scores = list[_Sequence](), list[Floats]()
    for part in parts:
        with lease(llm):
            bound = part.bind(reader, prefix)  # by itself: other texts may change the prompt's last tokens
        sequences.append((len(bound.tokens), tuple(bound.choices.trie[0].tokens)))
        scores += context.score(bound.tokens, [sequences[-1][1]])
    logprobs = np.array([of_tokens.sum() for of_tokens in scores]) + _ends(sequences, scores)
    check_finite(logprobs)
    mass = math.fsum(np.exp(list(dict(zip(sequences, logprobs, strict=True)).values())))
    n_evaluated = sum(len(own) - 1 for _, own in sequences)
    lengths = np.array([len(own) for _, own in sequences], np.float64)
    shared = np.log([sequences.count(one) for one in sequences])
    return Scored(logprobs - shared, lengths, mass, len(prefix.tokens), n_evaluated)


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
    for _, result in Admission(llm, batch, map(_asked, readings)).results(in_order=True):
        yield result


def _asked(make: Callable[[], Reading]) -> tuple[Prompt, Callable[[], ScoredRequest]]:
    try:
        reading = make()
    except TokenTrieError as error:
        return "", partial(_raise, error)
    return reading.prompt, lambda: reading.request


def _raise(error: TokenTrieError) -> NoReturn:
    raise error


def written(llm: Llama, prompt: Prompt) -> str:
    """Return the line that the model writes after a prompt, or its beginning; a line break for a blank line."""
    return run(llm, prompt, _LineRequest())


def write_in(stream: Stream, reading: Reading) -> str:
    """Return such a line after a prompt that becomes the stream's sequence."""
    return _BoundLine(stream.tokenize(reading.prompt)).run(stream)


def remembered(
    known: dict[object, Any], reading: Reading, make: Callable[[], Scored], *, is_reproducible: bool
) -> Scored:
    """Return the scores of a tokenized reading, remembered if possible; the least recently used are forgotten."""
    memory: Memory[Scored] = known.setdefault("question priors", Memory(_KEPT, _WEIGHT))
    return memory.get((reading.digest, is_reproducible), 1, make)


_KEPT = _WEIGHT = 1024
_N_WRITTEN = 16


class _LineRequest(Request[str]):
    def bind(self, reader: Reader, prefix: Prefix) -> _BoundLine:
        return _BoundLine(prefix.tokens)


@dataclass(frozen=True, eq=False)
class _BoundLine(Bound[str]):
    tokens: list[int]

    def run(self, stream: Stream) -> str:
        stream.prefill(self.tokens)
        written = write_text(stream, _N_WRITTEN, TextOptions(stop="\n"))
        return "\n" if not written.text and written.stop == "stop" else written.text


class ScoredRequest(Request[Scored]):
    """A request for the scores of a reading."""

    think_first: Think | None

    @property
    def think(self) -> Think | None:
        """How to think before the texts; None: not at all."""
        return self.think_first

    @property
    def draws(self) -> bool:
        """Whether tokens are sampled."""
        return self.think_first is not None

    @abstractmethod
    def bind(self, reader: Reader, prefix: Prefix) -> BoundScored:
        """Bind it to its prompt."""


class BoundScored(Bound[Scored]):
    """A bound `ScoredRequest`."""

    @abstractmethod
    def plan(self) -> Plan[Scored]:
        """Return its single step."""


@dataclass(frozen=True)
class StateRequest(ScoredRequest):
    """A request for the hidden state alone."""

    think_first: Think | None = None

    def bind(self, reader: Reader, prefix: Prefix) -> _BoundState:
        """Bind it to its prompt."""
        return _BoundState(prefix.tokens, prefix.thought_text)


@dataclass(frozen=True, eq=False)
class _BoundState(BoundScored):
    tokens: list[int]
    thought: str | None

    def plan(self) -> Plan[Scored]:
        answer, none = (yield PlanStep(self.tokens, Query("state"))), np.zeros(0)
        return Scored(none, none, math.nan, len(self.tokens), 0, self.thought, answer.state)


@dataclass(frozen=True)
class TextsRequest(ScoredRequest):
    """A request for the probability of each of several texts."""

    texts: tuple[str, ...]
    think_first: Think | None = None
    labels: tuple[int, ...] = ()
    """Single tokens to score instead of texts."""
    with_state: bool = False

    def bind(self, reader: Reader, prefix: Prefix) -> BoundTexts:
        """Bind the texts to their prompt."""
        choices = _set_of(self.labels) if self.labels else Choices(self.texts, self.texts)
        return BoundTexts(*bind(reader, prefix.tokens, choices), prefix.thought_text, self.with_state)


def _set_of(labels: tuple[int, ...]) -> TokenTrie:
    return TokenTrie.from_sequences({str(i): [token] for i, token in enumerate(labels)})


@dataclass(frozen=True, eq=False)
class BoundTexts(BoundScored):
    """Texts after a prompt."""

    tokens: list[int]
    choices: BoundChoices[str]
    thought: str | None
    with_state: bool = False

    def plan(self) -> Plan[Scored]:
        """Score the texts."""
        return self.read((yield PlanStep(self.tokens, self.query)))

    def run_beside(self, stream: Stream) -> Scored:
        """Score the texts without changing the stream's sequence."""
        return self.read(stream.answer(replace(self.query, with_state=False), self.tokens))

    @property
    def query(self) -> Query:
        """Query for the model."""
        return Query("scores", self.choices.trie, leaf_end=LEAF_END, with_state=self.with_state)

    def read(self, answer: Answer) -> Scored:
        """Return the scores in an answer."""
        state = answer.state if len(answer.state) else None
        return self._scored(answer.logprobs, int(answer.figures.n_evaluated), state)

    def _scored(self, of_leaves: Floats, n_evaluated: int, state: States | None) -> Scored:
        check_finite(of_leaves)
        lengths = np.diff(self.choices.trie.core.arrays()[1]).astype(np.float64)
        mass, aligned, leaf_of = math.fsum(np.exp(of_leaves)), self.choices.aligned, self.choices.leaf_of
        shared = of_leaves if leaf_of is None else of_leaves - np.log(np.maximum(np.bincount(leaf_of), 1))
        return Scored(aligned(shared), aligned(lengths), mass, len(self.tokens), n_evaluated, self.thought, state)


class QuestionView(ABC):
    """One of a question's readings, for any state."""

    @abstractmethod
    def reading(self, llm: Llama, state: str | None) -> Reading:
        """Return the reading for a state; None: the absent state."""


class Asked(ABC):
    """A question in the form in which the model reads it."""

    def absent(self, view: QuestionView) -> Sequence[str | None]:
        """Return states without content, whose mean scores are subtracted from a view's; None is the form's own."""
        return ()

    def wanting(self, reading: Reading) -> Reading:
        """Return a reading of one of its views, extended by all that the answer needs."""
        return reading

    @property
    @abstractmethod
    def views(self) -> Sequence[QuestionView]:
        """The views to read."""

    def over_rows(self, calibrator: Calibrator) -> Asked:
        """Return the question with a calibrator that takes the mean over many states as the prior of each view."""
        return self

    @abstractmethod
    def answer(self, scored: Sequence[Scored], priors: Sequence[Scored | None]) -> Answered[Any]:
        """Return the answer from the readings of the first views."""

    def is_sure(self, scored: Sequence[Scored], priors: Sequence[Scored | None]) -> bool:
        """Return whether no further readings are needed."""
        return False
