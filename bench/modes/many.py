"""Many prompts at once, beside one after the other and llama.cpp's bare passes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rich.table import Table

from bench.many.contenders import Took, bare, by_grammar, one_by_one, together
from bench.many.prompts import SETS, make_prompts
from bench.models import load
from bench.options import Options
from bench.outcome import show
from bench.results import Bar, Results
from bench.table import model_bars, plain_table, wide_console

_N_CTX, _N_BATCH = 2048, 512
_SIZES = (1, 8, 64, 512)  # by default
_MANY = 64  # above which all share one beginning
_PROMPTS = "Prompts are plain text, without a chat template; the shared beginning has an example of each action."
_BARS = {  # by the model's name: decisions against choose, and against a grammar
    "SmolLM2": (1.7, 8.0),
    "gemma": (2.4, 15.0),
}


@dataclass(frozen=True)
class ManyRow:
    """One contender on prompts of one kind. CPU seconds are of all threads; a busy machine hardly changes them."""

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
    p50_s: float
    p99_s: float
    n_tokens: int

    @property
    def cpu_ms(self) -> float:
        """Of a prompt."""
        return 1e3 * self.cpu_s / self.n


def run(options: Options) -> None:
    """Measure with all models; print, and write what was prompts for."""
    sizes = sorted({*(n for n in _SIZES if n < options.prompts), options.prompts})
    rounds = options.rounds or 1
    results = Results[ManyRow](options.mode, {"threads": options.threads, "n_ctx": _N_CTX, "rounds": rounds})
    console = wide_console(150)
    for name, begin, advance in model_bars(options.models, console):
        kinds = [(n, *kind) for n in sizes for kind in _kinds(n)]
        begin("deciding", len(kinds) * rounds)
        rows = _measure(name, options, kinds, rounds, advance)
        results.rows += rows
        results.bars += _bars(rows)
    names = dict.fromkeys(row.model for row in results.rows)
    tables = [_table([row for row in results.rows if row.model == name]) for name in names]
    show(console, tables, results, options.output)


def _kinds(n: int) -> list[tuple[str, bool]]:
    """Return sets, and whether prompts share their beginning, for so many prompts."""
    labels, actions = SETS
    return [(labels, True), (actions, True), *([(labels, False)] if n <= _MANY else [])]


def _measure(
    name: str, options: Options, kinds: list[tuple[int, str, bool]], rounds: int, advance: Callable[[], object]
) -> list[ManyRow]:
    model = load(name, n_ctx=_N_CTX, n_batch=_N_BATCH, n_gpu_layers=options.n_gpu_layers, threads=options.threads)
    rows = []
    for n, set_name, is_shared in kinds:
        prompts = make_prompts(model, SETS[set_name], n, is_shared=is_shared)
        contenders: dict[tuple[str, str], Callable[[], Took]] = {
            ("bare", ""): partial(bare, model, prompts),
            ("choose_many", "greedy"): partial(together, model, prompts, "greedy"),
            ("choose", "greedy"): partial(one_by_one, model, prompts, "greedy"),
            ("choose_many", "exact"): partial(together, model, prompts, "exact"),
            ("choose", "exact"): partial(one_by_one, model, prompts, "exact"),
            ("grammar", "greedy"): partial(by_grammar, model, prompts),
        }
        took: dict[tuple[str, str], list[Took]] = {}
        for _ in range(rounds):
            for who, measure in contenders.items():
                took.setdefault(who, []).append(measure())
            advance()
        for (who, mode), each in took.items():
            median = sorted(each, key=lambda one: one.cpu_s)[len(each) // 2]
            rows.append(ManyRow(model.name, set_name, mode, is_shared, n, who, *median))
    return rows


def _find(rows: list[ManyRow], contender: str, mode: str, set_name: str) -> ManyRow:
    """Return the row of the most prompts behind one beginning."""
    alike = [r for r in rows if (r.contender, r.mode, r.set) == (contender, mode, set_name) and r.is_shared]
    return max(alike, key=lambda row: row.n_prompts)


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
    many = _find(rows, "choose_many", "exact", labels)
    ratio = _find(rows, "choose", "exact", labels).cpu_ms / many.cpu_ms
    bars.append(Bar(f"{model}: decisions against a loop of choose, {labels}, exact", ratio, True, loop))
    many = _find(rows, "choose_many", "greedy", actions)
    ratio = _find(rows, "grammar", "greedy", actions).cpu_ms / many.cpu_ms
    bars.append(Bar(f"{model}: decisions against a loop with GBNF, {actions}", ratio, True, grammar))
    return bars


def _table(rows: list[ManyRow]) -> Table:
    columns = (
        "beginning",
        ">prompts",
        "set",
        "who",
        "mode",
        ">CPU ms a prompt",
        ">tokens a CPU s",
        ">first, p50, p99, s",
    )
    table = plain_table(f"{rows[0].model}: many prompts", *columns, caption=_PROMPTS)
    for row in rows:
        table.add_row(
            "shared" if row.is_shared else "own",
            str(row.n_prompts),
            row.set,
            row.contender,
            row.mode,
            f"{row.cpu_ms:.2f}",
            f"{row.n_tokens / row.cpu_s:.0f}" if row.n_tokens else "",
            f"{row.first_s:.2f} {row.p50_s:.2f} {row.p99_s:.2f}" if row.p50_s else f"{row.first_s:.2f}",
        )
    return table
