"""Questions whose options are the members of a set, which may be too many to score each: the best ones are searched."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from token_trie.arrays import Floats
from token_trie.decisions.bound_choices import Reader, bind, check_finite
from token_trie.decisions.calibration import Calibrator
from token_trie.decisions.decision import Candidate
from token_trie.decisions.options import MAX_NODES
from token_trie.decisions.run import Plan, PlanStep, Prefix, begin, drive, scores_of_found
from token_trie.errors import ArgumentError
from token_trie.llama.batch import chooser
from token_trie.llama.query import Query
from token_trie.native.core import Llama
from token_trie.questions.form import FormAsked, Forms, FormView, contextual, lists_options, softmax
from token_trie.questions.options import DecideOptions
from token_trie.questions.question import Answered, Choice, ChoiceAnswer, Members, QuestionStats, text_of
from token_trie.questions.scores import LEAF_END, Reading, Scored
from token_trie.sets.choices import Choices
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie

MAX_WHOLE = 255
"""Largest number of members that are all scored: as many options as a request may describe."""
N_FOUND = 8
"""Number of members of a larger set that are found, to be weighed against their scores without content."""
_WIDTH, _NODES = 3, 15
"""For each of them, the width of the beam that finds them, and the number of nodes at which it has narrowed to them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Found(Scored):
    """Scores of the members of a set that were found."""

    members: tuple[Candidate[Any], ...]
    prior: Floats | None
    """Their scores after the prompt without content; None without one."""
    gap: float
    """By how many nats another member could at most be above the last one; inf if that depends on its prior."""
    rest: float
    """The probability of all other members is at most this."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SetReading(Reading):
    """A request for the most probable members of a set after a prompt, and for their scores without content."""

    texts: tuple[str, ...] = ()
    members: TokenTrie | Choices[Any]
    n_best: int
    absent: Prompt | None = None
    """The prompt without content, after which the members that were found are scored, too."""
    remembers: bool = True
    """Whether scores after it may be of an earlier reading, evaluated beside other members."""

    def steps(self, reader: Reader, prefix: Prefix, *, is_beside: bool = False) -> Plan[Found]:
        """Score a small set, or search a large one; then score what was found after the other prompt."""
        tokens, choices = bind(reader, prefix.tokens, self.members)
        # On a handle, whose stream is locked, they are tokens already.
        tokenize: Any = list if reader.owner == "handle" else reader.tokenize
        other = None if self.absent is None else bind(reader, tokenize(self.absent), self.members)
        n = len(choices.trie)
        if n <= MAX_WHOLE:
            leaves = np.flatnonzero(choices.trie.core.left())
            answer = yield PlanStep(tokens, Query("scores", choices.few(leaves), leaf_end=LEAF_END), is_beside)
        else:
            n_best = min(self.n_best, n)
            # Members that are weighed need no proof, which takes most of the nodes of a best-first search.
            width, max_nodes = (_WIDTH * n_best, _NODES * n_best) if other else (0, MAX_NODES)
            best = Query("best", choices.trie, leaf_end=LEAF_END, n_best=n_best, beam_width=width, max_nodes=max_nodes)
            answer = yield PlanStep(tokens, best, is_beside)
            leaves = answer.leaves
        logprobs = answer.logprobs[: len(leaves)]
        check_finite(logprobs)
        found, figures = [choices.index(leaf) for leaf in leaves.tolist()], answer.figures
        n_evaluated, prior = int(figures.n_evaluated), None
        if other:
            without, bound = other
            own = leaves if bound.leaf_of is None else bound.leaf_of[found]
            known = reader.known if self.remembers else {}
            prior, n_more = yield from scores_of_found(known, without, bound, own, LEAF_END)
            n_evaluated += n_more
        mass, is_whole = math.fsum(np.exp(logprobs)), len(leaves) == n
        named = zip(found, logprobs.tolist(), strict=True)
        return Found(
            logprobs,
            np.array([len(choices.trie.core.sequence(leaf)) for leaf in leaves.tolist()], np.float64),
            mass,
            len(tokens),
            n_evaluated,
            members=tuple(Candidate(*choices.member(i), i, logprob) for i, logprob in named),
            prior=prior,
            gap=0.0 if is_whole else math.inf if other else figures.gap,
            rest=0.0 if is_whole else max(0.0, min(1.0, figures.mass_max) - mass),
        )

    def alone(self, llm: Llama) -> Found:
        """Answer it on an empty sequence, so that rounding does not depend on what was evaluated before."""
        running = begin(llm, self.prompt, replace(self, remembers=False))
        with chooser(llm) as stream:
            stream.splice(0, [])
            found = drive(running, stream)
        assert isinstance(found, Found)
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class SetAsked(FormView):
    """A question whose options are the members of a set, in a form that does not list them; its own only view."""

    options: tuple[Any, ...] = ()
    offset: int = 0
    members: Members
    top: int
    calibrator: Calibrator | None
    """None: the answer has the model's own probabilities."""
    profile: str | None
    """Name of the profile that the form comes from."""
    has_prior: ClassVar = False  # as it reads the prior of the members that it finds

    @classmethod
    def of(cls, question: Choice[Any], forms: Forms, options: DecideOptions, profile: str | None) -> SetAsked:
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

    @property
    def views(self) -> Sequence[SetAsked]:
        """The view."""
        return (self,)

    def reading_by(self, prompt_of: Callable[[bool], Prompt], *, is_prior: bool) -> Reading:
        """Return the reading after a prompt."""
        n_best = self.top if self.calibrator is None else max(self.top, N_FOUND)
        absent = None if self.calibrator is None else prompt_of(True)
        return SetReading(prompt_of(is_prior), members=self.members, n_best=n_best, absent=absent)

    def answer(self, scored: Sequence[Scored], priors: Sequence[Scored]) -> Answered[Any]:
        """Return the answer: the best of the members that were found, by their scores without the prior."""
        (found,) = scored
        assert isinstance(found, Found)
        weights = found.logprobs
        if found.prior is not None:
            weights = contextual(weights, found.prior, found.lengths, self.form.temperature)
        order = np.argsort(-weights, kind="stable")[: self.top]
        shares = softmax(weights[order]).tolist()
        candidates = [replace(found.members[i], share=p) for i, p in zip(order.tolist(), shares, strict=True)]
        probabilities: dict[Any, float] = {}
        for one, p in zip(candidates, shares, strict=True):
            probabilities[one.value] = probabilities.get(one.value, 0.0) + p
        kind: Any = "raw" if self.calibrator is None or found.prior is None else self.calibrator.kind
        return ChoiceAnswer(
            max(probabilities, key=probabilities.__getitem__),
            probabilities,
            min(found.mass, 1.0),
            kind,
            QuestionStats(found.n_prompt, found.n_evaluated),
            profile=self.profile,
            candidates=tuple(candidates),
            gap=found.gap,
            rest=found.rest,
        )


Asked: TypeAlias = FormAsked | SetAsked
"""A question in the forms in which the model reads it."""
