from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from synthetic import clouds, drawn, readings_of
from token_trie import ArgumentError, Calibration
from token_trie.errors import CalibrationError
from token_trie.trust.fit import _discriminant, measured
from token_trie.trust.fitted import HeldOut
from token_trie.trust.metrics import folds_of, log_softmax, within


def fit_readings(readings: Any, gold: Any, **options: Any) -> tuple[Calibration, HeldOut | None]:
    made = Calibration.of(readings, gold, **{"n_folds": 4, **options})
    return made, made.held_out


def truly(n: int, k: int, seed: int) -> tuple[Any, Any]:
    """Log-probabilities that are right, and classes drawn by them."""
    rng = np.random.default_rng(seed)
    log_p = log_softmax(rng.normal(size=(n, k)) * 2)
    return log_p, drawn(log_p, rng)


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 6), st.floats(0.2, 8.0), st.integers(0, 2**32 - 1))
def test_a_temperature_is_found_again(k: int, temperature: float, seed: int) -> None:
    log_p, gold = truly(1000, k, seed)
    fit, _ = fit_readings(readings_of(log_p * temperature), gold, kind="temperature")
    assert fit.temperature == pytest.approx(temperature, rel=0.25)


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 6), st.floats(0.2, 8.0), st.integers(0, 2**32 - 1))
def test_a_bias_is_found_again(k: int, temperature: float, seed: int) -> None:
    log_p, gold = truly(1000, k, seed)
    shift = np.random.default_rng(seed).normal(size=k) * temperature
    readings = readings_of(log_p * temperature - shift)
    fit, held_out = fit_readings(readings, gold, kind="bias")
    truth = measured(readings.texts, log_p, gold)  # which is off by chance, too
    assert held_out is not None
    assert held_out.calibrated.log_loss < truth.log_loss + 0.02
    assert held_out.calibrated.ece < truth.ece + 0.05
    assert np.abs(np.exp(fit.log_probabilities(readings)) - np.exp(log_p)).max() < 0.2


def test_a_temperature_is_that_of_scikit_learn() -> None:
    log_p, gold = truly(400, 3, 1)
    raw = log_p * 3 + [1.0, 0.0, -1.0]

    class Fixed(LogisticRegression):  # type: ignore[misc]
        def fit(self, x: Any, y: Any) -> Any:
            self.classes_, self.n_features_in_ = np.arange(3), 3
            return self

        def decision_function(self, x: Any) -> Any:
            return x

    theirs = CalibratedClassifierCV(FrozenEstimator(Fixed().fit(raw, gold)), method="temperature").fit(raw, gold)
    ours, _ = fit_readings(readings_of(raw), gold, kind="temperature")
    # Ours takes one row of 402 to be labelled wrongly.
    assert np.exp(ours.log_probabilities(readings_of(raw))) == pytest.approx(theirs.predict_proba(raw), abs=5e-3)


@pytest.mark.parametrize("kind", ["temperature", "bias"])
@pytest.mark.parametrize("n", [24, 100])
def test_n_rows_that_are_all_answered_right_promise_no_more_than_the_rule_of_succession(kind: Any, n: int) -> None:
    gold = np.arange(n) % 2
    raw = 3 * np.eye(2)[gold] + np.random.default_rng(0).normal(size=(n, 2)) / 100
    fit, _ = fit_readings(readings_of(raw), gold, kind=kind)
    p = np.exp(fit.log_probabilities(readings_of(raw)))
    assert p[np.arange(n), gold] == pytest.approx((n + 1) / (n + 2), abs=0.2 / n)


def test_what_is_held_out_is_what_another_fit_says_of_rows_that_it_has_not_seen() -> None:
    states, gold = clouds(400, 5, 30, np.random.default_rng(2), spread=3.0)
    part = slice(0, 200)
    _, held_out = fit_readings(readings_of(np.zeros((200, 5)), states[part]), gold[part], kind="head")
    fit, _ = fit_readings(readings_of(np.zeros((200, 5)), states[part]), gold[part], kind="head")
    unseen = fit.log_probabilities(readings_of(np.zeros((200, 5)), states[200:]))
    assert held_out is not None
    assert held_out.calibrated.log_loss == pytest.approx(log_loss(gold[200:], np.exp(unseen)), abs=0.15)
    assert held_out.calibrated.accuracy == pytest.approx((unseen.argmax(axis=1) == gold[200:]).mean(), abs=0.08)


@pytest.mark.parametrize("k", [2, 5])
def test_a_head_loses_no_more_than_logistic_regression(k: int) -> None:
    states, gold = clouds(60 * k, k, 40, np.random.default_rng(3), spread=3.0)
    _, held_out = fit_readings(readings_of(np.zeros((60 * k, k)), states), gold, kind="head")
    one = make_pipeline(StandardScaler(), LogisticRegression())
    folds = StratifiedKFold(4, shuffle=True, random_state=0)
    theirs = cross_val_predict(one, states, gold, cv=folds, method="predict_proba")
    assert held_out is not None
    assert held_out.calibrated.log_loss < log_loss(gold, theirs) + 0.02
    assert held_out.calibrated.ece < 0.06


def test_a_head_takes_scores_where_they_help_and_not_where_they_are_noise() -> None:
    rng = np.random.default_rng(4)
    states, gold = clouds(300, 3, 10, rng, spread=4.0)
    noise = rng.normal(size=(300, 3))
    for raw, helps in ((noise, False), (3 * np.eye(3)[gold] + noise, True)):
        fit, _ = fit_readings(readings_of(raw, states), gold, kind="head")
        assert fit.head is not None
        assert fit.head.takes_scores is helps


def test_auto_takes_what_loses_least() -> None:
    rng = np.random.default_rng(5)
    log_p, gold = truly(600, 4, 5)
    states = rng.normal(size=(600, 6))
    assert fit_readings(readings_of(log_p * 3, states), gold)[0].kind == "temperature"
    assert fit_readings(readings_of(log_p * 3 + [4, 0, -4, 0], states), gold)[0].kind == "bias"
    assert fit_readings(readings_of(rng.normal(size=(600, 4)), 5 * np.eye(4)[gold]), gold)[0].kind == "head"


def test_rows_without_labels_have_their_mean_taken_out() -> None:
    log_p, gold = truly(500, 4, 6)
    shift = np.array([3.0, 0.0, -3.0, 1.0])
    for kind in ("batch", "mean"):
        readings = readings_of(log_p + shift)
        fit, held_out = fit_readings(readings, None, kind=kind)
        p = fit.log_probabilities(readings)
        assert held_out is None
        assert (p.argmax(axis=1) == gold).mean() > (readings.raw.argmax(axis=1) == gold).mean() + 0.1


@pytest.mark.parametrize(
    ("n", "gold", "kind", "message"),
    [
        (10, [0, 1] * 5, "auto", "gold: 10 different rows, and at least 20 are needed"),
        (30, [1] * 30, "auto", "gold: all rows are 'class 1'"),
        (30, [1] * 29 + [0], "auto", "gold: all rows but those of one text are 'class 1'"),
        (30, [0, 1, 2] * 10, "head", "gold: no row of 'class 3', where a head needs some of each class"),
        (5, None, "batch", "rows: 5 different, and at least 8 are needed"),
    ],
)
def test_rows_that_tell_too_little_are_refused(n: int, gold: Any, kind: Any, message: str) -> None:
    rng = np.random.default_rng(7)
    readings = readings_of(rng.normal(size=(n, 4)), rng.normal(size=(n, 5)))
    with pytest.raises(CalibrationError, match=message):
        fit_readings(readings, None if gold is None else np.array(gold), kind=kind)


def test_a_class_of_one_row_does_not_keep_a_head_from_the_others() -> None:
    rng = np.random.default_rng(9)
    states, gold = clouds(200, 4, 6, rng)
    gold = np.where((gold < 3) | (np.arange(200) == 7), gold, 0)
    raw = rng.normal(size=(200, 4))
    (fit, held_out), (_, by_bias) = (fit_readings(readings_of(raw, own), gold) for own in (states, None))
    assert fit.kind == "head"
    assert held_out is not None
    assert by_bias is not None
    assert held_out.calibrated.log_loss < by_bias.calibrated.log_loss - 0.1


def test_kinds_that_do_not_go_with_the_rows_are_refused() -> None:
    readings, gold = readings_of(np.random.default_rng(8).normal(size=(30, 3))), np.arange(30) % 3
    for rows, kind, message in (
        (None, "head", "kind: 'head' needs gold labels"),
        (None, "contextual", "kind: 'contextual' is of questions"),
        (gold, "batch", "kind: 'batch' takes no labels"),
    ):
        with pytest.raises(ArgumentError, match=message):
            fit_readings(readings, rows, kind=kind)
    with pytest.raises(CalibrationError, match="hidden states, which were not read"):
        fit_readings(readings, gold, kind="head")


@pytest.mark.parametrize("where", ["raw", "states"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_whose_scores_are_not_finite_is_named(where: str, value: float) -> None:
    arrays = {"raw": np.zeros((30, 3)), "states": np.zeros((30, 4))}
    arrays[where][7, 1] = value
    with pytest.raises(CalibrationError, match=r"rows\[7\]: the model's scores of it are not finite"):
        fit_readings(readings_of(**arrays), np.arange(30) % 3)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_whatever_rows_there_are_it_is_fitted_or_refused(data: Any) -> None:
    k, n = data.draw(st.integers(2, 4)), data.draw(st.integers(20, 40))
    gold = np.array(data.draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    scale = data.draw(st.sampled_from([0.0, 1e-6, 1.0, 1e3]))
    states = scale * rng.normal(size=(n, 3)) if data.draw(st.booleans()) else scale * np.eye(k)[gold]
    raw = data.draw(st.sampled_from([0.0, 1.0, 300.0])) * rng.normal(size=(n, k))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            made = Calibration.of(readings_of(raw, states), gold, n_folds=data.draw(st.integers(2, 4)))
        except CalibrationError:
            return
    assert made.held_out is not None
    assert np.isfinite(made.held_out.calibrated.log_loss)
    assert np.isfinite(made.log_probabilities(readings_of(raw, states))).all()
    assert Calibration.from_dict(made.to_dict()).kind == made.kind


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_folds_have_about_equally_many_groups_and_part_none(data: Any) -> None:
    n = data.draw(st.integers(20, 80))
    gold = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    drawn_groups = np.array(data.draw(st.lists(st.integers(0, n), min_size=n, max_size=n)))
    alike = data.draw(st.booleans())
    groups = np.unique(drawn_groups, return_inverse=True)[1] if alike else np.arange(n)
    folds = folds_of(gold, groups, 10)
    if not folds:
        return
    assert sorted(row for _, test in folds for row in test) == list(range(n))
    for train, test in folds:
        assert sorted([*train, *test]) == list(range(n))
        assert not set(groups[train]) & set(groups[test])
    sizes = [len(set(groups[test])) for _, test in folds]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_folds_to_choose_by_have_no_row_that_is_reported(n_folds: int) -> None:
    rng = np.random.default_rng(0)
    gold, groups = rng.integers(3, size=60), rng.permutation(60) // 2
    folds = folds_of(gold, groups, n_folds)
    for i, (train, test) in enumerate(folds):
        inner = within(folds, i, gold, groups)
        assert sorted(row for _, judged in inner for row in judged) == train.tolist()
        for some, judged in inner:
            assert set(some) | set(judged) <= set(train)
            assert not set(groups[some]) & (set(groups[judged]) | set(groups[test]))


@pytest.mark.parametrize("kind", ["auto", "head", "bias"])
def test_what_is_held_out_does_not_change_with_the_labels_of_its_own_fold(kind: Any) -> None:
    # A choice of kind, strength or mixture that looked at them would: they are turned over, fold by fold.
    rng = np.random.default_rng(11)
    gold, states = rng.integers(3, size=60), rng.normal(size=(60, 6))
    readings = readings_of(rng.normal(size=(60, 3)), states)
    folds = folds_of(gold, np.arange(60), 4)
    before = fit_readings(readings, gold, kind=kind, n_folds=4)[1]
    assert before is not None
    for _, test in folds[:2]:
        turned = gold.copy()
        turned[test] = (turned[test] + 1) % 3
        after = fit_readings(readings, turned, kind=kind, n_folds=4)[1]
        assert after is not None
        assert after.probabilities[test] == pytest.approx(before.probabilities[test], abs=1e-12)


@pytest.mark.parametrize("explicit", [True, False])
def test_equal_rows_are_one_group_whether_or_not_groups_are_given(explicit: bool) -> None:
    # Labels are noise: only a fit that has seen the same row among those of another fold knows them.
    rng = np.random.default_rng(12)
    own = np.repeat(np.arange(60), 4)
    states, gold = rng.normal(size=(60, 40))[own], rng.integers(4, size=60)[own]
    readings = readings_of(rng.normal(size=(60, 4))[own], states)
    names = np.array([f"text {i}" for i in own])
    made = Calibration.of(readings, gold, kind="head", n_folds=5, groups=names if explicit else None)
    assert made.held_out is not None
    assert made.held_out.calibrated.accuracy < 0.45
    assert made.held_out.groups.tolist() == (np.unique(names, return_inverse=True)[1] if explicit else own).tolist()
    again = Calibration.from_dict(made.to_dict())
    assert again.gate(0.7) == made.gate(0.7)
    assert made.gate(0.7).n_different == 60
    with pytest.raises(ArgumentError, match=r"groups: shape \(3,\), where one number a row, \(240,\), belongs"):
        Calibration.of(readings, gold, groups=[1, 2, 3])


def test_rows_that_repeat_are_not_more_rows() -> None:
    rng = np.random.default_rng(13)
    own = np.repeat(np.arange(7), 10)
    readings = readings_of(rng.normal(size=(7, 2))[own])
    with pytest.raises(CalibrationError, match="gold: 7 different rows, and at least 20"):
        fit_readings(readings, own % 2)
    with pytest.raises(CalibrationError, match="rows: 7 different, and at least 8"):
        fit_readings(readings, None)


def test_discriminant_analysis_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(14)
    for n, k, d in ((90, 3, 40), (40, 2, 5), (30, 4, 60)):
        states, gold = clouds(n, k, d, rng)
        states[:, 0] = 1.0
        theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(states, gold)
        weights, intercept = _discriminant(states, gold)
        expected = theirs.decision_function(states)
        ours = states @ weights.T + intercept
        assert (ours[:, 1] - ours[:, 0] if k == 2 else ours) == pytest.approx(expected, rel=1e-6, abs=1e-6)
