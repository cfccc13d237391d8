"""Servers on loopback, beside each other, under 1 to 128 clients."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from token_trie.cli.demo import ACTIONS

from bench.models import find
from bench.options import Options
from bench.outcome import show
from bench.results import Bar, Results
from bench.serving.hosts import HOSTS, LLAMA, OWN, PYTHON, Asked
from bench.serving.load import press
from bench.serving.plot import draw
from bench.sets import data, ids
from bench.table import progress_bar, table_of, wide_console

_CLIENTS = (1, 8, 32, 128)
_SECONDS = 8.0  # of each load, by default
_LABELS = ["work", "home", "travel"]
_COLUMNS = """
    model = {0.model} | set = {0.set} | server = {0.server} | >clients = {0.clients} |
    >decisions/s = {0.per_second:.1f} | >p50 ms = {0.p50_ms:.0f} | >p99 ms = {0.p99_ms:.0f} | >answers = {0.n} |
    >failed = {0.n_failed} |
    >outside = {0.n_outside}
"""


@dataclass(frozen=True)
class ServeRow:
    """One server under one load."""

    model: str
    set: str
    server: str
    clients: int
    n: int
    n_failed: int
    n_outside: int
    per_second: float
    p50_ms: float
    p99_ms: float


def run(options: Options) -> None:
    """Measure all servers that are there; print, and write what was asked for."""
    requests = data("requests.json")
    assert isinstance(requests, list)
    states = [request["text"] for request in requests]
    asked = [
        Asked("3 labels", "What is it about?", _LABELS, states),
        Asked(f"{len(ACTIONS)} actions", "What should the assistant do?", list(ACTIONS), states),
        Asked("1,000 options", "Which item is meant?", ids(1000), states),
    ]
    seconds = _SECONDS * (options.rounds or 1)
    results = Results[ServeRow]("serve", {"threads": options.threads, "seconds of a load": seconds})
    console = wide_console(170)
    with progress_bar(console) as progress:
        for name in options.models:
            model = find(name)
            for host in HOSTS:
                loads = [(a, n) for a in asked for n in _CLIENTS if len(a.options) <= host.max_options]
                task = progress.add_task(f"{model.stem}, {host.name}", total=len(loads))
                with ExitStack() as stack:
                    url = host.run(model, options.threads, stack)
                    if url is None:
                        console.print(f"{host.name}: not installed, left out")
                    for question, n_clients in loads if url is not None else ():
                        load = press(host, url or "", question, n_clients, seconds)
                        results.rows.append(ServeRow(model.stem, question.name, host.name, n_clients, **vars(load)))
                        progress.advance(task)
                progress.remove_task(task)
                if options.output is not None:
                    results.save(options.output)
    results.bars = bars(results.rows)
    show(console, [table_of(results.rows, "Decisions over HTTP, on loopback", _COLUMNS)], results, options.output)
    if options.output is not None:
        draw(results.rows, options.output.with_suffix(".png"))


def bars(rows: Sequence[ServeRow]) -> list[Bar]:
    """Compare with the servers that constrain by a grammar: 8 clients, 30 actions."""
    found = {(row.model, row.server): row for row in rows if row.clients == 8 and row.set == f"{len(ACTIONS)} actions"}
    out = []
    for (model, server), row in found.items():
        for other, limit in ((PYTHON, 8.0), (LLAMA, 1.0)):
            if server == OWN and (model, other) in found:
                ratio = row.per_second / found[model, other].per_second
                out.append(
                    Bar(f"{model}: decisions a second against {other}, 8 clients, 30 actions", ratio, True, limit)
                )
    return out
