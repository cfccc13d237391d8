"""The bars of decisions, and what was measured."""

from collections.abc import Sequence
from typing import Any

from bench.decisions.contenders import FFI, STEPPING
from bench.decisions.figures import DecisionRow
from bench.decisions.tasks import ACTIONS_TASK
from bench.results import Bar

# By model: how many times as fast as GBNF it has to be, and the share of the time that may pass outside the model.
_ASKED = {"gemma3": (25, 0.01), "smollm2": (8, 0.02)}


def bars(rows: Sequence[DecisionRow], known: dict[str, str], checks: Sequence[dict[str, Any]]) -> list[Bar]:
    """Return every bar; known: the short name of each model measured that has one."""
    ffi = [row for row in rows if row.mode == FFI]
    stepping = [row for row in rows if row.mode == STEPPING]
    out = []
    for row in ffi:
        if row.set != ACTIONS_TASK or known.get(row.model) not in _ASKED:
            continue
        faster, overhead = _ASKED[known[row.model]]
        at = f"{row.set}, {row.model}"
        out += [
            Bar(f"a decision, {at}: GBNF in llama-cpp-python over the handle, medians",
                row.decision_vs_grammar, True, faster),
            Bar(f"host_overhead, {at}: generate's time outside forward passes",
                row.host_overhead, False, overhead, "%"),
        ]  # fmt: skip
    draws = sum(check["decisions"] for check in checks)
    return [
        *out,
        Bar("forward passes after the prompt's: one a branch point after the first token's, all sets and models",
            _weighted(ffi, "passes_as_predicted"), True, 1, "%"),
        Bar("token_accuracy with jump_forward off, all sets and models",
            _weighted(stepping, "token_accuracy"), True, 1, "%"),
        Bar(f"invalid answers of {draws:,} drawn at temperature 2 from random sets",
            sum(check["invalid"] for check in checks) if checks else None, False, 0, ""),
    ]  # fmt: skip


def _weighted(rows: Sequence[DecisionRow], share: str) -> float | None:
    total = sum(row.decisions for row in rows)
    return sum(getattr(row, share) * row.decisions for row in rows) / total if total else None
