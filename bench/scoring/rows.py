"""What is measured: one row for each model and thing. Times are medians, shares in [0, 1]."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.results import Bar

TREE, ONE_BY_ONE, COMPLETIONS = "token-trie", "one by one", "create_completion"

# By model: how many times as fast the tree has to be as answers one by one.
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
    cpu_ms: float  # of all threads; a busy machine hardly changes it
    times_tree: float
    n_evaluated: int | None  # tokens that the model evaluated
    n_passes: int
    outside: float | None  # share of the tree's time outside llama.cpp's forward passes
    off_median: float | None  # nats from the tree's scores
    off_most: float | None


@dataclass(frozen=True)
class FormsRow:
    """The branch-wise form against the full one, and greedy decoding against both."""

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


@dataclass(frozen=True)
class ExactRow:
    """`choose` as it is called without a mode, the prompt evaluated already."""

    model: str
    set: str
    members: int
    prompts: int
    pass_ms: float  # of one token behind the same prompt
    ms: float
    p90_ms: float
    times_pass: float
    p90_times_pass: float
    of_whole: float | None  # of the time of scoring the whole set
    n_evaluated: float
    n_passes: float
    proved: float
    agrees: float | None  # with the best of the whole set
    off_most: float | None  # nats between the two scores of the winner
    right: float


@dataclass(frozen=True)
class IndependenceRow:
    """Nats between two scores that should be one."""

    model: str
    sizes: list[int]  # of the sets
    prompts: int
    among_median: float  # between two sets
    among_most: float
    among_changed: float  # share that is not the same to the last bit
    behind_median: float  # between a prompt evaluated at once and behind its beginning
    behind_most: float
    behind_changed: float

    @property
    def among(self) -> str:
        """The sizes, as text."""
        return ", ".join(map(str, self.sizes))


@dataclass(frozen=True)
class VariantsRow:
    """Share of requests that a person would agree with, by the way answers are weighed."""

    model: str
    set: str
    requests: int
    right: dict[str, float]


AnyRow = ScoringRow | FormsRow | SearchRow | ExactRow | IndependenceRow | VariantsRow


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
        elif isinstance(row, ExactRow):
            out += _exact_bars(row)
    return out


def _exact_bars(row: ExactRow) -> list[Bar]:
    at = f"exact among {row.set}, {row.model}"
    if row.of_whole is None:
        return [Bar(f"{at}: median ms of {row.prompts} prompts", row.ms, False, 150, "")]
    assert row.agrees is not None
    return [
        Bar(f"{at}: median over one token's pass", row.times_pass, False, 3.5),
        Bar(f"{at}: 90th percentile over it", row.p90_times_pass, False, 7),
        Bar(f"{at}: over scoring the whole set, medians", row.of_whole, False, 0.25),
        Bar(f"{at}: winner is the whole set's", row.agrees, True, 1, "%"),
    ]
