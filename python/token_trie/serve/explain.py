"""``POST /v1/x_explain``: the tree of probabilities of one question, for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from token_trie.arrays import Floats
from token_trie.decisions.bound_choices import Reader
from token_trie.decisions.run import Plan, PlanStep, Prefix, Request
from token_trie.llama.query import Query
from token_trie.questions.decide import prior_steps, priors_in
from token_trie.questions.form import FormAsked, FormView
from token_trie.questions.question import Answered
from token_trie.questions.scores import Reading, Scored
from token_trie.serve.engine import Engine
from token_trie.serve.limits import Limits, invalid, refusing
from token_trie.serve.sets import Sets
from token_trie.serve.systemone import ChoiceShape, SystemOneRequest
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie
from token_trie.show.explain import Branch, Explored, children_of, flat, pieces_of, shares_of
from token_trie.show.trie import ROOT, clip

_MAX_BRANCHES = 60
_WIDTH = 120
"""Maximum length of a shown text, in characters."""


async def explain(engine: Engine, body: SystemOneRequest, sets: Sets, limits: Limits, model: str) -> dict[str, Any]:
    """Answer a request of one question, with the tree of its first reading.

    Raises
    ------
    RefusedError
        The request cannot be answered; names the place.
    """
    if len(body.questions) != 1:
        raise invalid(f"{len(body.questions)}, where one is explained at a time", ("questions",), "too_long")
    reader = await body.reader(engine, sets, limits)
    [(place, asked)], [shape] = reader.asked.items(), body.questions.values()
    if isinstance(shape, ChoiceShape) and shape.x_set is not None:
        raise invalid("a set is not explained; its options would have to be in the request", (*place, "x_set"))
    if isinstance(asked, FormAsked) and asked.calibrator is not None and asked.calibrator.needs_state:
        asked = replace(asked, calibrator=reader.options.calibrator)  # a head has no tree to show
    reader = replace(reader, asked={place: asked}, counts=False)
    first = asked.views[0]

    def explore() -> tuple[Prompt, ExploreRequest]:
        reading = first.reading(engine.llm, reader.state)
        return reading.prompt, ExploreRequest(asked.wanting(reading))

    with refusing(place):
        answer = (await reader.answers())[place]
        prompt, scored, leaves, explored = (await engine.read(explore)).result
        prior = priors_in({place: asked}, [await reader.read(step) for step in prior_steps({place: asked})])[place][0]
        explained = await engine.on_worker(lambda: _explained(first, scored, leaves, explored, prior, answer))
        return {
            "model": model,
            "answer": shape.answer_json(answer),
            "prompt": prompt,
            "readings": reader.n_readings,
            **explained,
        }


def _explained(
    view: FormView,
    scored: Scored,
    leaves: Sequence[int],
    explored: Explored,
    prior: Scored | None,
    answer: Answered[Any],
) -> dict[str, Any]:
    names = [str(value).lower() if isinstance(value, bool) else str(value) for value in answer.probabilities]
    own = _positions(view, names)
    if best := own.get(names[list(answer.probabilities).index(answer.value)]):
        explored = replace(explored, exact_leaf=leaves[max(best, key=lambda i: float(scored.logprobs[i]))])
    meant: dict[int, list[str]] = {}
    for name, positions in own.items():
        for leaf in dict.fromkeys(leaves[i] for i in positions):
            meant.setdefault(leaf, []).append(name)
    return {
        "options": [
            {
                "option": name,
                "probability": p,
                "raw": _log_mass(scored, own.get(name)),
                "prior": None if prior is None else _log_mass(prior, own.get(name)),
                "tokens": float(scored.lengths[own[name]].mean()) if name in own else None,
            }
            for name, p in zip(names, answer.probabilities.values(), strict=True)
        ],
        "greedy": meant.get(explored.greedy_leaf, []),
        "branches": _branches(explored, meant),
    }


def _positions(view: FormView, names: list[str]) -> dict[str, list[int]]:
    """Return the positions of each option's texts in a reading, for options that have some."""
    positions = {text: i for i, text in enumerate(view.weighing.texts)}
    texts = view.form.texts(view.listed)  # in the order of the question
    return {name: [positions[text] for text in own] for name, own in zip(names, texts, strict=False)}


def _log_mass(scored: Scored, positions: list[int] | None) -> float | None:
    """Return the natural logarithm of the total probability of texts."""
    mass = float(np.logaddexp.reduce(scored.logprobs[positions])) if positions else -math.inf
    return mass if math.isfinite(mass) else None


def _branches(explored: Explored, meant: dict[int, list[str]]) -> list[dict[str, Any]]:
    """Return the largest branches, depth first from the root, each with the index of its parent."""
    rows: list[dict[str, Any]] = []
    waiting: list[tuple[Branch, int | None]] = [(explored.branches(_MAX_BRANCHES), None)]
    while waiting:
        branch, parent = waiting.pop()
        waiting += [(child, len(rows)) for child in reversed(branch.children)]
        rows.append(
            {
                "parent": parent,
                "text": clip(b"".join(explored.pieces[token] for token in branch.tokens), _WIDTH),
                "tokens": list(branch.tokens),
                "share": branch.share,
                "mass": branch.mass,
                "texts": branch.n_leaves,
                "options": None if branch.leaf is None else meant.get(branch.leaf, []),
                "greedy": branch.greedy,
                "answer": branch.exact,
                "parting": branch.parting,
                "more": {"texts": branch.n_more, "mass": branch.more} if branch.n_more else None,
            }
        )
    return rows


def _greedy(trie: TokenTrie, shares: Floats) -> int:
    node = ROOT
    while below := children_of(trie, node):
        best = max(below, key=lambda child: float(shares[child]))
        leaf = trie.core.leaf(node)
        if leaf is not None and 1 - float(shares[list(below)].sum()) > float(shares[best]):
            return leaf
        node = best
    leaf = trie.core.leaf(node)
    assert leaf is not None
    return leaf


@dataclass(frozen=True)
class ExploreRequest(Request[tuple[str, Scored, Sequence[int], Explored]]):
    """A request for the probability of each of several texts, and of each branch on its path.

    The result has the text that the model read, including control tokens, the scores of the texts, the leaf of each,
    and the tree, where the most probable text is the exact answer.
    """

    texts: Reading

    def steps(self, reader: Reader, prefix: Prefix) -> Plan[tuple[str, Scored, Sequence[int], Explored]]:
        """Score the texts and the branches."""
        tokens, choices = self.texts.bound(reader, prefix.tokens)
        prompt = reader.vocab.detokenize(tokens, special=True).decode(errors="replace")
        pieces, trie = pieces_of(reader, choices.trie), flat(choices.trie)
        scored = yield from self.texts.steps(reader, prefix)
        stepwise = (yield PlanStep(tokens, Query("scores", choices.trie, branches=True))).logprobs
        scores = scored.logprobs
        leaves = range(len(scores)) if choices.leaf_of is None else choices.leaf_of.tolist()
        logprobs = np.full(len(trie), -np.inf)
        np.logaddexp.at(logprobs, leaves, scores)
        weights = np.exp(logprobs - logprobs.max())
        greedy, best = _greedy(trie, shares_of(trie, stepwise)), leaves[int(scores.argmax())]
        return prompt, scored, leaves, Explored(trie, greedy, best, weights / weights.sum(), stepwise, pieces)
