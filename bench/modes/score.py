"""Whole answers by probability: all of a set as one tree, the two forms of a score, the best of 100,000."""

from bench.decisions.tasks import longest_prompt
from bench.device import About, on
from bench.models import find, load
from bench.options import Options
from bench.outcome import show
from bench.results import Results
from bench.scoring.contenders import COMPLETED
from bench.scoring.exact import N_NAME_PROMPTS, exact, exact_names
from bench.scoring.independence import N_INDEPENDENCE_REQUESTS, independence
from bench.scoring.measure import MAIN_SET, N_REQUESTS, city_prompts, forms, requests, scoring, search
from bench.scoring.rows import AnyRow, bars
from bench.scoring.table import tables
from bench.scoring.variants import variants
from bench.table import model_bars, wide_console

_N_BATCH = 512
_ROUNDS = 2
_ROOM = 256  # for answers


def run(options: Options) -> None:
    """Measure with all models; print, and write what was asked for."""
    rounds = options.rounds or _ROUNDS
    device = on(options.device) if options.device else None
    settings = {
        "rounds": rounds,
        "threads": options.threads,
        "completed": COMPLETED,
        "device": str(About.of(device)) if device else None,
    }
    results = Results[AnyRow]("score", settings)
    known = {find(name).stem: name for name in options.models}
    console = wide_console(200)
    for name, begin, advance in model_bars(options.models, console):
        n_ctx = longest_prompt(None) // 3 + _ROOM
        model = load(
            name,
            n_ctx=n_ctx,
            n_batch=_N_BATCH,
            n_gpu_layers=options.n_gpu_layers if options.device else 0,
            threads=options.threads,
            device=options.device,
        )
        begin("scoring", N_REQUESTS * rounds + 1)
        results.rows += scoring(model, options.threads, rounds, n_ctx, advance)
        begin("forms", len(requests()))
        results.rows.append(forms(model, n_ctx, advance))
        begin("searching", len(city_prompts()))
        results.rows.append(search(model, advance))
        begin("proving", len(requests()))
        results.rows.append(exact(model, rounds, n_ctx, advance))
        begin("proving among names", N_NAME_PROMPTS)
        results.rows.append(exact_names(model, rounds, n_ctx, advance))
        begin("independence", N_INDEPENDENCE_REQUESTS)
        results.rows.append(independence(model, n_ctx, advance))
        begin("weighing", len(requests()))
        results.rows.append(variants(model, advance))
    results.bars = bars(results.rows, known, MAIN_SET)
    show(console, tables(results.rows), results, options.output)
