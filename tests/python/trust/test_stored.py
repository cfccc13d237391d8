"""Files of calibrations that somebody else wrote."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import clouds, readings_of
from token_trie import Calibration
from token_trie.errors import CalibrationError


def made(kind: Any) -> Calibration:
    states, gold = clouds(60, 3, 4, np.random.default_rng(0))
    return Calibration.of(readings_of(4 * np.eye(3)[gold] + states[:, :3], states), gold, kind, n_folds=4)


STORED = {kind: made(kind).to_dict() for kind in ("temperature", "bias", "head")}


@pytest.mark.parametrize("kind", list(STORED))
def test_a_file_gives_the_same_probabilities_and_gates(kind: str, tmp_path: Path) -> None:
    own = made(kind)
    own.save(tmp_path / "f.json")
    again = Calibration.load(tmp_path / "f.json")
    states, gold = clouds(60, 3, 4, np.random.default_rng(0))
    scores = 4 * np.eye(3)[gold]
    assert again.log_weights(scores, states) == pytest.approx(own.log_weights(scores, states), rel=1e-5, abs=1e-5)
    assert again.gate(0.7) == own.gate(0.7)
    assert again.gate(0.7).threshold is not None


FILE = """{"format": "token-trie calibration", "version": 1, "kind": "bias", "base": "contextual", "n_rows": 3,
 "temperature": 2.0, "bias": [0.5, -0.5], "head": null,
 "held_out": {"n_folds": 2, "n_ways": 1, "calibrated": {"accuracy": 0.5, "log_loss": 0.6, "brier": 0.2, "ece": 0.1},
  "raw": {"accuracy": 0.5, "log_loss": 0.9, "brier": 0.3, "ece": 0.2}, "confidence": [0.9, 0.8, 0.7],
  "is_right": [1, 0, 1], "groups": [0, 1, 1]},
 "binding": {"model": "sha256:0", "llama": "1", "wording": "[]", "classes": ["a", "b"], "leaf_end": "longest",
  "spelled": "", "columns": ""}}"""


def test_a_file_that_an_earlier_release_wrote_opens_and_is_written_again_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text(FILE)
    read = Calibration.load(tmp_path / "f.json")
    assert read.log_weights(np.array([[1.0, 2.0]]), None).tolist() == [[0.75, 0.75]]
    assert read.needs_prior  # so that the question's prior is subtracted
    assert read.held_out is not None
    assert read.held_out.confidence.tolist() == [0.9, 0.8, 0.7]
    read.save(tmp_path / "g.json")
    assert json.loads((tmp_path / "g.json").read_text()) == json.loads(FILE)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("format", "other", "format: this is no token-trie calibration"),
        ("version", 2, "version: 2, and this release reads 1"),
        ("version", "1", "version must be a count, not str"),
        ("kind", "magic", "kind must be one of"),
        ("kind", "bias", "head: a fit of the kind 'bias' has none"),
        ("head", None, "head: a fit of the kind 'head' has one"),
        ("base", 3, "base must be a text, not int"),
        ("temperature", 0, "temperature and head.scale: a number that is not above 0"),
        ("temperature", float("nan"), "temperature must be finite numbers"),
        ("temperature", 10**400, "temperature must be finite numbers"),
        ("temperature", True, "temperature must be a number, not bool"),
        ("bias", [0.0, 1.0], r"bias must have shape \(3,\), not \(2,\)"),
        ("bias", ["a", "b", "c"], "bias must be finite numbers"),
        ("n_rows", -1, "n_rows must be a count, not int"),
        ("binding", [], "binding must be an object, not list"),
        ("binding.classes", ["a", "a", "b"], "binding.classes must be two or more texts, each once"),
        ("binding.classes", ["a", 3], "binding.classes must be two or more texts"),
        ("binding.model", None, "binding.model must be a text, not NoneType"),
        ("head.weights", [[1.0] * 4] * 2, r"head.weights must have shape \(3, .*, not \(2, 4\)"),
        ("head.weights", [[1.0, 2.0], [1.0], [1.0]], "head.weights"),
        ("head.scale", [0.0] * 7, "head.scale"),
        ("held_out.confidence", [1.5] * 60, "held_out.confidence: a number outside 0 to 1"),
        ("held_out.groups", [0] * 59, r"held_out.groups must have shape \(60,\), not \(59,\)"),
        ("held_out.raw", {}, "held_out.raw.accuracy: missing"),
    ],
)
def test_faults_are_named_by_their_position(place: str, value: Any, message: str, tmp_path: Path) -> None:
    given = copy.deepcopy(STORED["head"])
    *outer, last = place.split(".")
    at = given
    for name in outer:
        at = at[name]
    at[last] = value
    path = tmp_path / "f.json"
    path.write_text(json.dumps(given))
    with pytest.raises(CalibrationError, match=message) as caught:
        Calibration.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}'])
def test_a_file_of_something_else_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f.json").write_bytes(content)
    with pytest.raises(CalibrationError, match=r"f\.json"):
        Calibration.load(tmp_path / "f.json")


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "f.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CalibrationError, match="larger than"):
        Calibration.load(tmp_path / "f.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_value_anywhere_is_read_or_refused(data: Any) -> None:
    given = copy.deepcopy(STORED[data.draw(st.sampled_from(list(STORED)))])
    at: Any = given
    while True:
        key = data.draw(st.sampled_from(list(at) if isinstance(at, dict) else range(len(at))))
        if isinstance(at[key], (dict, list)) and at[key] and data.draw(st.booleans()):
            at = at[key]
            continue
        at[key] = data.draw(JSON)
        break
    try:
        read = Calibration.from_dict(given)
        states = np.zeros((2, 4)) if read.needs_state else None
        found = read.log_weights(np.zeros((2, len(read.classes))), states)
    except CalibrationError:
        return
    assert np.isfinite(found).all()
