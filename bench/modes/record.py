"""Whole records: 100 tool calls and 63 records, side by side."""

from bench.models import load
from bench.options import Options
from bench.outcome import show
from bench.records.figures import RecordRow, bars, measure, table
from bench.records.tasks import Calls, Records
from bench.results import Results
from bench.table import model_bars, wide_console

_N_CTX, _N_BATCH = 1024, 512


def run(options: Options) -> None:
    """Let everyone write all calls with all models; print, and write what was asked for."""
    rounds = options.rounds or 1
    loading = {"n_gpu_layers": options.n_gpu_layers, "threads": options.threads}
    results = Results[RecordRow](options.mode, {"rounds": rounds, **loading})
    console = wide_console(150)
    for name, begin, advance in model_bars(options.models, console):
        model = load(name, n_ctx=_N_CTX, n_batch=_N_BATCH, **loading)
        for requests in (Calls(model), Records(model)):
            begin(requests.name, rounds * len(requests.cases))
            results.rows += measure(requests, rounds, advance)
    results.bars = bars(results.rows)
    show(console, [table(results.rows)], results, options.output)
