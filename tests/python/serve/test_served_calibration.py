"""Calibrations of questions: fitted, and running."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from serving import Serving
from token_trie import Calibration, Choice, Predicate, decide, score
from token_trie.native.lifetime import attachment
from token_trie.questions.decide import asked_of
from token_trie.questions.form import FormAsked, contextual, softmax
from token_trie.questions.options import DecideOptions
from token_trie.serve.calibrations import Calibrations

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

        def ask(path: str = "systemone", **more: Any) -> Any:
            body = {"state": STATES[0], "questions": {"team": BODY}, **more}
            answer = httpx.post(f"{serving.url}/v1/{path}", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            return answer.json()

        answer = ask()["answers"]["team"]
        expected = decide(tiny, STATES[0], TEAM, calibration=fitted)
        assert answer["x_calibration"] == "fitted"
        assert answer["probabilities"] == pytest.approx(expected.probabilities, abs=0.03)
        assert ask(x_calibration=None)["answers"]["team"]["x_calibration"] == "raw"
        assert ask(x_form="listed")["answers"]["team"]["x_calibration"] == "contextual"
        assert ask(questions={"u": URGENT})["answers"]["u"]["x_calibration"] == "contextual"
        assert ask("x_explain")["answer"]["x_calibration"] == ("contextual" if kind == "head" else "fitted")
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
    calibrations.load(tiny)
    options = DecideOptions()
    asked = calibrations.apply(asked_of(TEAM, options, tiny), options)
    assert isinstance(asked, FormAsked)
    assert asked.calibrator is not None
    assert asked.calibrator.binding is not None


def test_a_file_that_fits_nothing_is_refused_when_the_server_starts(
    tiny: Any, model_paths: dict[str, Path], tmp_path: Path
) -> None:
    Calibration.fit(tiny, STATES, GOLD, TEAM, kind="temperature", n_folds=3).save(tmp_path / "other.json")
    Calibration.fit(tiny, STATES, None, Predicate("Is it?")).save(tmp_path / "fine.json")
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


RUNNING_OPTIONS = {"billing": "yes Paris", "sales": None}
RUNNING = {"type": "choice", "instructions": "Which team?", "criteria": RUNNING_OPTIONS}


def ask(serving: Serving, state: str, path: str = "systemone", **more: Any) -> Any:
    body = {"state": state, "questions": {"team": RUNNING}, **more}
    answer = httpx.post(f"{serving.url}/v1/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_prior_is_the_mean_of_all_different_states_from_the_eighth_on(
    tiny: Any, model_paths: dict[str, Path]
) -> None:
    behind = [f"{state}\n\nQuestion: Which team?\nAnswer:" for state in STATES[:12]]
    scores = np.array([score(tiny, prompt, ["yes Paris", "sales"], leaf_end="any") for prompt in behind])
    n_tokens = [len(tiny.tokenize(b"Answer:" + text, add_bos=False)) for text in (b"", b" yes Paris", b" sales")]
    lengths = np.array([n - n_tokens[0] for n in n_tokens[1:]], float)
    with Serving(model_paths["tiny"], "--calibration", "running") as serving:
        for i, state in enumerate(STATES[:12]):
            ask(serving, state, "x_explain")  # which is not counted
            assert ask(serving, state, x_calibration=None)["answers"]["team"]["x_calibration"] == "raw"
            answer = [ask(serving, state) for _ in range(3)][-1]["answers"]["team"]
            if i < 7:
                assert answer["x_calibration"] == "contextual"
                continue
            assert answer["x_calibration"] == "running"
            expected = softmax(contextual(scores[i], scores[: i + 1].mean(axis=0), lengths, 1.0))
            assert list(answer["probabilities"].values()) == pytest.approx(expected, abs=0.02)
        assert ask(serving, "x", x_reproducible=True)["answers"]["team"]["x_calibration"] == "contextual"
        assert ask(serving, "x", x_form="listed")["answers"]["team"]["x_calibration"] == "contextual"


def test_a_file_keeps_them_across_a_restart(model_paths: dict[str, Path], tmp_path: Path) -> None:
    options = ("--calibration", "running", "--priors", str(tmp_path / "p.json"))
    with Serving(model_paths["tiny"], *options) as serving:
        before = [ask(serving, state)["answers"]["team"] for state in STATES[:12]][-1]
    assert "charged" not in (tmp_path / "p.json").read_text()
    with Serving(model_paths["tiny"], *options) as serving:
        again = ask(serving, STATES[:12][-1])["answers"]["team"]
    assert again["x_calibration"] == "running"
    assert again["probabilities"] == pytest.approx(before["probabilities"], abs=0.05)
    assert {path.name for path in tmp_path.iterdir()} == {"p.json"}


def test_a_file_that_is_none_or_of_another_model_is_refused_and_stays(
    model_paths: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "p.json"
    options = ("--calibration", "running", "--priors", str(path))
    with Serving(model_paths["tiny"], *options) as serving:
        ask(serving, STATES[:12][0])
    good = path.read_text()
    for broken, model, told in (
        (good, "bpe", "model: "),
        (good[:-9], "tiny", str(path)),
        ("[]", "tiny", "file: list where an object belongs"),
        (good.replace('"total": [', '"total": [null, '), "tiny", "total: "),
    ):
        path.write_text(broken)
        with pytest.raises(AssertionError) as refused, Serving(model_paths[model], *options):
            pass
        assert told in " ".join(str(refused.value).split()), refused.value
        assert path.read_text() == broken


def test_means_of_another_size_in_the_file_are_begun_anew(model_paths: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    options = ("--calibration", "running", "--priors", str(path))
    with Serving(model_paths["tiny"], *options) as serving:
        for state in STATES[:12]:
            ask(serving, state)
    told = json.loads(path.read_text())
    [[key, one]] = told["questions"].items()
    told["questions"][key]["total"] = [*one["total"], -3.0]
    path.write_text(json.dumps(told))
    with Serving(model_paths["tiny"], *options) as serving:
        assert ask(serving, STATES[:12][0])["answers"]["team"]["x_calibration"] == "contextual"


def test_who_is_killed_leaves_the_file_as_it_was(model_paths: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    options = ("--calibration", "running", "--priors", str(path))
    with Serving(model_paths["tiny"], *options) as serving:
        ask(serving, STATES[:12][0])
    before = path.read_text()
    with Serving(model_paths["tiny"], *options) as serving:
        ask(serving, STATES[:12][1])
        os.kill(serving.pid, signal.SIGKILL)
    assert path.read_text() == before


def test_a_file_wants_priors_that_run_along(model_paths: dict[str, Path], tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="--priors: only with --calibration running"),
        Serving(model_paths["tiny"], "--priors", str(tmp_path / "p.json")),
    ):
        pass
