"""What calibrations are worth: ways of making probabilities side by side, on tables with gold labels."""

import tempfile
import time
from dataclasses import dataclass

import numpy as np
from token_trie import Calibration, evaluate
from token_trie.decisions.gold import read_gold
from token_trie.trust.fitting import log_probabilities
from token_trie.trust.metrics import figures_of
from token_trie.trust.options import RowOptions
from token_trie.trust.readings import read_rows

from bench.models import Model, load
from bench.options import Options
from bench.outcome import show
from bench.results import Bar, Results
from bench.table import model_bars, table_of, wide_console
from bench.trust.plot import plot
from bench.trust.tables import protocol, tables

_N_CTX, _N_BATCH = 4096, 512
_ROWS = 500
_WAYS = ("exact", "contextual", "batch", "mean", "temperature", "bias", "head", "fitted", "majority", "words")
PROTOCOL = "banking20, 300 labels, the rest judged"
_RIGHT = {"SmolLM2": 0.83, "gemma": 0.86}
_COLUMNS = """
    model = {0.model} | table = {0.table} | way = {0.way} | >rows = {0.n} | >right = {0.right:.1%} |
    >from = {0.low:.0%} | >to = {0.high:.0%} | >log loss = {0.log_loss:.3f} | >Brier = {0.brier:.3f} |
    >ECE = {0.ece:.3f} | >s = {0.seconds:.0f}
"""


@dataclass(frozen=True)
class CalibrationRow:
    """One way on one table."""

    model: str
    table: str
    way: str
    n: int
    right: float
    low: float
    high: float
    log_loss: float
    brier: float
    ece: float
    seconds: float


def run(options: Options) -> None:
    """Measure all tables of all models in all ways; print, and write what was asked for."""
    n_rows = options.prompts if options.prompts != 512 else _ROWS
    results = Results[CalibrationRow]("calibration", {"threads": options.threads, "rows of a table": n_rows})
    console = wide_console(190)
    for name, begin, advance in model_bars(options.models, console):
        model = load(name, n_ctx=_N_CTX, n_batch=_N_BATCH, n_gpu_layers=options.n_gpu_layers, threads=options.threads)
        for table in tables(n_rows):
            begin(table.name, None)
            started = time.perf_counter()
            is_question = not isinstance(table.asked, list)
            ways = [way for way in _WAYS if is_question or way != "contextual"]
            with tempfile.TemporaryDirectory() as folder:
                found = evaluate(model.llm, table.texts, table.gold, table.asked, ways=ways, cache=folder)
            seconds = time.perf_counter() - started
            for way in found.ways:
                f = way.figures
                figures = [
                    f.accuracy,
                    *f.interval,
                    *(float("nan") if x is None else x for x in (f.log_loss, f.brier, f.ece)),
                ]
                results.rows.append(
                    CalibrationRow(model.name, table.name, way.name, len(found.gold), *figures, seconds)
                )
            advance()
            if options.output is not None:
                results.save(options.output)
        begin(PROTOCOL, None)
        results.rows += _protocol(model)
        if options.output is not None:
            results.save(options.output)
    results.bars = bars(results.rows)
    show(console, [table_of(results.rows, "Ways of making probabilities", _COLUMNS)], results, options.output)
    if options.output is not None:
        plot(results.rows, options.output.with_suffix(".png"))


def _protocol(model: Model) -> list[CalibrationRow]:
    llm, stem = model.llm, model.name
    fit, test = protocol()
    started = time.perf_counter()
    fitted = Calibration.fit(llm, fit.texts, fit.gold, fit.asked)
    read = read_rows(llm, test.texts, test.asked, RowOptions(), states=fitted.needs_state)
    gold = read_gold(test.gold, len(test.gold), read.texts, read.texts)
    seconds = time.perf_counter() - started
    rows = []
    for way, log_p in (("exact", read.raw - np.logaddexp.reduce(read.raw, axis=1, keepdims=True)), (fitted.kind, None)):
        p = np.exp(log_probabilities(fitted, read) if log_p is None else log_p)
        f = figures_of(read.texts, gold, p.argmax(axis=1), p, None)
        figures = [f.accuracy, *f.interval, f.log_loss or 0.0, f.brier or 0.0, f.ece or 0.0]
        rows.append(CalibrationRow(stem, PROTOCOL, way, len(gold), *figures, seconds))
    return rows


def bars(rows: list[CalibrationRow]) -> list[Bar]:
    """Return what the calibrations are to reach."""
    out = []
    by = {(row.model, row.table, row.way): row for row in rows}
    for row in rows:
        where = f"{row.model}, {row.table}"
        raw = by.get((row.model, row.table, "exact"))
        if row.way == "fitted":
            out.append(Bar(f"{where}: ECE of what is fitted", row.ece, False, 0.05, ""))
        if row.way == "bias" and (other := by.get((row.model, row.table, "temperature"))):
            out.append(
                Bar(
                    f"{where}: log loss, a bias less a temperature alone", row.log_loss - other.log_loss, False, 0.0, ""
                )
            )
        if row.way == "fitted" and raw is not None:
            out.append(Bar(f"{where}: log loss, fitted less raw", row.log_loss - raw.log_loss, False, 0.01, ""))
        if row.table == PROTOCOL and row.way != "exact":
            limit = next((limit for name, limit in _RIGHT.items() if name.lower() in row.model.lower()), 0.0)
            out.append(Bar(f"{where}: right", row.right, True, limit, "%"))
            out.append(Bar(f"{where}: ECE", row.ece, False, 0.035, ""))
    return out
