"""`choose` and `score`: one answer out of a set, step by step, by all scores, or by a search; and the scores."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, overload

import numpy as np

from token_trie.arrays import Floats, Ints, States
from token_trie.decisions.bound_choices import (
    BoundCalibration,
    BoundChoices,
    bind,
    bind_calibration,
    check_finite,
    check_size,
    n_scored,
    read_set,
)
from token_trie.decisions.calibration import BatchMean
from token_trie.decisions.decision import Candidate, Decision, Stats
from token_trie.decisions.options import ChooseOptions, Mode, ScoreOptions
from token_trie.decisions.request import Prefix, Request, Written
from token_trie.llama.drivers import StreamDriver
from token_trie.llama.query import Answer, Ask, AskBeside, Keep, Plan, Query, Sampling
from token_trie.llama.stream import Stream
from token_trie.native.core import Llama
from token_trie.native.options import takes
from token_trie.plan import Model, begun_on, run
from token_trie.sets.choices import Choices, ChoicesLike
from token_trie.sets.prompt import Prompt, first_token
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import ChooseKeywords, ScoreKeywords


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
    return run(llm, prompt, ScoreRequest.read(choices, ScoreOptions.read("score", options)).plan)


@takes(ScoreOptions)
def score_plan(model: Model, prompt: Prompt, choices: ChoicesLike, **options: Unpack[ScoreKeywords]) -> Plan[Floats]:
    """Plan what `score` does, as a part of another plan; after `model`, parameters and result are those of `score`."""
    return ScoreRequest.read(choices, ScoreOptions.read("score_plan", options)).plan(model, prompt)


def score_beside(stream: Stream, choices: ChoicesLike, prompt: Prompt | None, options: ScoreOptions) -> Floats:
    """Score choices after a stream's sequence, or after a separate prompt; the stream does not change."""
    request = ScoreRequest.read(choices, options)
    with stream.own():
        tokens = stream.tokens if prompt is None else stream.tokenize(prompt)
        return StreamDriver(stream, tokens, is_beside=True).finish(begun_on(stream, tokens, request.plan))


@dataclass(frozen=True)
class ScoreRequest(Request[Floats]):
    """A request for the scores of all choices."""

    choices: TokenTrie | Choices[Any]
    options: ScoreOptions

    @classmethod
    def read(cls, choices: ChoicesLike, options: ScoreOptions) -> ScoreRequest:
        """Read choices."""
        return cls(read_set(choices, options.leading_space), options)

    @property
    def n_choices(self) -> int:
        """Number of scores, including those of choices that are filtered out."""
        return self.choices.core.n_leaves if isinstance(self.choices, TokenTrie) else len(self.choices)

    def after(self, model: Model, prefix: Prefix) -> Plan[Floats]:
        """Plan the scores of the choices, and for a prior also those without a prompt."""
        options = self.options
        tokens, choices = bind(model, prefix.tokens, self.choices, options.leading_space)
        check_size(choices.trie, options.max_scored)
        calibration = bind_calibration(model, options, self.choices, choices)
        takes_state = calibration is not None and calibration.needs_state
        query = Query(
            "scores", choices.trie, leaf_end=options.leaf_end, branches=options.branches, with_state=takes_state
        )
        steps = [Ask(tokens, query)]
        if options.normalize == "prior":
            begin = [first_token(model.vocab)]
            steps.append(AskBeside(begin, query, (choices.trie, *begin, options.leaf_end, options.branches)))
        elif calibration is not None and calibration.unscored is not None:
            steps.append(calibration.unscored.step)
        answer, *prior = yield steps
        scores = answer.logprobs
        if calibration is not None:
            calibration = calibration.with_prior(prior[0].logprobs) if prior else calibration
            scores = choices.of_left(calibration.log_weights(scores, answer.state if takes_state else None), -np.inf)
        elif prior:
            scores = scores - choices.of_left(prior[0].logprobs, 0.0)
        if options.normalize == "tokens":
            scores = scores / np.diff(choices.trie.core.arrays()[1])
        return choices.aligned(scores)


T = TypeVar("T")


N_WEIGHED = 32
"""Answers of a search from whose scores a prior is subtracted."""


def by_steps(choices: BoundChoices[T], answer: Answer, stats: Stats, thought: str | None = None) -> Decision[T]:
    """Make the decision from the tokens that were chosen step by step."""
    own: dict[str, Any] = {"branch_logprob": answer.logprob, "tokens": answer.tokens}
    return _decision(choices, answer.leaf, None, stats, thought=thought, **own)


def by_scores(
    choices: BoundChoices[T],
    own: Floats,
    stats: Stats,
    thought: str | None = None,
    *,
    n_best: int = 1,
    calibration: BoundCalibration | None = None,
    state: States | None = None,
    drawn: Sampling | None = None,
) -> Decision[T]:
    """Decide by the scores of all leaves, calibrated or raw: the best leaf, or one that is drawn."""
    ranks = own if calibration is None else calibration.log_weights(own, state)
    ranks = choices.of_left(ranks, -np.inf)
    check_finite(ranks)
    weights = np.exp(ranks - ranks.max())
    p = weights / weights.sum()
    if drawn is None:
        order = choices.ranked(ranks)
        leaf = int(order[0])
        best = order[:n_best]
        candidates = _candidates(choices, best, own[best])
        lead = float(ranks[leaf] - (ranks[order[1]] if len(order) > 1 else -np.inf))
    else:
        by_tokens = np.argsort(choices.trie.core.leaf_nodes())
        shares = _shares(ranks[by_tokens], drawn)
        leaf = int(np.random.default_rng(drawn.seed).choice(by_tokens, p=shares))
        candidates, lead = (), None
    return _decision(
        choices,
        leaf,
        float(own[leaf]),
        stats,
        thought=thought,
        candidates=candidates,
        lead=lead,
        probabilities=choices.aligned(p),
        # Probabilities of answers that do not exclude each other can sum to more than 1.
        mass=min(1.0, float(np.exp(own).sum())),
        calibration="raw" if calibration is None else calibration.kind,
    )


def _shares(ranks: Floats, drawn: Sampling) -> Floats:
    """Return the probabilities by which whole answers are drawn, as llama.cpp's samplers make them of tokens."""
    order = np.argsort(-ranks, kind="stable")
    best = np.exp(ranks[order] - ranks[order[0]])[: drawn.top_k or None]
    if drawn.top_p < 1:
        best = best[np.cumsum(best) - best < drawn.top_p * best.sum()]
    kept = order[: np.count_nonzero(best >= drawn.min_p)]
    shares = np.zeros(len(ranks))
    with np.errstate(over="ignore"):  # a tiny temperature
        shares[kept] = np.exp((ranks[kept] - ranks[order[0]]) / drawn.effective_temperature(draws=True))
    shares /= shares.sum()
    return shares


def _decision(
    choices: BoundChoices[T],
    leaf: int,
    logprob: float | None,
    stats: Stats,
    *,
    tokens: tuple[int, ...] | None = None,
    **more: Any,
) -> Decision[T]:
    index = choices.index(leaf)
    value, text = choices.member(index)
    return Decision(
        value=value,
        text=text,
        index=index,
        tokens=choices.trie[leaf].tokens if tokens is None else tokens,
        logprob=logprob,
        stats=stats,
        _choices=choices,
        **more,
    )


def _candidates(
    choices: BoundChoices[T], leaves: Ints, logprobs: Floats, shares: Floats | None = None
) -> tuple[Candidate[T], ...]:
    found = []
    for n, leaf in enumerate(leaves.tolist()):
        index, share = choices.index(leaf), None if shares is None else float(shares[n])
        found.append(Candidate(*choices.member(index), index, float(logprobs[n]), share=share))
    return tuple(found)


def cost_of(n_prompt: int, answer: Answer) -> Stats:
    """Return the cost of an answer after a prompt of n_prompt tokens."""
    figures = answer.figures
    return Stats(
        n_prompt=n_prompt,
        n_branches=figures.n_branches,
        n_forced=figures.n_forced,
        n_passes=figures.n_passes,
        prompt_ms=figures.prompt_ns / 1e6,
        decide_ms=figures.decide_ns / 1e6,
        n_evaluated=0 if answer.tokens else figures.n_evaluated,
    )


@dataclass(frozen=True)
class ChoiceRequest(Written[Any]):
    """A request for one of several choices: for a `Decision`, or an `Undecided`."""

    choices: TokenTrie | Choices[Any]
    options: ChooseOptions
    mode: Mode
    with_state: bool = False
    """Whether the hidden state after the prompt is always requested."""

    @classmethod
    def read(cls, choices: ChoicesLike, options: ChooseOptions) -> ChoiceRequest:
        """Read choices."""
        return cls(read_set(choices, options.leading_space), options, options.mode or "exact")

    def undecided(self, with_state: bool = False) -> ChoiceRequest:
        """Return the request for `scored`: of all choices, raw."""
        options = replace(self.options, calibration=None, probabilities=True)
        return replace(self, options=options, with_state=with_state)

    def scored(self, model: Model, prompt: Prompt) -> Plan[Undecided]:
        """Plan the scores of all choices, for a decision by a calibration that is not known yet."""
        bound = self._bound(model, Prefix(model.tokenize(prompt)))
        (answer,) = yield [Ask(bound.tokens, bound.query)]
        check_finite(bound.choices.of_left(answer.logprobs, -np.inf))
        return Undecided(bound, answer)

    def after(self, model: Model, prefix: Prefix) -> Plan[Decision[Any]]:
        """Plan a search, or the scores of all choices, and decide."""
        bound = self._bound(model, prefix)
        calibration = bound.calibration
        if calibration is not None and calibration.unscored is not None and not bound.weighs_found:
            (prior,) = yield [calibration.unscored.step]
            bound = replace(bound, calibration=calibration.with_prior(prior.logprobs))
        (answer,) = yield [Ask(bound.tokens, bound.query)]
        decision = (yield from bound.weighed(answer)) if bound.weighs_found else bound.decide(answer, bound.calibration)
        yield [Keep([*bound.tokens, *decision.tokens])]
        return decision

    def _bound(self, model: Model, prefix: Prefix) -> BoundChoice:
        options = self.options
        tokens, choices = bind(model, prefix.tokens, self.choices, options.leading_space)
        calibration = bind_calibration(model, options, self.choices, choices)
        has_prior = calibration is not None and calibration.unscored is not None and not options.scores_all
        weighs_found = has_prior and n_scored(choices.trie, options.max_scored) > 0
        bound = BoundChoice(self, tokens, choices, calibration, prefix.thought, weighs_found)
        if bound.way == "scores":
            check_size(choices.trie, options.max_scored)
        return bound


@dataclass(frozen=True)
class BoundChoice:
    """Choices after a prompt."""

    request: ChoiceRequest
    tokens: list[int]
    choices: BoundChoices[Any]
    calibration: BoundCalibration | None
    thought: str | None
    weighs_found: bool
    """Whether the calibration's prompt is evaluated for the answers that a search found, as the set is large."""

    @property
    def query(self) -> Query:
        """Query for the model."""
        options, mode, trie, way = self.request.options, self.request.mode, self.choices.trie, self.way
        if mode == "greedy" or mode == "sampled":
            return Query(mode, trie, sampling=options, with_state=self._wants_state)
        common: dict[str, Any] = {"leaf_end": options.leaf_end, "with_state": self._wants_state}
        if way == "scores":
            return Query("scores", trie, **common)
        is_exact = mode == "exact"
        return Query(
            "best",
            trie,
            **common,
            n_best=min(max(options.n_best, N_WEIGHED) if self.weighs_found else options.n_best, len(trie)),
            leaf_weights=None if self.calibration is None else self.calibration.weights,
            beam_width=options.beam_width if mode == "beam" else 0,
            max_nodes=(options.max_nodes or 0) if is_exact else 0,
            timeout_ms=math.ceil(1000 * options.timeout) if is_exact and options.timeout is not None else 0,
        )

    def weighed(self, answer: Answer) -> Plan[Decision[Any]]:
        """Subtract from the scores of the answers that a search found those that they get without content."""
        assert self.calibration is not None
        assert self.calibration.unscored is not None  # as they weigh these answers
        check_finite(answer.logprobs)
        indices = np.array([self.choices.index(leaf) for leaf in answer.leaves.tolist()])
        (found,) = yield [self.calibration.unscored.of_found(indices)]
        prior = found.logprobs[: len(indices)]
        weighed = answer.logprobs - np.where(np.isfinite(prior), prior, 0.0)
        best = np.argsort(-weighed, kind="stable")[: self.request.options.n_best]
        shares = np.exp(weighed - np.logaddexp.reduce(weighed))
        return self._of_search(answer, best, shares[best], gap=math.inf)

    def _searched(self, answer: Answer) -> Decision[Any]:
        """Decide for the best answer that a search found, by calibrated scores."""
        check_finite(answer.logprobs)
        ranks, figures = answer.logprobs, answer.figures
        if self.calibration is not None:
            assert self.calibration.weights is not None  # because the search ranked the leaves by them
            ranks = ranks + self.calibration.weights[answer.leaves]
        lead = float(ranks[0]) - max([*ranks[1:2].tolist(), figures.rival_max])
        decision = self._of_search(answer, np.arange(len(ranks)), gap=figures.gap, lead=lead)
        if self.request.mode == "exact" and decision.gap != 0:
            _warn_once(
                "search",
                "a search ended after %d nodes with the best answer until then: another may be up to %.2g nats more "
                "probable. max_nodes=None goes on to the proof. (Said once a process; decision.proved tells for each.)",
                decision.stats.n_evaluated,
                decision.gap,
            )
        return decision

    def _of_search(self, answer: Answer, best: Ints, shares: Floats | None = None, **more: Any) -> Decision[Any]:
        """Make the decision from the best of the answers that a search found."""
        leaves, logprobs = answer.leaves[best], answer.logprobs[best]
        return _decision(
            self.choices,
            int(leaves[0]),
            float(logprobs[0]),
            cost_of(len(self.tokens), answer),
            thought=self.thought,
            candidates=_candidates(self.choices, leaves, logprobs, shares),
            calibration="raw" if self.calibration is None else self.calibration.kind,
            _mass_max=answer.figures.mass_max,
            **more,
        )

    def decide(self, answer: Answer, calibration: BoundCalibration | None) -> Decision[Any]:
        """Decide by the model's answer and the calibration."""
        options, way = self.request.options, self.way
        if way == "search":
            return self._searched(answer)
        stats = cost_of(len(self.tokens), answer)
        if way == "steps":
            return by_steps(self.choices, answer, stats, self.thought)
        drawn = options if self.request.mode == "aligned" else None
        decision = by_scores(
            self.choices,
            answer.logprobs,
            stats,
            self.thought,
            n_best=options.n_best,
            calibration=calibration,
            state=answer.state if self._wants_state else None,
            drawn=drawn,
        )
        if decision.fits is False:
            _warn_once(
                "fits",
                "the model gives all answers together %.2g %% of what it could write here: none may fit the prompt. "
                "Let it show some questions with their answers. (Said once a process; decision.fits tells for each.)",
                100 * (decision.mass or 0.0),
            )
        return decision

    @property
    def _wants_state(self) -> bool:
        return self.request.with_state or (self.calibration is not None and self.calibration.needs_state)

    @cached_property
    def way(self) -> Literal["steps", "scores", "search"]:
        """How it is decided: step by step, by the scores of all choices, or by a search."""
        options, calibration = self.request.options, self.calibration
        if self.request.mode in ("greedy", "sampled"):
            return "steps"
        if options.scores_all or (calibration is not None and calibration.weights is None and not self.weighs_found):
            return "scores"
        return "search"


class Undecided(NamedTuple):
    """The scores of all choices, before the decision."""

    bound: BoundChoice
    answer: Answer

    @property
    def log_shares(self) -> Floats:
        """Return the log-probability of each choice, normalized over the choices."""
        leaves = self.answer.logprobs
        return self.bound.choices.aligned(leaves - np.logaddexp.reduce(leaves))

    def decide(self, mean: Floats | None) -> Decision[Any]:
        """Decide after a mean is subtracted from the scores; without one, which too few rows do not have, raw."""
        choices = self.bound.choices
        calibration = None if mean is None else BoundCalibration(BatchMean(), choices, choices.left(), mean)
        return self.bound.decide(self.answer, calibration)


_warned: set[str] = set()


def _warn_once(what: str, message: str, *figures: object) -> None:
    if what not in _warned:
        _warned.add(what)
        logging.getLogger(f"token_trie.{what}").warning(message, *figures)


@overload
def choose(llm: Llama, prompt: Prompt, choices: TokenTrie, **options: Unpack[ChooseKeywords]) -> Decision[str]: ...
@overload
def choose(llm: Llama, prompt: Prompt, choices: Mapping[str, T], **options: Unpack[ChooseKeywords]) -> Decision[T]: ...
@overload
def choose(llm: Llama, prompt: Prompt, choices: Iterable[T], **options: Unpack[ChooseKeywords]) -> Decision[T]: ...
@overload
def choose(llm: Llama, prompt: Prompt, choices: object, **options: Unpack[ChooseKeywords]) -> Decision[Any]: ...
@takes(ChooseOptions)
def choose(llm: Llama, prompt: Prompt, choices: ChoicesLike, **options: Any) -> Decision[Any]:
    """Let the model answer a prompt with one of several choices.

    The first call makes a `StreamHandle` for the model, which is kept as long as the model. So the model's own context
    is not changed, and the beginning that a prompt shares with the previous prompt is not evaluated again.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    prompt : str, sequence of int, or sequence of chat messages
        A text is tokenized as by `Llama.create_completion`: names of control tokens in it become control tokens.
        Messages go through the model's chat template; their contents are plain text and never become control tokens.
    choices : iterable of str, mapping of str to any value, Enum class, range, Literal, or TokenTrie
        The possible answers. They determine `Decision.value`: the text, the mapping's value, the Enum's member, or the
        number. Texts are tokenized as they follow this prompt; the last sets are remembered. The text of an Enum's
        member is its value if all values are str, else its name. The text of a bool is "true" or "false". The token
        sequences of a `TokenTrie` follow the prompt as they are.
    **options
        Those of `ChooseOptions`.

    Returns
    -------
    Decision

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        Choices, prompt, options and model do not fit together.
    BusyError
        The call comes from a callback or signal handler of a thread that is already choosing with this model.
    CancelledError
        The model was closed during the call.

    Notes
    -----
    Several threads may choose with one model at the same time. The first such call makes a context of the Llama's size,
    which is kept as long as the model. Calls that arrive together are then answered in shared batches, as by
    `choose_many`. The answers are the same up to llama.cpp's rounding, which depends on the size of a batch.
    """
    return run(llm, prompt, ChoiceRequest.read(choices, ChooseOptions.read("choose", options)).plan)


@takes(ChooseOptions)
def choose_plan(model: Model, prompt: Prompt, choices: ChoicesLike, **options: Any) -> Plan[Decision[Any]]:
    """Plan what `choose` does, as a part of another plan; after `model`, parameters are those of `choose`."""
    return ChoiceRequest.read(choices, ChooseOptions.read("choose_plan", options)).plan(model, prompt)
