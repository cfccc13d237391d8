"""Profiles by measurement: the forms that answer shipped questions best."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from token_trie.arrays import Floats
from token_trie.decisions.many import Many, Results
from token_trie.native.core import Llama
from token_trie.questions.decide import priors_of, read_questions
from token_trie.questions.form import Form, FormAsked, softmax
from token_trie.questions.options import (
    BRIEFLY,
    FORMS,
    FROM_LIST,
    LIST,
    MEASURED,
    PROFILES,
    DecideOptions,
    Profile,
    profile_by_file,
)
from token_trie.questions.question import Choice, Predicate, Question, Score
from token_trie.questions.scores import Reading, Scored, score_all
from token_trie.sets.prompt import has_chat_template

_LISTED_BEFORE = f"{LIST}\nText:\n{{{{ state }}}}\n\nAnswer with one of the names above alone."

CANDIDATES = {
    "unlisted": FORMS["unlisted"],
    "unlisted, no prior": replace(FORMS["unlisted"], prior=False),
    "unlisted, chat": BRIEFLY,
    "unlisted, chat, dots": PROFILES["large instruct"].choice[1],
    "unlisted, chat, no prior": replace(BRIEFLY, prior=False),
    "listed before, chat": Form(_LISTED_BEFORE, reads="names", chat=True),
    "listed, chat": FROM_LIST,
    "listed": FORMS["listed"],
    "listed, no prior": replace(FORMS["listed"], prior=False),
    "letters": FORMS["letters"],
    "letters, no prior": replace(FORMS["letters"], prior=False),
    "unlisted, sharper": PROFILES["large instruct"].predicate[0],
    "listed, sharper": PROFILES["large instruct"].predicate[1],
}
"""Forms that are measured, by name."""

_OF_TYPE = {
    "choice": (
        *("unlisted", "unlisted, chat", "unlisted, chat, dots", "listed before, chat", "listed, chat"),
        *("listed", "listed, no prior", "letters, no prior"),
    ),
    "predicate": (
        *("unlisted", "unlisted, no prior", "unlisted, chat, no prior", "listed, no prior"),
        *("unlisted, sharper", "listed, sharper"),
    ),
    "score": ("unlisted", "unlisted, chat", "listed", "letters", "letters, no prior"),
}
_MAX_FORMS = 3
_MIN_P = 1e-4


def _read_known() -> list[tuple[Question, list[tuple[str, int]]]]:
    types: dict[str, Any] = {"choice": Choice, "predicate": Predicate, "score": Score}
    shipped = json.loads(Path(__file__).with_name("known_questions.json").read_text(encoding="utf-8"))
    found = []
    for one in shipped:
        rows, kind = one.pop("rows"), one.pop("type")
        found.append((types[kind](**one), [(state, gold) for state, gold in rows]))
    return found


KNOWN = _read_known()
"""Each question, with states and the positions of their answers."""


@dataclass(frozen=True)
class Trial:
    """Measurements of one type of question."""

    n: int
    """Number of states with known answers."""
    names: tuple[str, ...]
    """Names of the forms that were chosen."""
    losses: dict[str, float]
    """Log loss of each candidate, and of the choice as "chosen" and of the file's profile as "by file"."""
    rights: dict[str, float]
    """Share of right answers, likewise."""


def measure_profile(llm: Llama, on_form: Callable[[str], object] = str) -> tuple[Profile, dict[str, Trial]]:
    """Return the profile that answers the shipped questions best, and the measurements of each type of question.

    The forms of the profile by the file are kept, unless others have a lower log loss by more than its standard error.
    `on_form` is called with the type of question and the name of each form before it is measured. Errors are those of
    `decide_many`.
    """
    by_file, forms, trials = profile_by_file(llm), dict[str, tuple[Form, ...]](), dict[str, Trial]()
    for kind, names in _OF_TYPE.items():
        default: tuple[Form, ...] = getattr(by_file, kind)
        candidates = {name: CANDIDATES[name] for name in names if not CANDIDATES[name].chat or has_chat_template(llm)}
        measured, scored = {}, dict[str, Scored]()
        for name, form in candidates.items():
            on_form(f"{kind}: {name}")
            measured[name] = _log_weights(llm, kind, form, scored)
        name_of = {form: name for name, form in candidates.items()}
        own = [(name_of[replace(form, weight=1.0)], form.weight) for form in default]
        forms[kind], trials[kind] = _chosen(measured, own, default, candidates)
    return Profile(MEASURED, **forms), trials


def _log_weights(llm: Llama, kind: str, form: Form, scored: dict[str, Scored]) -> list[tuple[Floats, int]]:
    """Return for each state the log-weights of the options, and the position of the answer.

    Forms that differ in their prior alone read the same: what is in `scored`, by digest, is not read again.
    """
    found, options = list[tuple[Floats, int]](), DecideOptions(form=form)
    for question, rows in KNOWN:
        if type(question).__name__.lower() == kind:
            named = read_questions(question, options, llm)
            asked, priors = named[None], priors_of(llm, named, options)[None]
            assert isinstance(asked, FormAsked)
            readings = [asked.views[0].reading(llm, state).tokenized(llm) for state, _ in rows]
            new = [one for one in readings if one.digest not in scored]
            if new:  # as a batch makes a context
                scored |= zip((one.digest for one in new), _scores(llm, new), strict=True)
            for reading, (_, gold) in zip(readings, rows, strict=True):
                found.append((asked.of_options([scored[reading.digest]], priors), gold))
    return found


def _scores(llm: Llama, readings: list[Reading]) -> Results:
    requests = [lambda one=one: one for one in readings]
    many = Many(llm, readings, "state", "decide", progress=False, n_parallel=None, n_ctx=None)
    return Results(many, lambda batch: enumerate(score_all(llm, batch, requests)))


def _chosen(
    measured: dict[str, list[tuple[Floats, int]]],
    own: list[tuple[str, float]],
    default: tuple[Form, ...],
    candidates: dict[str, Form],
) -> tuple[tuple[Form, ...], Trial]:
    def mixed(names: list[tuple[str, float]]) -> tuple[Floats, float]:
        """Return the log loss of each state, and the share of right answers."""
        losses, n_right = [], 0
        for of_forms in zip(*(measured[name] for name, _ in names), strict=True):
            weights = np.average([logs for logs, _ in of_forms], axis=0, weights=[weight for _, weight in names])
            p, gold = softmax(weights), of_forms[0][1]
            losses.append(-np.log(max(float(p[gold]), _MIN_P)))
            n_right += int(p.argmax() == gold)
        return np.array(losses), n_right / len(losses)

    mixes = {
        names: mixed([(name, 1.0) for name in names])
        for n in range(1, _MAX_FORMS + 1)
        for names in itertools.combinations(measured, n)
    }
    best = min(mixes, key=lambda names: float(mixes[names][0].mean()))
    by_file, chosen = mixed(own), mixes[best]
    gains = by_file[0] - chosen[0]
    if gains.mean() <= gains.std() / np.sqrt(len(gains)):
        chosen, best, forms = by_file, tuple(name for name, _ in own), default
    else:
        best = tuple(sorted(best, key=lambda name: float(mixes[name,][0].mean())))
        forms = tuple(candidates[name] for name in best)
    figures = {name: mixes[name,] for name in measured} | {"by file": by_file, "chosen": chosen}
    losses = {name: float(one.mean()) for name, (one, _) in figures.items()}
    return forms, Trial(len(gains), best, losses, {name: right for name, (_, right) in figures.items()})
