"""Questions whose options are the members of a set, which may be too many to score each: the best ones are searched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from token_trie.decisions.bound_choices import Prior, bind, check_finite
from token_trie.decisions.calibration import Calibrator
from token_trie.decisions.decision import Candidate
from token_trie.decisions.options import MAX_NODES
from token_trie.errors import ArgumentError
from token_trie.llama.query import Ask, Plan, Query
from token_trie.plan import Model
from token_trie.questions.form import (
    Forms,
    FormView,
    PreparedQuestion,
    TokensOf,
    contextual,
    lists_options,
    softmax,
)
from token_trie.questions.options import DecideOptions
from token_trie.questions.question import MAX_WHOLE, Answered, Choice, ChoiceAnswer, Members, QuestionStats, text_of
from token_trie.questions.scores import LEAF_END

N_FOUND = 16
"""Number of members of a larger set that are found, to be weighed against their scores without content."""
_WIDTH, _NODES = 2, 8
"""For each of them, the width of the beam that finds them, and the number of nodes at which it has narrowed to them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedSet(FormView):
    """A question whose options are the members of a set, in a form that does not list them."""

    options: tuple[Any, ...] = ()
    offset: int = 0
    members: Members
    top: int
    calibrator: Calibrator | None
    """None: the answer has the model's own probabilities."""
    profile: str | None
    """Name of the profile that the form comes from."""

    @classmethod
    def of(cls, question: Choice[Any], forms: Forms, options: DecideOptions, profile: str | None) -> PreparedSet:
        """Prepare a question; ArgumentError for options that need a list of the members."""
        form, calibrator = next(iter(forms)), options.calibrator
        if profile is None and lists_options(form):
            raise ArgumentError("form: a set is asked about in one form, which does not list the options")
        if options.examples is not None:
            raise ArgumentError("examples: go with options that are all scored, and not with a set")
        if calibrator is not None and (calibrator.binding is not None or not calibrator.needs_prior):
            raise ArgumentError("calibration: a set that is searched goes with 'contextual' or None")
        instructions, members, top = text_of(question.instructions, "instructions"), question.members, question.top
        assert members is not None  # because it is searched
        assert top is not None
        return cls(form, instructions, members=members, top=top, calibrator=calibrator, profile=profile)

    def plan(self, model: Model, tokens_of: TokensOf) -> Plan[Answered[Any]]:
        """Plan the scores of a small set, or the search of a large one; then those of what was found, as a prior."""
        tokens, choices = bind(model, tokens_of(self, is_prior=False), self.members)
        prior = None
        if self.calibrator is not None:
            prior = Prior(*bind(model, tokens_of(self, is_prior=True), self.members), LEAF_END)
        n = len(choices.trie)
        if n <= MAX_WHOLE:
            leaves = np.flatnonzero(choices.trie.core.left())
            (answer,) = yield [Ask(tokens, Query("scores", choices.few(leaves), leaf_end=LEAF_END))]
        else:
            n_best = min(self.top if prior is None else max(self.top, N_FOUND), n)
            # Members that are weighed need no proof, which takes most of the nodes of a best-first search.
            width, max_nodes = (0, MAX_NODES) if prior is None else (_WIDTH * n_best, _NODES * n_best)
            best = Query("best", choices.trie, leaf_end=LEAF_END, n_best=n_best, beam_width=width, max_nodes=max_nodes)
            (answer,) = yield [Ask(tokens, best)]
            leaves = answer.leaves
        logprobs = answer.logprobs[: len(leaves)]
        check_finite(logprobs)
        found = np.array([choices.index(leaf) for leaf in leaves.tolist()])
        weights = logprobs
        if prior is not None:
            (without,) = yield [prior.of_found(found)]
            lengths = np.array([len(choices.trie.core.sequence(leaf)) for leaf in leaves.tolist()], np.float64)
            weights = contextual(logprobs, without.logprobs[: len(found)], lengths, self.form.temperature)
        order = np.argsort(-weights, kind="stable")[: self.top]
        shares = softmax(weights[order]).tolist()
        candidates, probabilities = [], dict[Any, float]()
        for i, share in zip(order.tolist(), shares, strict=True):
            index = int(found[i])
            candidates.append(Candidate(*choices.member(index), index, float(logprobs[i]), share=share))
            value = candidates[-1].value
            probabilities[value] = probabilities.get(value, 0.0) + share
        mass, is_whole, figures = math.fsum(np.exp(logprobs)), len(leaves) == n, answer.figures
        return ChoiceAnswer(
            max(probabilities, key=probabilities.__getitem__),
            probabilities,
            min(mass, 1.0),
            "raw" if self.calibrator is None else "contextual",
            QuestionStats(len(tokens), figures.n_evaluated, len(tokens) - figures.n_shared, figures.n_shared),
            profile=self.profile,
            candidates=tuple(candidates),
            gap=0.0 if is_whole else figures.gap if prior is None else math.inf,
            rest=0.0 if is_whole else max(0.0, min(1.0, figures.mass_max) - mass),
        )


Prepared: TypeAlias = PreparedQuestion | PreparedSet
"""A question in the forms in which the model reads it."""
