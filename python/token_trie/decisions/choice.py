"""A request for one of some choices, run step by step, by the scores of all, or by a search for the best."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from token_trie.decisions.bound import BoundChoices, Reader, bind, check_scorable, read_set
from token_trie.decisions.calibration import BoundCalibration, bind_calibration
from token_trie.decisions.calibrator import Floats
from token_trie.decisions.decision import Decision, Stats
from token_trie.decisions.options import ChooseOptions, Mode
from token_trie.decisions.request import Batched, Bound, Prefix, Written
from token_trie.decisions.score import evaluated
from token_trie.decisions.ways import Clock, by_scores, by_search, by_steps
from token_trie.llama.batch import Batch
from token_trie.llama.query import Answer, Query
from token_trie.llama.stream import Stream
from token_trie.native.core import Llama
from token_trie.sets.choices import Choices, ChoicesLike
from token_trie.sets.trie import TokenTrie


class Seen(NamedTuple):
    """An answer, and what it cost."""

    answer: Answer
    stats: Stats


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
        """Ask the model."""
        clock = Clock(stream, self.tokens)
        answer = stream.answer(self.query)
        return Seen(answer, clock.stats(answer))

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
        return batch.submit(self.tokens, self.query)

    def read(self, answer: Answer) -> Decision[Any]:
        """Return what its answer says."""
        return self.decide(self.found(answer), self.calibration)

    def found(self, answer: Answer) -> Seen:
        """Return an answer of a batch with what it cost."""
        figures = answer.figures
        stats = Stats(
            n_prompt=len(self.tokens),
            n_branches=figures.n_branches,
            n_forced=figures.n_forced,
            n_passes=figures.n_passes,
            prompt_ms=figures.prompt_ns / 1e6,
            decide_ms=figures.decide_ns / 1e6,
            n_evaluated=figures.n_evaluated,
        )
        return Seen(answer, stats)

    @property
    def query(self) -> Query:
        """What the model is asked."""
        options, mode, trie = self.request.options, self.request.mode, self.choices.trie
        if self._is_by_state:
            return Query("state")
        if mode == "greedy" or mode == "sampled":
            return Query(mode, trie, sampling=options, with_state=self._wants_state)
        common: dict[str, Any] = {"leaf_end": options.leaf_end, "with_state": self._wants_state}
        if self._scores_all:
            return Query("scores", trie, **common)
        is_exact = mode == "exact"
        return Query(
            "best",
            trie,
            **common,
            n_best=min(options.n_best, len(trie)),
            leaf_weights=self._weights,
            beam_width=options.beam_width if mode == "beam" else 0,
            max_nodes=(options.max_nodes or 0) if is_exact else 0,
            timeout_ms=math.ceil(1000 * options.timeout) if is_exact and options.timeout is not None else 0,
        )

    def decide(self, seen: Seen, calibration: BoundCalibration | None) -> Decision[Any]:
        """Decide by what was found."""
        (answer, stats), options, mode = seen, self.request.options, self.request.mode
        if not self._is_scored:
            return by_steps(self.choices, answer, stats, self.thought)
        if not (self._scores_all or self._is_by_state):
            decision = by_search(self.choices, answer, stats, self.thought, calibration=calibration)
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
            None if self._is_by_state else answer.logprobs,
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
    def _is_scored(self) -> bool:
        """Whether whole answers are weighed."""
        return self.request.mode not in ("greedy", "sampled")


_warned: set[str] = set()


def _warn_once(what: str, message: str, *figures: object) -> None:
    if what not in _warned:
        _warned.add(what)
        logging.getLogger(f"token_trie.{what}").warning(message, *figures)
