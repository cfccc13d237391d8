"""Calibrations that were fitted on questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Serving
from token_trie import Calibration, Choice, Predicate, decide
from token_trie.native.lifetime import attachment
from token_trie.questions.decide import prepare
from token_trie.questions.form import PreparedQuestion
from token_trie.questions.options import DecideOptions
from token_trie.serve.service import Calibrations

TEAM = Choice("Which team?", {"billing": "yes Paris", "sales": None, "other_things": "Pizza"})
BODY = {"type": "choice", "instructions": "Which team?", "criteria": dict(TEAM.options)}
URGENT = {"type": "noul", "instructions": "Is it urgent?"}
STATES = [f"{'Paris' if i % 2 else 'Pizza'} {i} was charged" for i in range(40)]
GOLD = ["billing" if i % 3 else "sales" for i in range(36)] + ["other_things"] * 4


@pytest.mark.parametrize("kind", ["bias", "head"])
def test_a_question_is_answered_by_what_was_fitted_on_it(
    tiny: Any, model_paths: dict[str, Path], tmp_path: Path, kind: Any
) -> None:
    fitted = Calibration.fit(tiny, STATES, GOLD, TEAM, kind=kind, n_folds=3)
    fitted.save(tmp_path / "team.json")
    with Serving(model_paths["tiny"], "--calibration", str(tmp_path / "team.json")) as serving:

        def ask(**more: Any) -> Any:
            body = {"state": STATES[0], "questions": {"team": BODY}, **more}
            answer = httpx.post(f"{serving.url}/v1/systemone", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            return answer.json()

        answer = ask()["answers"]["team"]
        expected = decide(tiny, STATES[0], TEAM, calibration=fitted)
        assert answer["x_calibration"] == "fitted"
        assert answer["probabilities"] == pytest.approx(expected.probabilities, abs=0.03)
        assert ask(x_calibration=None)["answers"]["team"]["x_calibration"] == "raw"
        assert ask(x_form="listed")["answers"]["team"]["x_calibration"] == "contextual"
        assert ask(questions={"u": URGENT})["answers"]["u"]["x_calibration"] == "contextual"
        decided = httpx.post(
            f"{serving.url}/v1/decisions",
            json={
                "model": "any",
                "input": STATES[0],
                "questions": [
                    {
                        "type": "choice",
                        "name": "team",
                        "instructions": "Which team?",
                        "choices": [{"value": name, "description": text} for name, text in TEAM.options.items() if text]
                        + [{"value": "sales"}],
                    }
                ],
            },
            timeout=60,
        ).json()
        # The same options in another order are another question.
        assert decided["answers"][0]["x_calibration"] == "contextual"


def test_a_calibration_of_several_forms_is_taken(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attachment(tiny).known, "profile", "large instruct")
    path = tmp_path / "team.json"
    Calibration.fit(tiny, STATES, GOLD, TEAM, kind="bias", n_folds=3).save(path)
    calibrations = Calibrations([path])
    calibrations.require_fitting(tiny)
    options = DecideOptions()
    asked = calibrations.apply(prepare(TEAM, options, tiny), options)
    assert isinstance(asked, PreparedQuestion)
    assert asked.calibrator is not None
    assert asked.calibrator.binding is not None


def test_a_file_that_fits_nothing_is_refused_when_the_server_starts(
    tiny: Any, model_paths: dict[str, Path], tmp_path: Path
) -> None:
    Calibration.fit(tiny, STATES, GOLD, TEAM, kind="temperature", n_folds=3).save(tmp_path / "other.json")
    Calibration.fit(tiny, STATES, None, Predicate("Is it?"), kind="batch").save(tmp_path / "fine.json")
    Calibration.fit(tiny, STATES, GOLD, ["billing", "sales", "other_things"], kind="bias").save(
        tmp_path / "prompt.json"
    )
    (tmp_path / "broken.json").write_text("{")
    for model, name, message in (
        ("smollm2", "other.json", "another model"),
        ("tiny", "prompt.json", "was fitted on prompts"),
        ("tiny", "broken.json", "broken.json"),
    ):
        with pytest.raises(AssertionError, match=message):  # noqa: SIM117
            with Serving(model_paths[model], "--calibration", str(tmp_path / name)):
                pass
    with Serving(model_paths["tiny"], "--calibration", str(tmp_path / "fine.json")):
        pass
