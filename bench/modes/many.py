"""Many prompts at once, beside one after the other and llama.cpp's bare passes."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.many.contenders import Took, bare, by_grammar, one_by_one, together
from bench.many.prompts import SETS, crowd
from bench.models import load
from bench.options import Options
from bench.results import Bar, Results
from bench.table import bars_table, plain_table

_N_CTX, _N_BATCH = 2048, 512
_SIZES = (1, 8, 64, 512)
_BARS = {  # by the model's name: decisions against choose, and against a grammar
    "SmolLM2": (1.7, 8.0),
    "gemma": (2.4, 15.0),
}


@dataclass(frozen=True)
class ManyRow:
    """One contender on prompts of one kind. CPU seconds are of all threads, and what a crowded machine leaves alone."""

    model: str
    set: str
    mode: str
    is_shared: bool
    n_prompts: int
    contender: str
    n: int
    wall_s: float
    cpu_s: float
    first_s: float
    n_tokens: int

    @property
    def cpu_ms(self) -> float:
        """Of a prompt."""
        return 1e3 * self.cpu_s / self.n


def run(options: Options) -> None:
    """Measure with all models; print, and write what was asked for."""
    results = Results[ManyRow](options.mode, {"threads": options.threads, "n_ctx": _N_CTX})
    console = Console()
    if not console.is_terminal:
        console.width = 150
    for name in options.models:
        rows = _measure(name, options)
        results.rows += rows
        results.bars += _bars(rows)
        console.print(_table(rows))
    console.print(bars_table(results.bars))
    if options.output is not None:
        results.save(options.output)


def _measure(name: str, options: Options) -> list[ManyRow]:
    model = load(name, n_ctx=_N_CTX, n_batch=_N_BATCH, n_gpu_layers=options.n_gpu_layers, threads=options.threads)
    rows = []
    for n in _SIZES:
        for is_shared in (True, False):
            for set_name, choices in SETS.items():
                asked = crowd(model, choices, n, is_shared=is_shared)
                took: dict[tuple[str, str], Took] = {("bare", ""): bare(model, asked)}
                for mode in ("greedy", "exact"):
                    took["choose_many", mode] = together(model, asked, mode)
                    took["choose", mode] = one_by_one(model, asked, mode)
                took["grammar", "greedy"] = by_grammar(model, asked)
                rows += [
                    ManyRow(model.name, set_name, mode, is_shared, n, who, *each) for (who, mode), each in took.items()
                ]
    return rows


def _find(rows: list[ManyRow], contender: str, mode: str, set_name: str) -> ManyRow:
    largest = max(row.n_prompts for row in rows)
    return next(
        row
        for row in rows
        if (row.contender, row.mode, row.set, row.n_prompts) == (contender, mode, set_name, largest) and row.is_shared
    )


def _bars(rows: list[ManyRow]) -> list[Bar]:
    """Ratios of processor time, of the most prompts behind one beginning."""
    labels, actions = SETS
    model = rows[0].model
    bars = []
    for mode in ("greedy", "exact"):
        many = _find(rows, "choose_many", mode, labels)
        alone = _find(rows, "bare", "", labels)
        rate = (many.n_tokens / many.cpu_s) / (alone.n_tokens / alone.cpu_s)
        bars.append(Bar(f"{model}: new tokens against bare passes, {labels}, {mode}", rate, True, 0.85, "%"))
    loop, grammar = next((both for known, both in _BARS.items() if known.lower() in model.lower()), (1.7, 8.0))
    many = _find(rows, "choose_many", "exact", actions)
    ratio = _find(rows, "choose", "exact", actions).cpu_ms / many.cpu_ms
    bars.append(Bar(f"{model}: decisions against a loop of choose, {actions}, exact", ratio, True, loop))
    many = _find(rows, "choose_many", "greedy", actions)
    ratio = _find(rows, "grammar", "greedy", actions).cpu_ms / many.cpu_ms
    bars.append(Bar(f"{model}: decisions against a loop with GBNF, {actions}", ratio, True, grammar))
    return bars


def _table(rows: list[ManyRow]) -> Table:
    columns = ("beginning", ">prompts", "set", "who", "mode", ">CPU ms a prompt", ">new tokens a CPU s", ">first, ms")
    table = plain_table(f"{rows[0].model}: many prompts", *columns)
    for row in rows:
        table.add_row(
            "shared" if row.is_shared else "own",
            str(row.n_prompts),
            row.set,
            row.contender,
            row.mode,
            f"{row.cpu_ms:.2f}",
            f"{row.n_tokens / row.cpu_s:.0f}" if row.n_tokens else "",
            f"{1e3 * row.first_s:.0f}" if row.first_s else "",
        )
    return table
