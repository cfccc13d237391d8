from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError, Choice, Form, decide
from token_trie.native.lifetime import attachment
from token_trie.questions.form import lists_options
from token_trie.questions.options import FORMS, PROFILES, Profile, keep_profile, profile_of
from token_trie.trust.profile import _OF_TYPE, CANDIDATES, KNOWN, _chosen, measure_profile

TEAM = Choice("Which team?", ["billing", "sales"])
FORMS_OF_OTHERS = (FORMS["letters"], FORMS["unlisted"])


@pytest.fixture
def own_cache(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the tiny model no measured profile, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = attachment(tiny).known
    known.pop("profile", None)
    yield tiny
    known.pop("profile", None)


def test_a_kept_profile_is_found_for_its_model_alone(own_cache: Any, smollm2: Any) -> None:
    profile = Profile("measured", FORMS_OF_OTHERS, (FORMS["listed"],), (FORMS["unlisted"],))
    assert profile_of(own_cache) is PROFILES["plain"]
    keep_profile(own_cache, profile)
    assert profile_of(own_cache) == profile
    attachment(own_cache).known.pop("profile")
    assert profile_of(own_cache) == profile
    answer = decide(own_cache, "Help!", TEAM)
    assert answer.profile == "measured"
    assert answer == decide(own_cache, "Help!", TEAM, form=FORMS_OF_OTHERS)
    attachment(smollm2).known.pop("profile", None)
    assert profile_of(smollm2) is PROFILES["plain"]


FILE = """{"format": "token-trie profile", "version": 1, "name": "measured",
 "choice": [{"template": "{{ state }}\\n{{ instructions }}", "reads": "names", "chat": true, "absent": "N/A",
  "temperature": 1.0, "prior": false, "weight": 2.0}],
 "predicate": [{"template": "{{ state }}\\n{{ instructions }}"}], "score": [{"template": "{{ state }}"}]}"""


def test_a_file_that_an_earlier_release_wrote_opens(own_cache: Any) -> None:
    keep_profile(own_cache, PROFILES["plain"]).write_text(FILE)
    attachment(own_cache).known.pop("profile")
    template = "{{ state }}\n{{ instructions }}"
    choice = Form(template, reads="names", chat=True, prior=False, weight=2.0)
    assert profile_of(own_cache) == Profile("measured", (choice,), (Form(template),), (Form("{{ state }}"),))


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "{}",
        '{"format": "token-trie profile", "version": 2, "choice": [], "predicate": [], "score": []}',
        '{"format": "token-trie profile", "version": 1, "choice": [], "predicate": [], "score": []}',
        '{"format": "token-trie profile", "version": 1, "choice": [{"a": 1}]}',
    ],
)
def test_a_damaged_profile_is_an_error_that_names_its_file(own_cache: Any, damage: str) -> None:
    path = keep_profile(own_cache, PROFILES["plain"])
    path.write_text(damage)
    attachment(own_cache).known.pop("profile")
    with pytest.raises(ArgumentError, match=r"profiles.*doctor --profile"):
        decide(own_cache, "Help!", TEAM)


def test_a_profile_is_measured_on_the_known_questions(own_cache: Any) -> None:
    seen: list[str] = []
    profile, trials = measure_profile(own_cache, seen.append)
    assert seen[0] == "choice: unlisted"
    assert {kind: trial.n for kind, trial in trials.items()} == {"choice": 24, "predicate": 16, "score": 12}
    for kind, trial in trials.items():
        forms = getattr(profile, kind)
        assert [replace(form, weight=1.0) for form in forms] == [CANDIDATES[name] for name in trial.names]
        assert trial.losses["chosen"] <= trial.losses["by file"]
    json.dumps({kind: vars(trial) for kind, trial in trials.items()})


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_forms_of_each_profile_are_among_those_that_are_measured(profile: Profile) -> None:
    for kind, names in _OF_TYPE.items():
        measured = [CANDIDATES[name] for name in names]
        assert all(replace(form, weight=1.0) in measured for form in getattr(profile, kind))


def test_known_questions_have_their_answers() -> None:
    for question, rows in KNOWN:
        assert len(rows) == len({state for state, _ in rows})
        assert {gold for _, gold in rows} == set(range(len(question.values)))


def test_the_forms_by_the_file_stay_unless_others_are_clearly_better() -> None:
    def logs(p: float) -> list[tuple[Any, int]]:
        return [(np.log([p + 0.01 * (i % 3), 1 - p - 0.01 * (i % 3)]), 0) for i in range(20)]

    forms = {"a": FORMS["unlisted"], "b": FORMS["listed"]}
    measured = {"a": logs(0.5), "b": logs(0.9)}
    chosen, trial = _chosen(measured, [("a", 1.0)], (forms["a"],), forms)
    assert (chosen, trial.names) == ((forms["b"],), ("b",))
    assert trial.losses["by file"] > trial.losses["chosen"]
    noisy = [(logs(0.9) if i % 2 else logs(0.1))[i] for i in range(20)]
    chosen, trial = _chosen({"a": logs(0.5), "b": noisy}, [("a", 1.0)], (forms["a"],), forms)
    assert chosen == (forms["a"],)


def test_forms_that_list_options_are_known() -> None:
    assert [lists_options(FORMS[name]) for name in ("unlisted", "listed", "letters")] == [False, True, True]
