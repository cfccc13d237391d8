"""The score mode's tables."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from bench.scoring.contenders import COMPLETED
from bench.scoring.rows import (
    COMPLETIONS,
    TREE,
    AnyRow,
    CompanyRow,
    ExactRow,
    FormsRow,
    ScoringRow,
    SearchRow,
    VariantsRow,
)
from bench.table import PROMPTS, plain_table


def tables(rows: Sequence[AnyRow]) -> Iterator[Table]:
    """Yield the tables."""
    scoring = [row for row in rows if isinstance(row, ScoringRow)]
    yield _scoring(scoring)
    yield _forms([row for row in rows if isinstance(row, FormsRow)])
    yield _search([row for row in rows if isinstance(row, SearchRow)])
    yield _exact([row for row in rows if isinstance(row, ExactRow)])
    yield _company([row for row in rows if isinstance(row, CompanyRow)])
    yield _variants([row for row in rows if isinstance(row, VariantsRow)])


def _scoring(rows: Sequence[ScoringRow]) -> Table:
    table = plain_table(
        "Scoring a set, prompt evaluated: medians",
        "model", "set", "contender", ">ms", ">CPU ms", ">times ours", ">tokens", ">passes", ">outside llama.cpp",
        ">nats off, median", ">most",
        caption=f"create_completion: {COMPLETED} of the answers taken, the time multiplied; where no token begins the "
        "text, it takes log-probabilities of other tokens.\nNats off the tree's scores: a quantized model's logits "
        "move with the size of a batch.",
    )  # fmt: skip
    for row in rows:
        first = row.contender == TREE
        table.add_row(
            row.model if first else "",
            row.set if first else "",
            row.contender,
            f"{row.ms:,.0f}",
            f"{row.cpu_ms:,.0f}",
            f"{row.times_tree:,.2f}",
            "" if row.contender == COMPLETIONS else str(row.n_evaluated),
            str(row.n_passes),
            "" if row.outside is None else f"{row.outside:.1%}",
            "" if row.off_median is None else f"{row.off_median:.3f}",
            "" if row.off_most is None else f"{row.off_most:.3f}",
        )
    return table


def _forms(rows: Sequence[FormsRow]) -> Table:
    table = plain_table(
        "Renormalized at branch points against the model's own probabilities",
        "model", "set", ">requests", ">full ms", ">branch-wise ms", ">best differs", ">greedy not full's best",
        ">greedy not branch-wise best", ">nats apart", ">total variation", ">most",
        ">right: full", ">branch-wise", ">greedy",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.model,
            row.set,
            str(row.requests),
            f"{row.full_ms:.0f}",
            f"{row.branches_ms:.0f}",
            *(f"{share:.1%}" for share in (row.best_differs, row.greedy_is_not_full, row.greedy_is_not_branches)),
            f"{row.mean_difference:.2f}",
            f"{row.total_variation:.3f}",
            f"{row.total_variation_most:.3f}",
            *(f"{row.right[form]:.1%}" for form in ("full", "branches", "greedy")),
        )
    return table


def _search(rows: Sequence[SearchRow]) -> Table:
    table = plain_table(
        "The most probable of a large set, prompt evaluated: medians",
        "model", "set", ">prompts", ">ms", ">p90", ">CPU ms", ">ms outside llama.cpp", ">nodes (most)", ">of all inner",
        ">passes (most)", ">beam ms", ">beam's nodes", ">beam agrees", ">right",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.model,
            row.set,
            str(row.prompts),
            f"{row.ms:.1f}",
            f"{row.p90_ms:.0f}",
            f"{row.cpu_ms:.1f}",
            f"{row.outside_ms:.1f}",
            f"{row.n_evaluated:g} ({row.n_evaluated_most})",
            f"{row.share:.4%}",
            f"{row.n_passes:g} ({row.n_passes_most})",
            f"{row.beam_ms:.1f}",
            f"{row.beam_evaluated:g}",
            f"{row.beam_agrees:.0%}",
            f"{row.right:.0%}",
        )
    return table


def _exact(rows: Sequence[ExactRow]) -> Table:
    table = plain_table(
        "choose without a mode, prompt evaluated: medians",
        "model", "set", ">prompts", ">one pass, ms", ">ms", ">p90", ">times that", ">p90", ">of whole",
        ">nodes", ">passes", ">proved", ">as whole", ">nats off, most", ">right",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.model,
            row.set,
            str(row.prompts),
            f"{row.pass_ms:.1f}",
            f"{row.ms:.1f}",
            f"{row.p90_ms:.1f}",
            f"{row.times_pass:.2f}",
            f"{row.p90_times_pass:.2f}",
            "" if row.of_whole is None else f"{row.of_whole:.2f}",
            f"{row.n_evaluated:g}",
            f"{row.n_passes:g}",
            f"{row.proved:.0%}",
            "" if row.agrees is None else f"{row.agrees:.1%}",
            "" if row.off_most is None else f"{row.off_most:.3f}",
            f"{row.right:.0%}",
        )
    return table


def _company(rows: Sequence[CompanyRow]) -> Table:
    table = plain_table(
        "What a member's score depends on beside its meaning: nats",
        "model", ">prompts", "among", ">median", ">most", ">changed", ">fresh, median", ">most", ">changed",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.model,
            str(row.prompts),
            ", ".join(map(str, row.sizes)),
            f"{row.among_median:.3f}",
            f"{row.among_most:.3f}",
            f"{row.among_changed:.1%}",
            f"{row.behind_median:.3f}",
            f"{row.behind_most:.3f}",
            f"{row.behind_changed:.1%}",
        )
    return table


def _variants(rows: Sequence[VariantsRow]) -> Table:
    ways = list(rows[0].right) if rows else []
    table = plain_table(
        "What a person agrees with", "model", "set", ">requests", *(f">{way}" for way in ways), caption=PROMPTS
    )
    for row in rows:
        table.add_row(row.model, row.set, str(row.requests), *(f"{row.right[way]:.1%}" for way in ways))
    return table
