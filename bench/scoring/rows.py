"""What is measured: one row for each model and thing. Times are medians, shares in [0, 1]."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.results import Bar

TREE, ONE_BY_ONE, COMPLETIONS = "token-trie", "one by one", "create_completion"

# Of a known model: how many times as fast as answers one by one.
_ASKED = {"gemma3": 5, "smollm2": 2.5}


@dataclass(frozen=True)
class ScoringRow:
    """A set, scored behind a prompt that is evaluated already."""

    model: str
    set: str
    members: int
    contender: str
    calls: int
    ms: float
    cpu_ms: float  # of all threads, which other work on the machine moves less
    times_tree: float
    n_evaluated: int  # tokens that the model was asked about
    n_passes: int
    outside: float | None  # share of the tree's time outside llama.cpp's forward passes
    off_median: float | None  # nats from the tree's scores
    off_most: float | None


@dataclass(frozen=True)
class FormsRow:
    """The branch-wise form against the full one, and the greedy walk against both."""

    model: str
    set: str
    requests: int
    full_ms: float
    branches_ms: float
    best_differs: float  # share of requests
    greedy_is_not_full: float
    greedy_is_not_branches: float
    mean_difference: float  # nats between the normalized log-probabilities of an answer
    total_variation: float  # between the two distributions: mean
    total_variation_most: float
    right: dict[str, float]  # share of requests that a person would agree with, by form


@dataclass(frozen=True)
class SearchRow:
    """The best of a large set, best first."""

    model: str
    set: str
    members: int
    prompts: int
    n_inner: int  # nodes that scoring the whole set would evaluate
    ms: float
    p90_ms: float
    cpu_ms: float
    outside_ms: float  # outside llama.cpp's forward passes
    n_evaluated: float  # median
    n_evaluated_most: int
    share: float  # of n_inner
    n_passes: float
    n_passes_most: int
    beam_width: int
    beam_ms: float
    beam_evaluated: float
    beam_agrees: float
    right: float


AnyRow = ScoringRow | FormsRow | SearchRow


def bars(rows: Sequence[AnyRow], known: dict[str, str], main_set: str) -> list[Bar]:
    """Return every bar; known: the short name of each model measured that has one."""
    out = []
    for row in rows:
        if isinstance(row, ScoringRow) and row.set == main_set:
            at = f"{row.set}, {row.model}"
            if row.contender == ONE_BY_ONE and known.get(row.model) in _ASKED:
                text = f"scoring {at}: answers one by one over the tree, medians"
                out.append(Bar(text, row.times_tree, True, _ASKED[known[row.model]]))
            elif row.contender == COMPLETIONS:
                out.append(Bar(f"scoring {at}: create_completion over the tree", row.times_tree, True, 15))
        elif isinstance(row, SearchRow):
            text = f"best of {row.set}, {row.model}: nodes evaluated, median over {row.prompts} prompts"
            out.append(Bar(text, row.share, False, 0.02, "%"))
    return out
