"""Decisions for people: one table a model."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.table import Table

from bench.decisions.figures import DecisionRow
from bench.table import PROMPTS, plain_table

_CAPTION = (
    "Prompt evaluated beforehand. None: share of decisions without a pass. Saved: passes, of one a token. Greedy:\n"
    "same tokens as independent greedy decoding. GBNF: same text as the grammar's. Right: as a person would answer.\n"
    "Host: share of the time of generate (llama-cpp-python: of the call) outside forward passes. Skipped: share\n"
    "of the vocabulary that the set leaves out, a step. Bytes: from the device to the host, a pass.\n" + PROMPTS
)


def tables(rows: Sequence[DecisionRow]) -> Iterator[Table]:
    """Yield a table for each model, a line for each set and mode."""
    for (model, n_vocab, where), of_model in groupby(rows, key=lambda row: (row.model, row.n_vocab, device_of(row))):
        table = plain_table(
            f"{model}, {n_vocab:,} tokens, on {where}: milliseconds a decision",
            "set", "mode", ">p50", ">p90", ">p99", ">x GBNF", ">tokens/s", ">x GBNF", ">passes", ">bytes", ">none",
            ">saved", ">greedy", ">GBNF", ">right", ">host", ">skipped",
            caption=_CAPTION,
        )  # fmt: skip
        for (name, decisions), of_set in groupby(of_model, key=lambda row: (row.set, row.decisions)):
            title = f"{name}\n[dim]{decisions} {'decision' if decisions == 1 else 'decisions'}[/]"
            for row in of_set:
                table.add_row(title, row.mode, *_cells(row))
                title = ""
            table.add_section()
        yield table


def device_of(row: DecisionRow) -> str:
    """Return where a row was measured."""
    return row.device or row.backend


def device_table(rows: Sequence[DecisionRow]) -> Table:
    """Return the devices side by side, a column each, a line for each model, set and mode."""
    devices = list(dict.fromkeys(map(device_of, rows)))
    table = plain_table(
        "Side by side: milliseconds a decision (p50), times as fast as GBNF there, tokens/s, bytes a pass",
        "model", "set", "mode", *(f">{device}" for device in devices),
    )  # fmt: skip
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in rows:
        figures = [f"{row.latency_ms['p50']:.3g} ms", f"{row.tokens_per_second:,.0f}/s"]
        if row.decision_vs_grammar is not None:
            figures.insert(1, f"{_times(row.decision_vs_grammar)}x")
        if row.bytes_per_pass is not None:
            figures.append(f"{row.bytes_per_pass:,.0f} B")
        cells.setdefault((row.model, row.set, row.mode), {})[device_of(row)] = ", ".join(figures)
    for where, by_device in cells.items():
        table.add_row(*where, *(by_device.get(device, "") for device in devices))
    return table


def remarks(rows: Sequence[DecisionRow]) -> str:
    """Return, a line each, how often jump-forward comes out otherwise than one token a pass."""
    return "\n".join(
        f"{row.model}, {row.set}, on {row.backend}: jump-forward and stepping differ on "
        f"{row.differs_from_stepping:.1%} of {row.decisions}"
        + ("" if row.widest_gap_lost_nats is None else f", at gaps of up to {row.widest_gap_lost_nats:.3g} nats")
        for row in rows
        if row.differs_from_stepping is not None
    )


def _cells(row: DecisionRow) -> Iterator[str]:
    yield from (f"{row.latency_ms[p]:.3g}" for p in ("p50", "p90", "p99"))
    yield _times(row.decision_vs_grammar)
    yield f"{row.tokens_per_second:,.0f}"
    yield _times(row.tokens_per_second_vs_grammar)
    yield f"{row.forward_passes_total:,}"
    yield "" if row.bytes_per_pass is None else f"{row.bytes_per_pass:,.0f}"
    yield _percent(row.without_a_pass, 0)
    yield f"{row.forward_passes_saved:,}"
    yield from (_percent(share, 1) for share in (row.token_accuracy, row.grammar_agreement, row.right))
    yield _percent(row.host_overhead, 2)
    yield _percent(row.skip_ratio_mean, 3)


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(share: float | None, digits: int) -> str:
    return "" if share is None else f"{share * 100:.{digits}f} %"
