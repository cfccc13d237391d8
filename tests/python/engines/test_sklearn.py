from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from token_trie import ArgumentError, Calibration, Choice, choose_many, decide
from token_trie.engines.sklearn import TrieClassifier
from token_trie.errors import CalibrationError

RNG = np.random.default_rng(0)
TEXTS = [f"{'Paris' if i % 2 else 'Pizza'} {RNG.integers(1000)} {'yes' if i % 3 else 'no'}" for i in range(120)]
CLASSES = np.array(["cities", "food"])[[i % 2 for i in range(120)]]
PROMPT = "{text}\nTopic:"


@pytest.fixture(scope="module")
def path(model_paths: dict[str, Path]) -> str:
    return str(model_paths["tiny"])


def classifier(path: str, **options: Any) -> TrieClassifier:
    return TrieClassifier(path, PROMPT, **{"n_ctx": 512, "n_threads": 1, **options})


def test_probabilities_are_those_of_choose_many(path: str, tiny: Any) -> None:
    own = classifier(path, calibration=None).fit(TEXTS[:10], CLASSES[:10])
    prompts = [PROMPT.format(text=text) for text in TEXTS[:10]]
    decisions = choose_many(tiny, prompts, ["cities", "food"], probabilities=True)
    assert own.predict_proba(TEXTS[:10]) == pytest.approx(np.array([one.probabilities for one in decisions]), abs=0.02)
    assert own.classes_.tolist() == ["cities", "food"]
    assert set(own.predict(TEXTS[:10])) <= set(own.classes_)


def test_a_question_is_asked_as_decide_asks_it(path: str, tiny: Any) -> None:
    described = {1: "yes Paris", 0: "Pizza"}
    own = TrieClassifier(path, question="Which?", choices=described, calibration=None, n_ctx=512, n_threads=1)
    own.fit(TEXTS[:6], [1, 0] * 3)
    for text, p in zip(TEXTS[:6], own.predict_proba(TEXTS[:6]), strict=True):
        answer = decide(tiny, text, Choice("Which?", {0: "Pizza", 1: "yes Paris"}))
        assert p == pytest.approx(list(answer.probabilities.values()), abs=0.02)


@pytest.mark.parametrize("kind", ["bias", "temperature", "batch", "head"])
def test_it_is_fitted_as_a_calibration_is(path: str, tiny: Any, kind: Any) -> None:
    own = classifier(path, calibration=kind).fit(TEXTS, CLASSES)
    prompts = [PROMPT.format(text=text) for text in TEXTS]
    gold = None if kind == "batch" else CLASSES
    expected = Calibration.fit(tiny, prompts, gold, ["cities", "food"], kind=kind)
    assert own.calibration_ is not None
    assert own.calibration_.held_out is None  # it is scikit-learn that cross-validates
    assert own.calibration_.fitted.bias == pytest.approx(expected.fitted.bias, abs=0.1)
    assert own.predict_proba(TEXTS[:5]).sum(axis=1) == pytest.approx(1)


def test_parameters_clones_and_pickles_are_small_and_whole(path: str) -> None:
    own = classifier(path, calibration="bias").fit(TEXTS[:60], CLASSES[:60])
    assert clone(own).get_params() == own.get_params()
    pickled = pickle.dumps(own)
    assert len(pickled) < 20_000
    assert pickle.loads(pickled).predict_proba(TEXTS[:5]) == pytest.approx(own.predict_proba(TEXTS[:5]))
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).predict_proba(['Pizza 1 no'])[0, 0])"
    done = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, check=True)
    assert float(done.stdout) == pytest.approx(own.predict_proba(["Pizza 1 no"])[0, 0], abs=0.02)


def test_scikit_learn_validates_and_searches_with_it(path: str) -> None:
    found = cross_validate(classifier(path, calibration="bias"), TEXTS, CLASSES, cv=3, scoring="neg_log_loss")
    assert len(found["test_score"]) == 3
    assert np.isfinite(found["test_score"]).all()
    own = TrieClassifier(path, question="Which?", calibration="batch", n_ctx=512, n_threads=1)
    search = GridSearchCV(own, {"form": ["unlisted", "listed"]}, cv=2, scoring="accuracy").fit(TEXTS[:40], CLASSES[:40])
    assert search.best_params_["form"] in ("unlisted", "listed")


def test_scikit_learn_calibrates_it(path: str) -> None:
    own = classifier(path).fit(TEXTS[:60], CLASSES[:60])
    found = CalibratedClassifierCV(FrozenEstimator(own), method="temperature").fit(TEXTS[60:], CLASSES[60:])
    assert found.predict_proba(TEXTS[:5]).sum(axis=1) == pytest.approx(1)
    by_folds = CalibratedClassifierCV(classifier(path, calibration="head"), cv=3).fit(TEXTS[:60], CLASSES[:60])
    assert by_folds.predict_proba(TEXTS[:5]).sum(axis=1) == pytest.approx(1)


def test_scikit_learn_keeps_equal_texts_in_one_fold(path: str) -> None:
    # Labels are noise: they can be known only from the same text among the rows that a fit has seen.
    texts = [text for text in TEXTS[:40] for _ in range(4)]
    labels = np.repeat(np.random.default_rng(1).integers(4, size=40), 4)
    groups = np.repeat(np.arange(40), 4)
    right = cross_val_score(classifier(path, calibration="head"), texts, labels, groups=groups, cv=GroupKFold(4))
    assert right.mean() < 0.45


def test_conformal_sets_over_it_cover_what_they_promise(path: str) -> None:
    # Labels drawn from its own probabilities, so that there is something to be sure and unsure about.
    own = classifier(path, calibration="bias").fit(TEXTS, np.random.default_rng(2).permutation(CLASSES))
    texts = np.array([f"{'Paris' if i % 2 else 'Pizza'} {i}" for i in range(1200)])
    p = own.predict_proba(texts)
    labels = own.classes_[(np.random.default_rng(1).random(len(texts)) > p[:, 0]).astype(int)]
    from mapie.classification import SplitConformalClassifier  # which takes seconds to import

    conformal = SplitConformalClassifier(FrozenEstimator(own), confidence_level=0.9, conformity_score="lac")
    conformal.conformalize(texts[:600], labels[:600])
    _, sets = conformal.predict_set(texts[600:])
    place = (labels[600:] == own.classes_[1]).astype(int)
    assert sets[np.arange(600), place, 0].mean() == pytest.approx(0.9, abs=0.03)


def test_threads_share_a_model(path: str) -> None:
    own = classifier(path, calibration=None).fit(TEXTS[:4], CLASSES[:4])
    texts = [[f"{text} {i}" for text in TEXTS[:8]] for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(own.predict_proba, texts))
    for one, other in zip(found, map(own.predict_proba, texts), strict=True):
        assert one == pytest.approx(other)


@pytest.mark.parametrize(
    ("options", "texts", "classes", "message"),
    [
        ({}, "a text", ["a"], "X must be a list of texts, not str"),
        ({}, ["a", 1], ["a", "b"], r"X\[1\] must be a text, not int"),
        ({}, ["a", "b"], ["a"], "y: 1 classes for 2 texts"),
        ({"prompt": "none"}, TEXTS, CLASSES, r"prompt: no \{column\} in it"),
        ({"prompt": "{text} {other}"}, TEXTS, CLASSES, r"prompt: is to have \{text\}"),
        ({"choices": {"food": "Pizza"}}, TEXTS, CLASSES, "choices: nothing for the class 'cities'"),
        ({"form": "listed"}, TEXTS, CLASSES, "form, orders and examples: go with a Choice"),
        ({"calibration": "guess"}, TEXTS, CLASSES, "kind"),
    ],
)
def test_what_is_wrong_is_refused_by_name(path: str, options: Any, texts: Any, classes: Any, message: str) -> None:
    own = TrieClassifier(path, **{"prompt": PROMPT, "n_ctx": 512, "n_threads": 1, **options})
    with pytest.raises((ArgumentError, CalibrationError), match=message):
        own.fit(texts, classes)
