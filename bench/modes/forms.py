"""Forms, priors and orders beside each other, on questions whose answers are known."""

from collections.abc import Iterator, Sequence

from bench.forms.contenders import DEFAULT, TYPED_GGUF, contenders
from bench.forms.measure import Asked, FormsRow, ask, row
from bench.forms.plot import plot
from bench.forms.tables import TABLES
from bench.models import Model, find, load
from bench.options import Options
from bench.outcome import show
from bench.results import Bar, Results
from bench.table import model_bars, table_of, wide_console

_N_CTX, _N_BATCH = 2048, 512
ALL = "all"
COMPARED = "in all ways"
_MOST = 40  # cases that are asked in other ways than the default

_RIGHT = {"smollm2": 0.55, "gemma3": 0.65}  # of the choices that JevBench's generator gives
_ECE = 0.13
_CHOICES = "JevBench, choices"
_ALL_WAYS = (_CHOICES, "sys1bench, support_tickets", "requests, 30 actions")
_COLUMNS = """
    model = {0.model} | table = {0.table} | part = {0.part} | asked = {0.way} | >questions = {0.questions} |
    >right = {0.right:.1%} | >from = {0.right_low:.0%} | >to = {0.right_high:.0%} | >log loss = {0.log_loss:.2f} |
    >uniform = {0.uniform_log_loss:.2f} | >ECE = {0.ece:.3f} | >mass = {0.mass:.1e} | >CPU ms = {0.ms:.0f}
"""


def run(options: Options) -> None:
    """Ask all tables of all models in all ways; print, and write what was asked for."""
    tables = [table for read in TABLES for table in read()]
    results = Results[FormsRow]("forms", {"threads": options.threads, "cases in other ways": _MOST})
    known = {find(name).stem: name for name in options.models}
    console = wide_console(190)
    for name, begin, advance in model_bars(options.models, console):
        model = load(name, n_ctx=_N_CTX, n_batch=_N_BATCH, n_gpu_layers=options.n_gpu_layers, threads=options.threads)
        for way, opened in contenders(model, options.threads).items():
            answer = opened()
            for table in tables:
                if way != DEFAULT and table.name not in _ALL_WAYS:
                    continue
                compared = [i for i, case in enumerate(table.cases) if case.is_held_out][:_MOST]
                cases = table.cases if way == DEFAULT else [table.cases[i] for i in compared]
                begin(f"{table.name}, {way}", len(cases))
                asked = ask(answer, cases, advance)
                places = set(compared) if way == DEFAULT else set(range(len(cases)))
                results.rows += _rows(model, table.name, way, asked, places)
                if options.output is not None:
                    results.save(options.output)
    results.bars = bars(results.rows, known)
    show(console, [table_of(results.rows, "Questions whose answers are known", _COLUMNS)], results, options.output)
    if options.output is not None:
        plot([row for row in results.rows if row.part == COMPARED], options.output.with_suffix(".png"))


def _rows(model: Model, table: str, way: str, asked: Asked, compared: set[int]) -> Iterator[FormsRow]:
    """Yield what was chosen on, what was held out, both together, and the cases that are asked in all ways."""
    parts = {
        "chosen on": [one for one in asked.answers if not one.is_held_out],
        "held out": [one for one in asked.answers if one.is_held_out],
    }
    there = {part: answers for part, answers in parts.items() if answers} if way == DEFAULT else {}
    if len(there) > 1:
        there[ALL] = asked.answers
    if table in _ALL_WAYS:
        there[COMPARED] = [one for one in asked.answers if one.case in compared]
    for part, answers in there.items():
        yield row(model, table, way, part, asked, answers)


def bars(rows: Sequence[FormsRow], known: dict[str, str]) -> list[Bar]:
    """Return what the default is to reach on JevBench's choices."""
    out = []
    for each in rows:
        if (each.table, each.part, each.way) == (_CHOICES, ALL, DEFAULT):
            at = f"{each.questions} choices of JevBench, {each.model}"
            if known.get(each.model) in _RIGHT:
                out.append(Bar(f"{at}: right", each.right, True, _RIGHT[known[each.model]], "%"))
            out.append(Bar(f"{at}: log loss, over a uniform answer's", each.log_loss / each.uniform_log_loss, False, 1))
            out.append(Bar(f"{at}: ECE", each.ece, False, _ECE, "%"))
    ours = {(row.model, row.table): row for row in rows if (row.part, row.way) == (COMPARED, DEFAULT)}
    for each in rows:
        if each.way == TYPED_GGUF:
            own, at = ours[each.model, each.table], f"{each.table}, {each.model}, beside typed-gguf"
            out.append(Bar(f"{at}: right", own.right / max(each.right, 1e-9), True, 1))
            out.append(Bar(f"{at}: log loss", own.log_loss / each.log_loss, False, 1))
    return out
