"""The figures of the records."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from bench.records.contenders import CONTENDERS, EXACT, GRAMMAR, GREEDY, GUIDANCE, Call, Grammar, Guidance, Trie
from bench.records.tasks import Records, Requests
from bench.results import Bar
from bench.table import PROMPTS, figure, plain_table


@dataclass(frozen=True)
class RecordRow:
    """One contender on one model; shares are in [0, 1]."""

    model: str
    task: str
    contender: str
    calls: int
    median_ms: float
    p90_ms: float
    total_ms: float
    cpu_ms: float  # median, of all threads together
    tokens: float  # per record
    passes: float  # per record
    passes_beside: int | None  # beside those of branch points and free tokens, in all
    valid: float
    right_tool: float | None


def measure(requests: Requests, rounds: int, advance: Callable[[], object]) -> list[RecordRow]:
    """Let the contenders write every record, in turns."""
    contenders: dict[str, Any] = {
        GREEDY: Trie(requests, "greedy"),
        EXACT: Trie(requests, "exact"),
        GRAMMAR: Grammar(requests),
        GUIDANCE: Guidance(requests),
    }
    calls: dict[str, list[Call]] = {who: [] for who in CONTENDERS}
    for contender in contenders.values():  # what they build at the first use is not timed
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
    return [_row(requests, who, calls[who]) for who in CONTENDERS]


def _row(requests: Requests, who: str, calls: list[Call]) -> RecordRow:
    ms = np.array([call.wall_ns for call in calls]) / 1e6
    beside = [c.n_passes - c.n_branches - c.n_free for c in calls if c.n_branches is not None and c.n_free is not None]
    expected = [case.tool for case in requests.cases] * (len(calls) // len(requests.cases))
    read = [_read(requests, call.text) for call in calls]
    right = [c is not None and c.get("name") == e for c, e in zip(read, expected, strict=True) if e is not None]
    return RecordRow(
        model=requests.model.name,
        task=requests.name,
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
        right_tool=float(np.mean(right)) if right else None,
    )


def _read(requests: Requests, text: str) -> dict[str, Any] | None:
    """Return a record if it is valid."""
    import jsonschema

    try:
        call: dict[str, Any] = json.loads(text)
        jsonschema.validate(call, requests.schema)
    except (ValueError, jsonschema.ValidationError):
        return None
    return call


def bars(rows: list[RecordRow]) -> list[Bar]:
    """Return the bars of each model."""
    out = []
    for model, task in dict.fromkeys((row.model, row.task) for row in rows):
        of = {row.contender: row for row in rows if (row.model, row.task) == (model, task)}
        is_gemma = "gemma" in model.lower()
        limits = [(GREEDY, GRAMMAR, 10 if is_gemma else 3), (GREEDY, GUIDANCE, 1.3)]
        if task == Records.name:
            limits = [(EXACT, GRAMMAR, 8 if is_gemma else 2.5)]
        for ours, who, limit in limits:
            ratio = of[who].median_ms / of[ours].median_ms
            out.append(Bar(f"{model}: {task}, {who} over {ours}", ratio, True, limit))
        beside = of[GREEDY].passes_beside
        out.append(Bar(f"{model}: {task}, passes beside branch points and free tokens", beside, False, 0, ""))
        out.append(Bar(f"{model}: {task}, those that are valid", min(of[GREEDY].valid, of[EXACT].valid), True, 1, "%"))
    return out


def table(rows: list[RecordRow]) -> Table:
    """Return all rows."""
    out = plain_table(
        "Tool calls: 6 tools of 2 to 5 arguments; records: an enum of 30, a boolean, an enum of 3, an integer, a note",
        *("model", "task", "by", ">median ms", ">p90 ms", ">cpu ms", ">tokens", ">passes", ">valid", ">right tool"),
        caption=PROMPTS,
    )
    for row in rows:
        shares = ("" if share is None else f"{100 * share:.0f} %" for share in (row.valid, row.right_tool))
        counts = (f"{row.tokens:.1f}", f"{row.passes:.1f}")
        times = (figure(row.median_ms), figure(row.p90_ms), figure(row.cpu_ms))
        out.add_row(row.model, row.task, row.contender, *times, *counts, *shares)
    return out
