"""What is made of the calls."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from bench.models import Model
from bench.records.contenders import CONTENDERS, EXACT, GRAMMAR, GREEDY, GUIDANCE, Call, Grammar, Guidance, Trie
from bench.records.tasks import Requests
from bench.results import Bar
from bench.table import figure, plain_table


@dataclass(frozen=True)
class RecordRow:
    """One contender on one model; shares are in [0, 1]."""

    model: str
    contender: str
    calls: int
    median_ms: float
    p90_ms: float
    total_ms: float
    cpu_ms: float  # median, of all threads together
    tokens: float  # a call
    passes: float  # a call
    passes_beside: int | None  # other than branch points and free tokens, in all
    valid: float
    right_tool: float


def measure(model: Model, rounds: int, advance: Callable[[], object], n: int | None = None) -> list[RecordRow]:
    """Let all write every call, taking turns."""
    requests = Requests(model, n)
    contenders: dict[str, Any] = {
        GREEDY: Trie(requests, "greedy"),
        EXACT: Trie(requests, "exact"),
        GRAMMAR: Grammar(requests),
        GUIDANCE: Guidance(requests),
    }
    calls: dict[str, list[Call]] = {who: [] for who in CONTENDERS}
    for contender in contenders.values():  # what is made on first use
        contender.prepare(requests.cases[0])
        contender.call(requests.cases[0])
    for _ in range(rounds):
        for case in requests.cases:
            for who, contender in contenders.items():
                contender.prepare(case)
                calls[who].append(contender.call(case))
            advance()
    for contender in contenders.values():
        contender.close()
    return [_row(model, requests, who, calls[who]) for who in CONTENDERS]


def _row(model: Model, requests: Requests, who: str, calls: list[Call]) -> RecordRow:
    ms = np.array([call.wall_ns for call in calls]) / 1e6
    beside = [c.n_passes - c.n_branches - c.n_free for c in calls if c.n_branches is not None and c.n_free is not None]
    expected = [case.tool for case in requests.cases] * (len(calls) // len(requests.cases))
    read = [_read(requests, call.text) for call in calls]
    return RecordRow(
        model=model.name,
        contender=who,
        calls=len(calls),
        median_ms=round(float(np.median(ms)), 3),
        p90_ms=round(float(np.percentile(ms, 90)), 3),
        total_ms=round(float(ms.sum()), 1),
        cpu_ms=round(float(np.median([call.cpu_ns for call in calls])) / 1e6, 3),
        tokens=round(float(np.mean([call.n_tokens for call in calls])), 2),
        passes=round(float(np.mean([call.n_passes for call in calls])), 2),
        passes_beside=sum(map(abs, beside)) if who == GREEDY else None,
        valid=float(np.mean([call is not None for call in read])),
        right_tool=float(np.mean([c is not None and c["name"] == e for c, e in zip(read, expected, strict=True)])),
    )


def _read(requests: Requests, text: str) -> dict[str, Any] | None:
    """Return a call if it is valid."""
    import jsonschema

    try:
        call: dict[str, Any] = json.loads(text)
        jsonschema.validate(call, requests.schema)
    except (ValueError, jsonschema.ValidationError):
        return None
    return call


def bars(rows: list[RecordRow]) -> list[Bar]:
    """Return what is promised of each model."""
    out = []
    for model in dict.fromkeys(row.model for row in rows):
        of = {row.contender: row for row in rows if row.model == model}
        least = 10 if "gemma" in model.lower() else 3
        for who, limit in ((GRAMMAR, least), (GUIDANCE, 1.3)):
            ratio = of[who].median_ms / of[GREEDY].median_ms
            out.append(Bar(f"{model}: a tool call, {who} over {GREEDY}", ratio, True, limit))
        beside = of[GREEDY].passes_beside
        out.append(Bar(f"{model}: passes beside branch points and free tokens", beside, False, 0, ""))
        out.append(Bar(f"{model}: calls that are valid", min(of[GREEDY].valid, of[EXACT].valid), True, 1, "%"))
    return out


def table(rows: list[RecordRow]) -> Table:
    """Return all rows."""
    out = plain_table(
        "Tool calls: 6 tools of 2 to 5 arguments, the prompt evaluated",
        *("model", "by", ">median ms", ">p90 ms", ">cpu ms", ">tokens", ">passes", ">valid", ">right tool"),
    )
    for row in rows:
        shares = (f"{100 * share:.0f} %" for share in (row.valid, row.right_tool))
        counts = (f"{row.tokens:.1f}", f"{row.passes:.1f}")
        times = (figure(row.median_ms), figure(row.p90_ms), figure(row.cpu_ms))
        out.add_row(row.model, row.contender, *times, *counts, *shares)
    return out
