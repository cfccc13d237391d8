"""`score`: the probability of every answer, in a few batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from token_trie.arrays import Floats
from token_trie.decisions.bound_choices import (
    Reader,
    bind,
    bind_calibration,
    check_scorable,
    check_size,
    read_set,
)
from token_trie.decisions.calibration import calibrator_of
from token_trie.decisions.options import ChooseOptions, ScoreOptions
from token_trie.decisions.run import Plan, PlanStep, Prefix, Request, calibrated, drive, read_on, run
from token_trie.errors import ArgumentError
from token_trie.llama.query import Query
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
        return drive(read_on(stream, partial(request.steps, prefix=Prefix(tokens), is_beside=True)), stream)


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

    def steps(self, reader: Reader, prefix: Prefix, *, is_beside: bool = False) -> Plan[Floats]:
        """Score the choices, and for a prior also without a prompt; `is_beside` is that of `PlanStep`."""
        options, spelled = self.options, self.options.leading_space
        tokens, choices = bind(reader, prefix.tokens, self.choices, spelled)
        check_size(choices.trie, options.max_scored)
        calibration = bind_calibration(
            reader, options.calibration, self.choices, choices, options.leaf_end, spelled, prior=self.prior
        )
        takes_state = calibration is not None and calibration.needs_state
        if takes_state and is_beside:
            raise ArgumentError("calibration: a head takes the hidden state of a prompt, which goes with a Llama")
        query = Query(
            "scores", choices.trie, leaf_end=options.leaf_end, branches=options.branches, with_state=takes_state
        )
        beginning = [first_token(reader.vocab)] if options.normalize == "prior" else []
        calibration = yield from calibrated(calibration)
        answer = yield PlanStep(tokens, query, is_beside)
        scores = answer.logprobs
        if beginning:
            scores = scores - choices.of_left((yield PlanStep(beginning, query, is_beside=True)).logprobs, 0.0)
        if calibration is not None:
            scores = choices.of_left(calibration.log_weights(scores, answer.state if takes_state else None), -np.inf)
        if options.normalize == "tokens":
            scores = scores / np.diff(choices.trie.core.arrays()[1])
        return choices.aligned(scores)


def prior_scores(llm: Llama, choices: TokenTrie | Choices[Any], options: ChooseOptions | ScoreOptions) -> Floats | None:
    """Return the mean scores of choices after the prompts of a calibration; None if it has none."""
    calibrator = calibrator_of(options.calibration)
    if calibrator is None or calibrator.binding is not None or not calibrator.prompts:
        return None
    own = {name: getattr(options, name) for name in ("leaf_end", "leading_space", "max_scored")}
    request = ScoreRequest(choices, ScoreOptions(**own))
    scores: Floats = np.mean([run(llm, prompt, request) for prompt in calibrator.prompts], axis=0)  # type: ignore[arg-type]
    return scores
