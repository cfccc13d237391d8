"""Whole decisions, alone or side by side: free text, a grammar, the trie as a sampler, the streaming handle."""

from collections.abc import Sequence
from typing import Any

from bench.decisions.bars import bars
from bench.decisions.contenders import FFI, FREE, GUIDED, MODES, STEPPING, TRIE
from bench.decisions.figures import SLOWEST_LEFT_OUT, DecisionRow
from bench.decisions.plot import plot
from bench.decisions.random_sets import draw
from bench.decisions.side_by_side import decide
from bench.decisions.table import remarks, tables
from bench.decisions.tasks import longest_prompt, tasks_for
from bench.models import find, load
from bench.options import Options
from bench.outcome import show
from bench.results import Results
from bench.table import model_bars, wide_console

_DRAWS = 10_000
_N_BATCH = 512
# The contenders that a mode measures, in turns.
_CONTENDERS: dict[str, Sequence[str]] = {
    FREE: (FREE, GUIDED),
    GUIDED: (GUIDED,),
    TRIE: (TRIE, GUIDED),
    FFI: (FFI, GUIDED, STEPPING),
    "decide": (*MODES, STEPPING),
}


def run(options: Options) -> None:
    """Decide everything with all models; print, and write what was asked for."""
    alone = options.mode in MODES
    rounds = options.rounds or 1
    who = _CONTENDERS[options.mode]
    makers = tasks_for(options.prompt, options.descriptor)
    loading: dict[str, Any] = {
        "n_gpu_layers": options.n_gpu_layers,
        "threads": options.threads,
        "device": options.device,
    }
    settings = {"rounds": rounds, **loading, "slowest_left_out": SLOWEST_LEFT_OUT}
    results = Results[DecisionRow](options.mode, settings)
    n_ctx = longest_prompt(options.prompt) + 256
    known = {find(name).stem: name for name in options.models}
    console = wide_console(190)
    for name, begin, advance in model_bars(options.models, console):
        model = load(name, n_ctx=n_ctx, n_batch=_N_BATCH, **loading)
        for make in makers:
            begin("tokenizing", None)
            task = make(model)
            begin(task.name, rounds * len(task.cases))
            log = decide(task, who, rounds, advance)
            results.rows += [log.row(mode) for mode in ([options.mode] if alone else who)]
        if not alone:
            n = _DRAWS // len(options.models)
            begin("random sets", n)
            results.checks.append(draw(model, n, advance))
    if not alone:
        results.bars = bars(results.rows, known, results.checks)
    show(console, tables(results.rows), results, options.output)
    console.print(remarks(results.rows))
    if options.output is not None:
        picture = options.output.with_suffix(".png")
        if plot(results.rows, picture):
            console.print(f"Written: {picture}")
