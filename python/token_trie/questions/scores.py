"""Scores of texts after prompts: what questions need of streams and batches."""

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
from token_trie.decisions.calibration import BatchPrior
from token_trie.decisions.run import Admission, Bound, Plan, Prefix, Request, Step, Thought, read_on, run
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
"""The rule of `choose`: texts that nest exclude each other, so that their probabilities may be added and compared."""


class Reading(NamedTuple):
    """What a model is asked: how probable each of several texts is behind a prompt."""

    prompt: Prompt
    texts: tuple[str, ...]
    think: Think | None = None
    """What the model does first."""
    labels: tuple[int, ...] = ()
    """Tokens in place of texts, each once."""
    with_state: bool = False
    """Whether the hidden state behind the prompt is wanted,"""
    with_scores: bool = True
    """and whether the probabilities are."""

    def tokenized(self, llm: Llama) -> Reading:
        """Return it with the tokens of the prompt in the prompt's place."""
        with lease(llm):
            return self._replace(prompt=reader_of(llm).tokenize(self.prompt))

    @property
    def digest(self) -> str:
        """Digest of what a tokenized one evaluates: the prompt's tokens, and what is scored after them."""
        evaluated = json.dumps([list(self.prompt), self.texts, self.labels])
        return hashlib.sha256(evaluated.encode()).hexdigest()

    @property
    def request(self) -> ScoredRequest:
        """What stands behind the prompt."""
        if not self.with_scores:
            return StateRequest(self.think)
        return TextsRequest(self.texts, self.think, self.labels, self.with_state)


@dataclass(frozen=True, eq=False)
class Scored:
    """What it says."""

    logprobs: Floats
    """Natural logarithm of the probability of each text, and of no longer one; empty where none was wanted.

    Texts of the same tokens share it evenly.
    """
    lengths: Floats
    """Its tokens."""
    mass: float
    """The probability of all texts together."""
    n_prompt: int
    n_evaluated: int
    thought: str | None = None
    """What the model wrote first."""
    state: States | None = None
    """The hidden state behind the prompt, where it was wanted."""


def score_texts(llm: Llama, reading: Reading) -> Scored:
    """Score texts; what the prompt shares with the one before is not evaluated again.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError, BusyError, CancelledError
        As of `score`.
    """
    return run(llm, reading.prompt, reading.request)


def score_in(stream: Stream, reading: Reading, *, is_beside: bool) -> Scored:
    """Score texts behind tokens that become a stream's sequence, or beside it, which stays; errors as above."""
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
    """Score texts, each by itself, so that its tokens' scores are the same bit by bit among any others.

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
            bound = part.bind(reader, prefix)  # by itself, too: another might move the seam
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
"""Tokens of the prompt, of which a merge with a text takes some, and those of the text."""


def _ends(sequences: list[_Sequence], scores: list[Floats]) -> Floats:
    """Return the natural logarithm of the probability that none of the longer sequences goes on from each."""
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
    """Score texts behind many prompts in a batch; yield what each gives, or its error, in their order."""
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
    """Return the line that the model writes behind a prompt, or its beginning, a line break for a blank one."""
    return run(llm, prompt, _LineRequest())


def write_in(stream: Stream, reading: Reading) -> str:
    """Do the same behind tokens that become a stream's sequence."""
    return _BoundLine(stream.tokenize(reading.prompt)).run(stream)


def remembered(
    known: dict[object, Any], reading: Reading, make: Callable[[], Scored], *, is_reproducible: bool
) -> Scored:
    """Return the scores of a tokenized reading, as a model gave them before, if others have not taken their place."""
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
    """What is read behind a prompt."""

    think_first: Think | None

    @property
    def think(self) -> Think | None:
        """What the model does first."""
        return self.think_first

    @property
    def draws(self) -> bool:
        """Whether something is."""
        return self.think_first is not None

    @abstractmethod
    def bind(self, reader: Reader, prefix: Prefix) -> BoundScored:
        """Bind it to what it stands behind."""


class BoundScored(Bound[Scored]):
    """The same, bound."""

    @abstractmethod
    def plan(self) -> Plan[Scored]:
        """Return its one step."""


@dataclass(frozen=True)
class StateRequest(ScoredRequest):
    """The hidden state alone."""

    think_first: Think | None = None

    def bind(self, reader: Reader, prefix: Prefix) -> _BoundState:
        """Bind it to what it stands behind."""
        return _BoundState(prefix.tokens, prefix.thought_text)


@dataclass(frozen=True, eq=False)
class _BoundState(BoundScored):
    tokens: list[int]
    thought: str | None

    def plan(self) -> Plan[Scored]:
        answer, none = (yield Step(self.tokens, Query("state"))), np.zeros(0)
        return Scored(none, none, math.nan, len(self.tokens), 0, self.thought, answer.state)


@dataclass(frozen=True)
class TextsRequest(ScoredRequest):
    """How probable each of several texts is."""

    texts: tuple[str, ...]
    think_first: Think | None = None
    labels: tuple[int, ...] = ()
    """Tokens in place of texts."""
    with_state: bool = False

    def bind(self, reader: Reader, prefix: Prefix) -> BoundTexts:
        """Bind the texts to what they stand behind."""
        choices = _set_of(self.labels) if self.labels else Choices(self.texts, self.texts)
        return BoundTexts(*bind(reader, prefix.tokens, choices), prefix.thought_text, self.with_state)


def _set_of(labels: tuple[int, ...]) -> TokenTrie:
    return TokenTrie.from_sequences({str(i): [token] for i, token in enumerate(labels)})


@dataclass(frozen=True, eq=False)
class BoundTexts(BoundScored):
    """Texts behind a prompt."""

    tokens: list[int]
    choices: BoundChoices[str]
    thought: str | None
    with_state: bool = False

    def plan(self) -> Plan[Scored]:
        """Score them."""
        return self.read((yield Step(self.tokens, self.query)))

    def run_beside(self, stream: Stream) -> Scored:
        """Score them; the stream's sequence stays."""
        return self.read(stream.answer(replace(self.query, with_state=False), self.tokens))

    @property
    def query(self) -> Query:
        """What the model is asked."""
        return Query("scores", self.choices.trie, leaf_end=LEAF_END, with_state=self.with_state)

    def read(self, answer: Answer) -> Scored:
        """Return what an answer says."""
        state = answer.state if len(answer.state) else None
        return self._scored(answer.logprobs, int(answer.figures.n_evaluated), state)

    def _scored(self, of_leaves: Floats, n_evaluated: int, state: States | None) -> Scored:
        check_finite(of_leaves)
        lengths = np.diff(self.choices.trie.core.arrays()[1]).astype(np.float64)
        mass, aligned, leaf_of = math.fsum(np.exp(of_leaves)), self.choices.aligned, self.choices.leaf_of
        shared = of_leaves if leaf_of is None else of_leaves - np.log(np.maximum(np.bincount(leaf_of), 1))
        return Scored(aligned(shared), aligned(lengths), mass, len(self.tokens), n_evaluated, self.thought, state)


class View(ABC):
    """One of the readings, whatever the state."""

    @abstractmethod
    def reading(self, llm: Llama, state: str | None) -> Reading:
        """Return what is to be read about a state, or None for the absent one."""


class Asked(ABC):
    """A question."""

    @property
    def takes_prior(self) -> bool:
        """Whether what it gives without a state counts."""
        return True

    def wanting(self, reading: Reading) -> Reading:
        """Return a reading of one of its views with what the answer takes."""
        return reading

    @property
    @abstractmethod
    def views(self) -> Sequence[View]:
        """Its readings."""

    def over_rows(self, prior: BatchPrior) -> Asked:
        """Return it as it is answered where the prior of each view is the mean over many states."""
        return self

    @abstractmethod
    def answer(self, scored: Sequence[Scored], priors: Sequence[Scored | None]) -> Answered[Any]:
        """Return the answer that readings make, of as many views as there are readings."""

    def is_sure(self, scored: Sequence[Scored], priors: Sequence[Scored | None]) -> bool:
        """Tell whether further readings are not needed."""
        return False
