"""A request for one of some choices, run step by step, by the scores of all, or by a search for the best."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from token_trie.decisions.bound import BoundChoices, Reader, bind, read_set
from token_trie.decisions.calibration import BoundCalibration, bind_calibration
from token_trie.decisions.calibrator import Floats, States
from token_trie.decisions.decision import Decision, Stats
from token_trie.decisions.native_scores import (
    Cost,
    Scores,
    Search,
    Steps,
    check_scorable,
    score_leaves,
    search_leaves,
    take_steps,
)
from token_trie.decisions.options import LEAF_ENDS, ChooseOptions, Mode
from token_trie.decisions.request import Batched, Bound, Prefix, Written
from token_trie.decisions.score import evaluated
from token_trie.decisions.ways import Clock, by_scores, by_search, by_steps
from token_trie.llama.batch import Answer, Batch
from token_trie.llama.stream import Stream
from token_trie.native.arguments import native_seed
from token_trie.native.core import Llama
from token_trie.native.ffi import lib
from token_trie.sets.choices import Choices, ChoicesLike
from token_trie.sets.trie import TokenTrie

Found: TypeAlias = Steps | Scores | Search


class Seen(NamedTuple):
    """What the model has said."""

    found: Found | None
    stats: Stats
    state: States | None = None


@dataclass(frozen=True)
class ChoiceRequest(Written[Decision[Any]]):
    """One of some choices."""

    choices: TokenTrie | Choices[Any]
    options: ChooseOptions
    mode: Mode
    with_state: bool = False
    """Whether the hidden state behind the prompt is wanted in any case."""

    @classmethod
    def read(cls, choices: ChoicesLike, options: ChooseOptions) -> ChoiceRequest:
        """Read choices; ArgumentError where they and the options do not fit each other."""
        read = read_set(choices, options.tokenization, options.heal)
        tokenization = read.tokenization if isinstance(read, TokenTrie) else options.tokenization
        mode = options.mode
        if mode is None:
            mode = options.default_mode(tokenization)
            options.require_fitting(mode)
        if mode not in ("greedy", "sampled"):
            check_scorable(tokenization)
        return cls(read, options, mode)

    def evaluated(self, llm: Llama) -> ChoiceRequest:
        """Return it with all that its calibration needs of a Llama."""
        return replace(self, options=evaluated(llm, self.choices, self.options))

    def bind(self, reader: Reader, prefix: Prefix) -> BoundChoice:
        """Bind it to what it stands behind."""
        options = self.options
        spelled = options.leading_space, options.tokenization, options.heal
        tokens, choices = bind(reader, prefix.tokens, self.choices, *spelled)
        calibration = bind_calibration(reader, options.calibration, self.choices, choices, options.leaf_end, *spelled)
        return BoundChoice(self, tokens, choices, calibration, prefix.thought_text)


@dataclass(frozen=True)
class BoundChoice(Bound[Decision[Any]], Batched[Decision[Any]]):
    """Choices behind a prompt."""

    request: ChoiceRequest
    tokens: list[int]
    choices: BoundChoices[Any]
    calibration: BoundCalibration | None
    thought: str | None

    def run(self, stream: Stream) -> Decision[Any]:
        """Decide."""
        if self.calibration is not None:
            return replace(self, calibration=self.calibration.ready(stream))._run(stream)
        return self._run(stream)

    def _run(self, stream: Stream) -> Decision[Any]:
        return self.decide(self.find(stream), self.calibration)

    def find(self, stream: Stream) -> Seen:
        """Ask the model, and tell what it says."""
        options, mode, trie = self.request.options, self.request.mode, self.choices.trie
        if mode == "greedy" or mode == "sampled":
            if mode == "sampled" and options.seed is not None:
                stream.set_seed(options.seed)
            stream.set_trie(trie, mode)
            clock = Clock(stream, self.tokens)
            steps = take_steps(stream, self._temperature, options.top_p)
            return Seen(steps, clock.stats(*steps.counts))
        stream.hold(trie)
        clock = Clock(stream, self.tokens)
        state = stream.hidden_state() if self._wants_state else None
        if self._is_by_state:
            return Seen(None, clock.stats(), state)
        found: Scores | Search
        if self._scores_all:
            found = score_leaves(stream, trie, leaf_end=options.leaf_end)
        else:
            rule, weights = options.leaf_end, self._weights
            found = search_leaves(stream, trie, options.n_best, leaf_end=rule, weights=weights, **self._bounds)
        return Seen(found, clock.stats(n_passes=found.cost.n_passes, n_evaluated=found.cost.n_evaluated), state)

    def missing(self, answer: Decision[Any]) -> Sequence[int]:
        """Return an answer's tokens, where whole ones were weighed."""
        return () if self.request.mode in ("greedy", "sampled") else answer.tokens

    def batched(self) -> BoundChoice | None:
        """Return it, unless a calibration is to be evaluated first, in the prompt's place."""
        if self.calibration is None:
            return self
        known = self.calibration.known
        return None if known is None else replace(self, calibration=known)

    def submit(self, batch: Batch) -> int:
        """Put it into a batch; return its ticket."""
        options = self.request.options
        modes = {"greedy": lib.TOKEN_TRIE_BATCH_GREEDY, "sampled": lib.TOKEN_TRIE_BATCH_SAMPLED}
        if self._is_by_state:
            return batch.submit(None, self.tokens, mode=lib.TOKEN_TRIE_BATCH_STATE)
        whole = lib.TOKEN_TRIE_BATCH_SCORES if self._scores_all else lib.TOKEN_TRIE_BATCH_BEST
        return batch.submit(
            self.choices.trie,
            self.tokens,
            mode=modes.get(self.request.mode, whole),
            seed=native_seed(options.seed),
            temperature=self._temperature,
            top_p=options.top_p,
            leaf_end=LEAF_ENDS[options.leaf_end],
            n_best=min(options.n_best, len(self.choices.trie)),
            with_state=int(self._wants_state),
            leaf_weights=None if self._scores_all else self._weights,
            **self._bounds,
        )

    def read(self, answer: Answer) -> Decision[Any]:
        """Return what its answer says."""
        return self.decide(self.found(answer), self.calibration)

    def found(self, answer: Answer) -> Seen:
        """Tell what the model says in a batch."""
        told = answer.figures
        stats = Stats(
            n_prompt=len(self.tokens),
            n_branches=told.n_branches,
            n_forced=told.n_forced,
            n_passes=told.n_passes,
            prompt_ms=told.prompt_ns / 1e6,
            decide_ms=told.decide_ns / 1e6,
            n_evaluated=told.n_evaluated,
        )
        found: Found | None
        if self._is_by_state:
            found = None
        elif self.request.mode in ("greedy", "sampled"):
            found = Steps(answer.leaf, answer.logprob, answer.tokens)
        elif self._scores_all:
            found = Scores(answer.logprobs, np.empty(0), Cost())
        else:
            found = Search(answer.leaves, answer.logprobs, told.gap, told.rival_max, told.mass_max, Cost())
        return Seen(found, stats, answer.state if self._wants_state else None)

    def decide(self, seen: Seen, calibration: BoundCalibration | None) -> Decision[Any]:
        """Decide by what was found."""
        (found, stats, state), options, mode = seen, self.request.options, self.request.mode
        if isinstance(found, Steps):
            return by_steps(self.choices, found, stats, self.thought)
        if isinstance(found, Search):
            decision = by_search(self.choices, found, stats, self.thought, calibration=calibration)
            if mode == "exact" and not decision.proved:
                _warn_once(
                    "search",
                    "a search ended after %d nodes with the best answer until then: another may be up to %.2g nats "
                    "more probable. max_nodes=None goes on to the proof. (Said once a process; decision.proved tells "
                    "for each.)",
                    decision.stats.n_evaluated,
                    decision.gap,
                )
            return decision
        drawn = (options.seed,) if mode == "aligned" else None
        decision = by_scores(
            self.choices,
            found,
            stats,
            self.thought,
            n_best=options.n_best,
            calibration=calibration,
            state=state,
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

    @property
    def _is_by_state(self) -> bool:
        """Whether the state is all that the answer takes."""
        return self.calibration is not None and not self.calibration.needs_scores

    @property
    def _scores_all(self) -> bool:
        return self.request.options.scores_all or (self.calibration is not None and self._weights is None)

    @property
    def _weights(self) -> Floats | None:
        """What is added to each leaf's score, where that is known beforehand."""
        return None if self.calibration is None else self.calibration.weights

    @property
    def _temperature(self) -> float:
        given = self.request.options.temperature
        return 1.0 if given is None else given

    @property
    def _bounds(self) -> dict[str, Any]:
        """What ends a search, as struct token_trie_score_params has it."""
        options, mode = self.request.options, self.request.mode
        is_exact = mode == "exact"
        return {
            "beam_width": options.beam_width if mode == "beam" else 0,
            "max_nodes": (options.max_nodes or 0) if is_exact else 0,
            "timeout_ms": math.ceil(1000 * options.timeout) if is_exact and options.timeout is not None else 0,
        }


_warned: set[str] = set()


def _warn_once(what: str, message: str, *figures: object) -> None:
    if what not in _warned:
        _warned.add(what)
        logging.getLogger(f"token_trie.{what}").warning(message, *figures)
