"""The score mode's tables."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.table import Table

from bench.scoring.contenders import COMPLETED
from bench.scoring.rows import (
    COMPLETIONS,
    TREE,
    AnyRow,
    ExactRow,
    FormsRow,
    IndependenceRow,
    ScoringRow,
    SearchRow,
    VariantsRow,
)
from bench.table import PROMPTS, table_of


class _Kind(NamedTuple):
    """A table of rows of one kind; columns are as `table_of` reads them."""

    rows: type[AnyRow]
    title: str
    columns: str
    caption: str | None = None


_KINDS = (
    _Kind(
        ScoringRow,
        "Scoring a set, prompt evaluated: medians",
        """
        model = {0.model} | set = {0.set} | contender = {0.contender} | >ms = {0.ms:,.0f} |
        >CPU ms = {0.cpu_ms:,.0f} | >times ours = {0.times_tree:,.2f} | >tokens = {0.n_evaluated} |
        >passes = {0.n_passes} | >outside llama.cpp = {0.outside:.1%} | >nats off, median = {0.off_median:.3f} |
        >most = {0.off_most:.3f}
        """,
        f"create_completion: {COMPLETED} of the answers taken, the time multiplied; where no token begins the text, it "
        "takes log-probabilities of other tokens.\nNats off the tree's scores: a quantized model's logits move with "
        "the size of a batch.",
    ),
    _Kind(
        FormsRow,
        "Renormalized at branch points against the model's own probabilities",
        """
        model = {0.model} | set = {0.set} | >requests = {0.requests} | >full ms = {0.full_ms:.0f} |
        >branch-wise ms = {0.branches_ms:.0f} | >best differs = {0.best_differs:.1%} |
        >greedy not full's best = {0.greedy_is_not_full:.1%} |
        >greedy not branch-wise best = {0.greedy_is_not_branches:.1%} | >nats apart = {0.mean_difference:.2f} |
        >total variation = {0.total_variation:.3f} | >most = {0.total_variation_most:.3f} |
        >right: full = {0.right[full]:.1%} | >branch-wise = {0.right[branches]:.1%} |
        >greedy = {0.right[greedy]:.1%}
        """,
    ),
    _Kind(
        SearchRow,
        "The most probable of a large set, prompt evaluated: medians",
        """
        model = {0.model} | set = {0.set} | >prompts = {0.prompts} | >ms = {0.ms:.1f} | >p90 = {0.p90_ms:.0f} |
        >CPU ms = {0.cpu_ms:.1f} | >ms outside llama.cpp = {0.outside_ms:.1f} |
        >nodes (most) = {0.n_evaluated:g} ({0.n_evaluated_most}) | >of all inner = {0.share:.4%} |
        >passes (most) = {0.n_passes:g} ({0.n_passes_most}) | >beam ms = {0.beam_ms:.1f} |
        >beam's nodes = {0.beam_evaluated:g} | >beam agrees = {0.beam_agrees:.0%} | >right = {0.right:.0%}
        """,
    ),
    _Kind(
        ExactRow,
        "choose without a mode, prompt evaluated: medians",
        """
        model = {0.model} | set = {0.set} | >prompts = {0.prompts} | >one pass, ms = {0.pass_ms:.1f} |
        >ms = {0.ms:.1f} | >p90 = {0.p90_ms:.1f} | >times that = {0.times_pass:.2f} | >p90 = {0.p90_times_pass:.2f}
        | >of whole = {0.of_whole:.2f} | >nodes = {0.n_evaluated:g} | >passes = {0.n_passes:g} |
        >proved = {0.proved:.0%} | >as whole = {0.agrees:.1%} | >nats off, most = {0.off_most:.3f} |
        >right = {0.right:.0%}
        """,
    ),
    _Kind(
        IndependenceRow,
        "What a member's score depends on beside its meaning: nats",
        """
        model = {0.model} | >prompts = {0.prompts} | among = {0.among} | >median = {0.among_median:.3f} |
        >most = {0.among_most:.3f} | >changed = {0.among_changed:.1%} | >fresh, median = {0.behind_median:.3f} |
        >most = {0.behind_most:.3f} | >changed = {0.behind_changed:.1%}
        """,
    ),
)


def tables(rows: Sequence[AnyRow]) -> Iterator[Table]:
    """Yield the tables."""
    for kind in _KINDS:
        yield table_of(
            [_shown(row) for row in rows if isinstance(row, kind.rows)], kind.title, kind.columns, kind.caption
        )
    variants = [row for row in rows if isinstance(row, VariantsRow)]
    ways = [f" | >{way} = {{0.right[{way}]:.1%}}" for way in (variants[0].right if variants else ())]
    columns = "model = {0.model} | set = {0.set} | >requests = {0.requests}" + "".join(ways)
    yield table_of(variants, "What a person agrees with", columns, PROMPTS)


def _shown(row: AnyRow) -> AnyRow:
    """Leave out cells that the row above has, and figures that are not known."""
    if isinstance(row, ScoringRow) and row.contender == COMPLETIONS:
        row = replace(row, n_evaluated=None)
    return replace(row, model="", set="") if isinstance(row, ScoringRow) and row.contender != TREE else row
