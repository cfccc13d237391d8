"""Figures, against scikit-learn's and statsmodels' own, and against small tables done by hand."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn import metrics
from sklearn.calibration import calibration_curve
from token_trie.trust.metrics import bins_of, coverage_of, effective, figures_of, interval_of


def drawn(n: int, n_classes: int = 3, seed: int = 0) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    p = draw.dirichlet(np.full(n_classes, 0.7), n)
    return np.array([draw.choice(n_classes, p=one) for one in p]), p


@pytest.mark.parametrize(("n", "n_classes"), [(200, 3), (90, 2), (10, 3)])
def test_figures_are_those_of_scikit_learn(n: int, n_classes: int) -> None:
    gold, p = drawn(n, n_classes)
    answers = p.argmax(axis=1)
    found = figures_of(n_classes, gold, answers, p, np.where(gold == 0, 0.005, 0.5))
    labels = list(range(n_classes))
    assert found.accuracy == pytest.approx(metrics.accuracy_score(gold, answers))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(gold, answers, average="macro"))
    assert found.log_loss == pytest.approx(metrics.log_loss(gold, p, labels=labels))
    assert found.brier == pytest.approx(
        ((p - np.eye(n_classes)[gold]) ** 2).sum(1).mean() / (2 if n_classes < 3 else 1)
    )
    assert np.array(found.confusion).tolist() == metrics.confusion_matrix(gold, answers, labels=labels).tolist()
    assert found.unfit == pytest.approx((gold == 0).mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of classes that were answered and are not there
        assert found.balanced_accuracy == pytest.approx(metrics.balanced_accuracy_score(gold, answers))


def test_bins_are_those_of_calibration_curve() -> None:
    gold, p = drawn(300)
    confidence, is_right = p.max(axis=1), p.argmax(axis=1) == gold
    true, predicted = calibration_curve(is_right, confidence, n_bins=10)
    bins = bins_of(confidence, is_right)
    assert [one.accuracy for one in bins] == pytest.approx(true.tolist())
    assert [one.confidence for one in bins] == pytest.approx(predicted.tolist())
    assert sum(one.n for one in bins) == 300


def test_the_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    # Ten rows at 0.95, nine of them right; ten at 0.55, two of them right.
    p = np.array([[0.95, 0.05]] * 10 + [[0.55, 0.45]] * 10)
    gold = np.array([0] * 9 + [1] + [0] * 2 + [1] * 8)
    found = figures_of(2, gold, p.argmax(axis=1), p, None)
    assert found.ece == pytest.approx((0.05 + 0.35) / 2)
    assert [(one.n, one.accuracy) for one in found.reliability] == [(10, 0.2), (10, 0.9)]
    assert found.unfit is None


def test_wilson_s_interval_is_that_of_scipy() -> None:
    for k, n in ((8, 10), (0, 5), (5, 5), (640, 1000)):
        theirs = binomtest(k, n).proportion_ci(method="wilson")
        assert interval_of(k / n, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_rows_that_repeat_leave_the_interval_as_it_was() -> None:
    gold, p = drawn(40)
    for times in (2, 10):
        own = np.repeat(np.arange(40), times)
        found = figures_of(3, gold[own], p[own].argmax(axis=1), p[own], None, own)
        assert found.interval == pytest.approx(figures_of(3, gold, p.argmax(axis=1), p, None).interval)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10)), min_size=2, max_size=30))
def test_the_effective_size_is_no_more_than_the_groups_and_no_more_than_the_variance_tells(drawn: Any) -> None:
    shares, sizes = (np.array(part, np.float64) for part in zip(*drawn, strict=True))
    mean, n = effective(shares, sizes)
    assert mean == pytest.approx((shares * sizes).sum() / sizes.sum())
    assert n <= len(shares) * (1 + 1e-9)
    variance = ((sizes * (shares - mean)) ** 2).sum() / sizes.sum() ** 2  # Cochran 1977, the linearized one of a ratio
    assert mean * (1 - mean) / n >= variance * (1 - 1e-9) - 1e-15


def test_the_curve_decides_rows_of_one_confidence_together() -> None:
    points = coverage_of(np.array([0.5, 0.9, 0.5, 0.7]), np.array([True, True, False, False]))
    assert [(p.confidence, p.n, p.accuracy) for p in points] == [(0.9, 1, 1.0), (0.7, 2, 0.5), (0.5, 4, 0.5)]
    gold, p = drawn(100)
    found = figures_of(3, gold, p.argmax(axis=1), p, None)
    wrong = (p.argmax(axis=1) != gold)[np.argsort(-p.max(axis=1))]
    assert found.risk_area == pytest.approx(np.mean(np.cumsum(wrong) / np.arange(1, 101)))
    assert found.coverage[-1].accuracy == found.accuracy


def test_answers_without_probabilities_have_the_figures_that_need_none() -> None:
    gold, p = drawn(50)
    found = figures_of(3, gold, p.argmax(axis=1), None, None)
    assert (found.log_loss, found.brier, found.ece, found.risk_area, found.coverage) == (None, None, None, None, ())
    assert found.accuracy == (p.argmax(axis=1) == gold).mean()


def test_one_class_alone_and_one_row_alone_are_measured() -> None:
    p = np.array([[0.2, 0.5, 0.3]])
    found = figures_of(3, np.array([1]), np.array([1]), p, None)
    assert (found.accuracy, found.balanced_accuracy, found.ece) == (1.0, 1.0, pytest.approx(0.5))
    assert found.log_loss == pytest.approx(np.log(2))


def test_without_scikit_learn_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from token_trie.decisions.gold import import_sklearn\n"
        "try: import_sklearn('metrics')\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'token-trie[calibration]'" in done.stdout
