"""Sets of 10⁵ to 10⁸ members: what they take, beside STATIC and marisa-trie; titles of products as texts."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from rich.table import Table

from bench.catalogues import titles, uniform
from bench.catalogues.figures import CatalogueRow
from bench.catalogues.plot import plot
from bench.models import load
from bench.options import Options
from bench.outcome import show
from bench.results import Bar, Results
from bench.table import figure, plain_table, progress_bar, wide_console

_SIZES = [100_000, 1_000_000, 10_000_000]


def run(options: Options) -> None:
    """Measure sets of uniform ids, each in a process of its own, and titles by each model; print, write, draw."""
    sizes = options.members or _SIZES
    results = Results[CatalogueRow]("catalogue", {"members": sizes, "rows": uniform.ROWS})
    console = wide_console(150)
    with progress_bar(console) as progress:
        bar = progress.add_task("", total=len(sizes) + len(options.models))
        for n in sizes:
            progress.update(bar, description=f"{n:,} ids")
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
                results.rows += alone.submit(uniform.measure, n).result()
            progress.advance(bar)
        for name in options.models:
            progress.update(bar, description=f"{titles.N:,} titles, {name}")
            results.rows += titles.measure(name, load(name).llm, options.rounds or 3)
            progress.advance(bar)
    results.bars = _bars(results.rows)
    tables = [
        _table(f"{of[0]}, {of[1]:,} members", [row for row in results.rows if (row.set, row.members) == of])
        for of in dict.fromkeys((row.set, row.members) for row in results.rows)
    ]
    show(console, tables, results, options.output)
    if options.output is not None:
        plot(results.rows, options.output.with_suffix(".png"))


def _table(title: str, rows: list[CatalogueRow]) -> Table:
    def what(row: CatalogueRow) -> str:
        return row.quantity + ("" if row.depth is None else f" behind {row.depth} tokens")

    who = list(dict.fromkeys(row.contender for row in rows))
    found = {(what(row), row.contender): f"{figure(row.value)} {row.unit}" for row in rows}
    table = plain_table(title, "", *(f">{each}" for each in who))
    for each in dict.fromkeys(map(what, rows)):
        table.add_row(each, *(found.get((each, other), "") for other in who))
    return table


def _bars(rows: list[CatalogueRow]) -> list[Bar]:
    found = {(row.set, row.members, row.contender, row.quantity, row.depth): row.value for row in rows}
    bars = []

    def bar(text: str, quantity: str, members: int, limit: float, unit: str = "") -> None:
        value = found.get(("uniform", members, "token-trie", quantity, None))
        if value is not None:
            bars.append(Bar(text, value, at_least=False, limit=limit, unit=unit))

    for n in (1_000_000, 10_000_000):
        bar(f"bytes a member on a device, {n:,}", "bytes a member on a device", n, 40)
    bar("bytes a member, 10,000,000", "bytes a member", 10_000_000, 20)
    bar("seconds to build 10,000,000", "build", 10_000_000, 10)
    bar("peak of the build, of the result, 10,000,000", "peak of build, of the result", 10_000_000, 3, "x")
    bar("ms to open 10,000,000, and the first step", "open and first step", 10_000_000, 5)
    bar("ms to filter 10,000,000", "filter, 10 % left", 10_000_000, 20)
    bar("ms to filter 10,000,000, members in no order", "filter, members in no order", 10_000_000, 20)

    def ratio(text: str, of: tuple[str, int], ours: str, theirs: str, limit: float, who: str = "token-trie") -> None:
        def mean(contender: str, quantity: str) -> float | None:
            values = [v for (*at, it, its, _), v in found.items() if (tuple(at), it, its) == (of, contender, quantity)]
            return sum(values) / len(values) if values else None

        a, b = mean("token-trie", ours), mean(who, theirs)
        if a is not None and b is not None:
            bars.append(Bar(text, a / b, at_least=False, limit=limit))

    most = ("uniform", 10_000_000)
    ratio("apply at 10,000,000 over 30 members, mean of all depths", most, "apply", "apply, 30 members", 1.5)
    ratio("step of the tree at 10,000,000 over 30 members", most, "step", "step, 30 members", 1.5)
    for share, limit in (("10 %", 1.5), ("0.01 %", 4)):
        ratio(f"apply with {share} left over all, 10,000,000", most, f"apply, {share} left", "apply", limit)
        ratio(f"step of the tree with {share} left over all, 10,000,000", most, f"step, {share} left", "step", limit)
    for of in dict.fromkeys((row.set, row.members) for row in rows if row.set.startswith("titles")):
        alone = "llama_tokenize on one core"
        ratio(f"{of[0]}: build from texts over llama_tokenize", of, "build from texts", "texts to tokens", 0.6, alone)
        ratio(f"{of[0]}: choose with 10 % left over all", of, "choose, 10 % left", "choose", 1.3)
    for (of, n, who, what, depth), value in found.items():
        if who == "STATIC" and depth is not None:
            ours = found[(of, n, "token-trie", what, depth)]
            bars.append(Bar(f"candidates behind {depth} of {n:,} beside STATIC", ours / value, False, 1))
    return bars
