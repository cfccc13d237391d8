"""A question, put in a form."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from token_trie.decisions.calibrator import BatchPrior, Calibrator
from token_trie.decisions.questions.answered import Answered, Calibration, QuestionStats, answer
from token_trie.decisions.questions.asked import Asked, View
from token_trie.decisions.questions.examples import Examples, Shot, Shots
from token_trie.decisions.questions.forms import Form, Put
from token_trie.decisions.questions.question import NONE_OF_THESE, Choice, Option, Predicate, Question
from token_trie.decisions.questions.scores import Floats, Reading, Scored
from token_trie.decisions.questions.weighing import Weighing, contextual, shared
from token_trie.decisions.questions.wording import text_of
from token_trie.native.core import Llama

_LEAST, _MOST = 2, 8
"""Orders that "auto" takes."""
_MARGIN = 2.0
"""Of log-weights, at which it takes no more."""


@dataclass(frozen=True, eq=False)
class FormView(View):
    """A question with its options in one order."""

    form: Form
    instructions: str
    options: tuple[Option, ...]
    """In the order of the question."""
    offset: int
    """Of the one that is listed first."""
    shots: Shots | None = None
    """What stands before."""

    @cached_property
    def listed(self) -> tuple[Option, ...]:
        """The options as they are listed."""
        return self.options[self.offset :] + self.options[: self.offset]

    @cached_property
    def weighing(self) -> Weighing:
        """The options by the texts that stand for them."""
        texts = self.form.texts(self.listed)
        return Weighing(texts[len(texts) - self.offset :] + texts[: len(texts) - self.offset])

    @property
    def text(self) -> str:
        """The template with all filled in but the state."""
        return Put(self.form.template, self.form.absent, self.instructions, self.listed)

    def reading(self, llm: Llama, state: str | None) -> Reading:
        """Return what is to be read about a state, or None for the absent one."""
        given = self.form.absent if state is None else state
        prompt = self.form.put(llm, given, self.instructions, self.listed, self.shown(state))
        return Reading(prompt, self.weighing.texts)

    def shown(self, state: str | None) -> list[Shot]:
        """Return what stands before a state, by the places of the options as they are listed."""
        shots, n = () if self.shots is None else self.shots.before(state), len(self.options)
        return [Shot(shot.state, (shot.place - self.offset) % n) for shot in shots]

    def weights(self, scored: Scored, prior: Scored | None) -> Floats:
        """Return the log-weights of its answers."""
        raw = self.weighing.log_masses(scored.logprobs)
        if prior is None:
            return raw
        lengths = self.weighing.lengths(scored.lengths)
        return contextual(raw, self.weighing.log_masses(prior.logprobs), lengths, self.form.temperature)


@dataclass(frozen=True, eq=False)
class FormAsked(Asked):
    """A question in a form, with its options in so many orders."""

    question: Question
    form: Form
    orders: int | Literal["auto"]
    calibrator: Calibrator | None = None
    prior_of: Literal["contextual", "batch", "running"] = "contextual"
    shift: Floats | None = None
    """What is added to the log-weight of each option."""
    examples: Examples | None = None
    """What stands before the state."""

    @property
    def takes_prior(self) -> bool:
        """Whether what it gives without a state counts."""
        if self.shots is not None and not self.shots.are_the_same:
            return False
        return self._takes_scores and (self.calibrator is None or self.calibrator.base == "contextual")

    @property
    def _takes_scores(self) -> bool:
        return self.calibrator is None or self.calibrator.needs_scores

    def calibrated(self, calibrator: Calibrator | None) -> FormAsked:
        """Return it with what was fitted on it, or without."""
        return replace(self, calibrator=calibrator)

    def wanting(self, reading: Reading) -> Reading:
        """Return a reading of one of its views with what the answer takes."""
        with_state = self.calibrator is not None and self.calibrator.needs_state
        return reading._replace(with_state=with_state, with_scores=self._takes_scores)

    @property
    def asked(self) -> str:
        """All that its weights depend on beside the model and the options' names, as a text."""
        views = [(view.instructions, [option.texts for option in view.options]) for view in self.views]
        before = [] if self.shots is None else [self.shots.digest]
        return json.dumps([dataclasses.asdict(self.form), self.orders, views, *before], ensure_ascii=False)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of its options."""
        return tuple(option.name for option in self.options)

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """What it may be answered with."""
        options = self.question.wording
        if isinstance(self.question, Choice) and self.question.other:
            options += (Option(NONE_OF_THESE, (NONE_OF_THESE,)),)
        return options

    @cached_property
    def shots(self) -> Shots | None:
        """What stands before the state; ArgumentError for answers that are none."""
        return None if self.examples is None else self.examples.of(self.question, self.classes)

    @cached_property
    def views(self) -> list[FormView]:
        """One an order; one alone where the template reads the same in all of them."""
        options = self.options
        places = offsets(len(options), _MOST if self.orders == "auto" else self.orders)
        instructions = text_of(self.question.instructions, "instructions")
        asked = [(instructions, options)]
        if isinstance(self.question, Predicate) and self.form.negation is not None:
            asked.append((self.form.negated(instructions), self.question.turned))
        views = [
            FormView(self.form, instructions, options, offset, self.shots)
            for offset in places
            for instructions, options in asked
        ]
        texts = {view.text for view in views[:: len(asked)]} if len(places) > 1 else ()
        return views if len(texts) > 1 else views[: len(asked)]

    def over_rows(self, prior: BatchPrior) -> FormAsked:
        """Return it as it is answered where the prior of each view is the mean over many states."""
        values = [*self.question.values, *([None] if len(self.classes) > len(self.question.values) else [])]
        shift = None if prior.frequencies is None else prior.shift(values)
        return replace(self, prior_of="batch", shift=shift)

    def answer(self, scored: Sequence[Scored], priors: Sequence[Scored | None]) -> Answered[Any]:
        """Return the answer that readings make, of as many views as there are readings, by the mean of log-weights."""
        stats = QuestionStats(sum(s.n_prompt for s in scored), sum(s.n_evaluated for s in scored))
        mass = min(float(np.mean([s.mass for s in scored])), 1.0) if self._takes_scores else None
        calibration: Calibration = "raw" if priors[0] is None else self.prior_of
        if self.calibrator is not None:
            calibration = "fitted"
            scores = self.of_options(scored, priors)[None] if self._takes_scores else None
            states = None if scored[0].state is None else scored[0].state[None]
            probabilities = shared(self.calibrator.log_weights(scores, states)[0])
        elif self.shift is not None:
            probabilities = shared(self.of_options(scored, priors) + self.shift)
        else:
            probabilities = self.views[0].weighing.probabilities(self._weights(scored, priors))
        return answer(self.question, probabilities, mass, calibration, stats, scored[0].thought)

    def is_sure(self, scored: Sequence[Scored], priors: Sequence[Scored | None]) -> bool:
        """Tell whether further orders are not needed, as the two best are far apart."""
        if not self._takes_scores:
            return True  # by the state behind the first
        if self.orders != "auto" or len(scored) < _LEAST:
            return False
        two = np.sort(self._weights(scored, priors))[-2:]
        return len(two) < 2 or bool(two[1] - two[0] >= _MARGIN)

    def of_options(self, scored: Sequence[Scored], priors: Sequence[Scored | None]) -> Floats:
        """Return the log-weight of each option that readings make."""
        return self.views[0].weighing.of_options(self._weights(scored, priors))

    def _weights(self, scored: Sequence[Scored], priors: Sequence[Scored | None]) -> Floats:
        read = zip(self.views, scored, priors, strict=False)
        weights: Floats = np.mean([view.weights(own, prior) for view, own, prior in read], axis=0)
        return weights


def offsets(n: int, k: int) -> list[int]:
    """Return the places from which k cyclic orders of n begin, spread: 0, n/2, n/4, 3n/4 and so on; n at most."""
    spread: dict[int, None] = {}
    for i in itertools.count():
        if len(spread) == min(n, k):
            break
        spread[int(n * _mirrored(i))] = None
    return list(spread)


def _mirrored(i: int) -> float:
    """Return 0, 1/2, 1/4, 3/4, 1/8 … for 0, 1, 2 …."""
    return sum((i >> bit & 1) * 0.5 ** (bit + 1) for bit in range(i.bit_length()))
