from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize
from synthetic import clouds, drawn, readings_of
from token_trie import ArgumentError, Calibration
from token_trie.errors import CalibrationError
from token_trie.trust.fit import _C, HeldOut, Measured
from token_trie.trust.metrics import folds_of, log_softmax


def fit_readings(readings: Any, gold: Any, kind: Any = "bias", **options: Any) -> tuple[Calibration, HeldOut | None]:
    made = Calibration.of(readings, gold, kind, **{"n_folds": 4, **options})
    return made, made.held_out


def truly(n: int, k: int, seed: int) -> tuple[Any, Any]:
    """Log-probabilities that are right, and classes drawn by them."""
    rng = np.random.default_rng(seed)
    log_p = log_softmax(rng.normal(size=(n, k)) * 2)
    return log_p, drawn(log_p, rng)


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 6), st.floats(0.2, 8.0), st.integers(0, 2**32 - 1))
def test_a_bias_is_found_again(k: int, temperature: float, seed: int) -> None:
    log_p, gold = truly(1000, k, seed)
    shift = np.random.default_rng(seed).normal(size=k) * temperature
    readings = readings_of(log_p * temperature - shift)
    fit, held_out = fit_readings(readings, gold, kind="bias")
    truth = Measured.of(log_p, gold)  # which is off by chance, too
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


@pytest.mark.parametrize("k", [2, 5])
def test_a_head_is_logistic_regression_on_states_and_scores(k: int) -> None:
    rng = np.random.default_rng(3)
    states, gold = clouds(60 * k, k, 40, rng, spread=3.0)
    raw = log_softmax(rng.normal(size=(60 * k, k)))
    fit, held_out = fit_readings(readings_of(raw, states), gold, kind="head")
    own = normalize(states.astype(np.float32).astype(np.float64))
    own /= np.sqrt(own.var(axis=0).mean())
    features = np.concatenate([own, raw / raw.std(axis=0)], axis=1)
    one = make_pipeline(StandardScaler(with_std=False), LogisticRegression(C=_C, max_iter=1000))
    theirs = one.fit(features, gold).predict_proba(features)
    assert np.exp(fit.log_probabilities(readings_of(raw, states))) == pytest.approx(theirs, abs=1e-3)
    # In each fold, the scales are those of the other rows.
    folds = folds_of(gold, np.arange(60 * k), 4)
    assert held_out is not None
    assert held_out.probabilities == pytest.approx(
        cross_val_predict(one, features, gold, cv=folds, method="predict_proba"), abs=0.1
    )


@pytest.mark.parametrize(
    ("n", "gold", "kind", "message"),
    [
        (10, [0, 1] * 5, "bias", "gold: 10 different rows, and at least 20 are needed"),
        (30, [1] * 30, "bias", "gold: all rows are 'class 1'"),
        (30, [1] * 29 + [0], "bias", "gold: all rows but those of one text are 'class 1'"),
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
    (_, held_out), (_, by_bias) = (fit_readings(readings_of(raw, states), gold, kind) for kind in ("head", "bias"))
    assert held_out is not None
    assert by_bias is not None
    assert held_out.calibrated.log_loss < by_bias.calibrated.log_loss - 0.1


def test_kinds_that_do_not_go_with_the_rows_are_refused() -> None:
    readings, gold = readings_of(np.random.default_rng(8).normal(size=(30, 3))), np.arange(30) % 3
    for rows, kind, message in (
        (None, "head", "kind: 'head' needs gold labels"),
        (gold, "magic", "kind must be one of 'batch', 'temperature', 'bias', 'head'"),
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
            kind: Any = data.draw(st.sampled_from(["temperature", "bias", "head"]))
            made = Calibration.of(readings_of(raw, states), gold, kind, n_folds=data.draw(st.integers(2, 4)))
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


@pytest.mark.parametrize("kind", ["temperature", "head", "bias"])
def test_what_is_held_out_does_not_change_with_the_labels_of_its_own_fold(kind: Any) -> None:
    rng = np.random.default_rng(11)
    gold, states = rng.integers(3, size=60), rng.normal(size=(60, 6))
    readings = readings_of(rng.normal(size=(60, 3)), states)
    before = fit_readings(readings, gold, kind=kind)[1]
    assert before is not None
    for _, test in folds_of(gold, np.arange(60), 4)[:2]:
        turned = gold.copy()
        turned[test] = (turned[test] + 1) % 3
        after = fit_readings(readings, turned, kind=kind)[1]
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
    made = Calibration.of(readings, gold, "head", n_folds=5, groups=names if explicit else None)
    assert made.held_out is not None
    assert made.held_out.calibrated.accuracy < 0.45
    assert made.held_out.groups.tolist() == (np.unique(names, return_inverse=True)[1] if explicit else own).tolist()
    again = Calibration.from_dict(made.to_dict())
    assert again.gate(0.7) == made.gate(0.7)
    assert made.gate(0.7).n_different == 60
    with pytest.raises(ArgumentError, match=r"groups must have one number a row, shape \(240,\), not \(3,\)"):
        Calibration.of(readings, gold, "bias", groups=[1, 2, 3])
