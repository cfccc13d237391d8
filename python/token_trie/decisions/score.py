"""`score`: the probability of every answer, in a few batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from token_trie.arrays import Floats, States
from token_trie.decisions.bound_choices import (
    BoundCalibration,
    BoundChoices,
    Reader,
    bind,
    bind_calibration,
    check_scorable,
    check_size,
    read_set,
)
from token_trie.decisions.calibration import calibrator_of
from token_trie.decisions.options import ChooseOptions, ScoreOptions
from token_trie.decisions.run import Bound, Plan, PlanStep, Prefix, Request, calibrated, read_on, run
from token_trie.errors import ArgumentError
from token_trie.llama.query import Answer, Query
from token_trie.llama.stream import Stream
from token_trie.native.core import Llama
from token_trie.native.options import takes
from token_trie.sets.choices import Choices, ChoicesLike
from token_trie.sets.prompt import Prompt, first_token
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import ScoreKeywords


@takes(ScoreOptions)
def score(llm: Llama, prompt: Prompt, choices: ChoicesLike, **options: Unpack[ScoreKeywords]) -> Floats:
    """Score every choice as the answer to a prompt.

    All choices are evaluated as one tree after the prompt, in as few batches as fit into the context. A beginning that
    several choices share is evaluated once.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    prompt : str, sequence of int, or sequence of chat messages
        What the choices follow. The beginning that it shares with the previous prompt is not evaluated again.
    choices : TokenTrie, or choices as for `choose`
        The choices. Texts are tokenized as they follow this prompt.
    **options
        Those of `ScoreOptions`.

    Returns
    -------
    ndarray of float64, shape (n_choices,)
        Natural logarithms of the probabilities, in the order of the choices; for a `TokenTrie`, of its leaves. Texts
        with equal tokens have the same score.

    Raises
    ------
    ArgumentError, VocabularyError, ContextError, BusyError
        As in `choose`.
    """
    return run(llm, prompt, ScoreRequest.read(choices, ScoreOptions.read("score", options)))


def score_beside(stream: Stream, choices: ChoicesLike, prompt: Prompt | None, options: ScoreOptions) -> Floats:
    """Score choices after a stream's sequence, or after a separate prompt; the stream does not change."""
    request = ScoreRequest.read(choices, options)
    with stream.own():
        tokens = stream.tokens if prompt is None else stream.tokenize(prompt)
        return read_on(stream, lambda reader: request.bind(reader, Prefix(tokens))).run_beside(stream)


@dataclass(frozen=True)
class ScoreRequest(Request[Floats]):
    """A request for the scores of all choices."""

    choices: TokenTrie | Choices[Any]
    options: ScoreOptions
    prior: Floats | None = None
    """The scores after the calibration's prompts, if known."""

    @classmethod
    def read(cls, choices: ChoicesLike, options: ScoreOptions) -> ScoreRequest:
        """Read choices; ArgumentError if they cannot be scored."""
        read = read_set(choices)
        if isinstance(read, TokenTrie):
            check_scorable(read.tokenization)
        return cls(read, options)

    @property
    def n_choices(self) -> int:
        """Number of scores, including those of choices that are filtered out."""
        return self.choices.core.n_leaves if isinstance(self.choices, TokenTrie) else len(self.choices)

    def evaluated(self, llm: Llama) -> ScoreRequest:
        """Return the request with the scores after its calibration's prompts, if any, evaluated on a Llama."""
        return replace(self, prior=prior_scores(llm, self.choices, self.options))

    def bind(self, reader: Reader, prefix: Prefix) -> BoundScores:
        """Bind it to its prompt."""
        options = self.options
        tokens, choices = bind(reader, prefix.tokens, self.choices, options.leading_space)
        check_size(choices.trie, options.max_scored)
        given, spelled = self.choices, options.leading_space
        calibration = bind_calibration(
            reader, options.calibration, given, choices, options.leaf_end, spelled, prior=self.prior
        )
        beginning = [first_token(reader.vocab)] if options.normalize == "prior" else []
        return BoundScores(options, tokens, choices, calibration, beginning)


def prior_scores(llm: Llama, choices: TokenTrie | Choices[Any], options: ChooseOptions | ScoreOptions) -> Floats | None:
    """Return the mean scores of choices after the prompts of a calibration; None if it has none."""
    calibrator = calibrator_of(options.calibration)
    if calibrator is None or calibrator.binding is not None or not calibrator.prompts:
        return None
    own = {name: getattr(options, name) for name in ("leaf_end", "leading_space", "max_scored")}
    request = ScoreRequest(choices, ScoreOptions(**own))
    scores: Floats = np.mean([run(llm, prompt, request) for prompt in calibrator.prompts], axis=0)  # type: ignore[arg-type]
    return scores


@dataclass(frozen=True)
class BoundScores(Bound[Floats]):
    """Choices after a prompt."""

    options: ScoreOptions
    tokens: list[int]
    choices: BoundChoices[Any]
    calibration: BoundCalibration | None
    beginning: list[int]
    """Tokens at the beginning of a text without a prompt, after which the prior is scored; empty if none is needed."""

    def run_beside(self, stream: Stream) -> Floats:
        """Score without changing the stream's sequence or trie."""
        if self._takes_state:
            raise ArgumentError("calibration: a head takes the hidden state of a prompt, which goes with a Llama")
        answer = stream.answer(self.query, None if stream.tokens == self.tokens else self.tokens)
        prior = stream.answer(self.query, self.beginning).logprobs if self.beginning else None
        return self._read(answer, self.calibration, prior)

    def plan(self) -> Plan[Floats]:
        """Score the choices, and for a prior also without a prompt."""
        calibration = yield from calibrated(self.calibration)
        answer = yield PlanStep(self.tokens, self.query)
        prior = None
        if self.beginning:
            prior = (yield PlanStep(self.beginning, self.query, is_beside=True)).logprobs
        return self._read(answer, calibration, prior)

    @property
    def query(self) -> Query:
        """Query for the model."""
        leaf_end, branches = self.options.leaf_end, self.options.branches
        return Query("scores", self.choices.trie, leaf_end=leaf_end, branches=branches, with_state=self._takes_state)

    @property
    def _takes_state(self) -> bool:
        return self.calibration is not None and self.calibration.needs_state

    def _read(self, answer: Answer, calibration: BoundCalibration | None, prior: Floats | None = None) -> Floats:
        scores = answer.logprobs
        if prior is not None:
            scores = scores - self.choices.of_left(prior, 0.0)
        return self._of_choices(scores, calibration, answer.state if self._takes_state else None)

    def _of_choices(self, scores: Floats, calibration: BoundCalibration | None, state: States | None) -> Floats:
        if calibration is not None:
            scores = self.choices.of_left(calibration.log_weights(scores, state), -np.inf)
        if self.options.normalize == "tokens":
            scores = scores / np.diff(self.choices.trie.core.arrays()[1])
        return self.choices.aligned(scores)
