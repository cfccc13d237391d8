"""How good answers are: accuracy, log loss and calibration, against answers that are known."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from token_trie.decisions.questions.question import Question

from bench.forms.tables import Case
from bench.models import Model

Answer = Callable[[Any, Mapping[str, Question]], Mapping[str, Any]]
"""Answers questions about a state: each with value, probabilities and mass."""

_BINS = 10
_LEAST = 1e-12  # a probability of 0 costs so much
_RESAMPLED = 1000


@dataclass(frozen=True)
class FormsRow:
    """A table's rows asked in one way. Shares in [0, 1]; intervals are of 95 %, over cases drawn again."""

    model: str
    table: str
    part: str
    way: str
    questions: int
    right: float
    right_low: float
    right_high: float
    log_loss: float
    uniform_log_loss: float
    ece: float
    mass: float  # median
    ms: float  # of the processor, a question


@dataclass(frozen=True)
class Answered:
    """One answer, against the one that is known."""

    case: int
    probability: float  # of the answer that is known
    best: float
    is_right: bool
    n_options: int
    mass: float
    is_held_out: bool


@dataclass(frozen=True)
class Asked:
    """What was answered, and what it took."""

    answers: list[Answered]
    seconds: float


def ask(answer: Answer, cases: Sequence[Case], advance: Callable[[], None]) -> Asked:
    """Ask all questions of all cases in one way, one state at a time."""
    answers = []
    started = time.process_time()
    for i, case in enumerate(cases):
        if case.questions:
            found = answer(case.state, case.questions)
            answers += [_read(i, found[name], gold, case.is_held_out) for name, gold in case.gold.items()]
        advance()
    return Asked(answers, time.process_time() - started)


def row(model: Model, table: str, way: str, part: str, asked: Asked, answers: Sequence[Answered]) -> FormsRow:
    """Return how good some of the answers are."""
    right = np.array([one.is_right for one in answers])
    low, high = _interval(right, np.array([one.case for one in answers]))
    p = np.array([one.probability for one in answers])
    return FormsRow(
        model=model.name,
        table=table,
        part=part,
        way=way,
        questions=len(answers),
        right=float(right.mean()),
        right_low=low,
        right_high=high,
        log_loss=float(-np.log(np.maximum(p, _LEAST)).mean()),
        uniform_log_loss=float(np.log([one.n_options for one in answers]).mean()),
        ece=_ece(np.array([one.best for one in answers]), right),
        mass=float(np.median([one.mass for one in answers])),
        ms=1000 * asked.seconds / len(asked.answers),
    )


def _read(case: int, answer: Any, gold: object, is_held_out: bool) -> Answered:
    p = answer.probabilities
    best = max(p.values())
    return Answered(case, p[gold], best, answer.value == gold, len(p), answer.mass, is_held_out)


def _ece(best: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error over bins of equal width."""
    bins = np.minimum((best * _BINS).astype(int), _BINS - 1)
    gaps = [abs(best[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))


def _interval(right: NDArray[np.bool_], case_of: NDArray[np.int64]) -> tuple[float, float]:
    """Return between what shares 95 of 100 samples of the cases lie."""
    rng = np.random.default_rng(0)
    cases = np.unique(case_of)
    sums = np.array([right[case_of == case].sum() for case in cases])
    counts = np.array([(case_of == case).sum() for case in cases])
    drawn = rng.integers(len(cases), size=(_RESAMPLED, len(cases)))
    shares = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(shares, [2.5, 97.5])
    return float(low), float(high)
