"""The cost of one constrained sampling step, of the constraint alone, and of building the set."""

import signal
from multiprocessing import get_context
from time import perf_counter_ns
from typing import Any

from bench.contenders import ALL, OURS, PEERS
from bench.models import Model, load
from bench.plots import sampler as plot
from bench.results import Results, Table, figure, progress
from bench.sets import SETS
from bench.timing import take_turns

_NEVER_RISKY = 100  # members that every engine is trusted with
_COLUMNS = {
    "build": ">build",
    "hit": ">build, cached",
    "fill": ">fill",
    "apply": ">apply",
    "cold": ">fill+apply, cold",
    "step": ">whole step",
}


def run(options: Any) -> None:
    """Measure all contenders on all sets with all models."""
    results = Results("sampler")
    for name in options.models:
        _measure(name, options, results)
    results.finish(options.output, plot)


def _measure(name: str, options: Any, results: Results) -> None:
    model = load(name)
    ready, broken, setups = _set_up(model)
    lines, notes = [], []
    for set_name in progress(list(SETS), name):
        answers = SETS[set_name](model)
        out = dict(broken)
        risky = PEERS if answers.names and len(answers) > _NEVER_RISKY else {}
        for who in (who for who in risky if who not in broken):
            engine = who.partition(" (")[0]
            # A variant builds sets like the engine's first.
            reason = out.get(engine) if engine != who else _reason_against(who, name, set_name, options.limit)
            out |= {who: reason} if reason else {}
        contenders = [who for who in (ALL if answers.names else OURS) if who not in out]
        rows = list(take_turns({who: ready[who].measures(answers) for who in contenders}, options.rounds or 10))
        where = {"model": model.name, "n_vocab": model.n_vocab, "set": answers.name}
        results.rows += [where | row for row in rows]
        title = f"{answers.name}\n{len({tokens[0] for tokens in answers.tokens})} first tokens"
        for who in contenders:
            found = {row["quantity"]: row for row in rows if row["contender"] == who}
            cells: dict[str, str | None] = dict.fromkeys(_COLUMNS.values())
            for quantity, row in found.items():
                if quantity in _COLUMNS:
                    median, p10, p90 = (figure(row[name]) for name in ("median_us", "p10_us", "p90_us"))
                    cells[_COLUMNS[quantity]] = f"{median} ({p10}-{p90})"
            lines.append({"set": title, "contender": who, **cells})
            title = ""
        lines += [{"set": "", "contender": who, ">build": "out"} for who in out if answers.names]
        notes += [f"Out: {who}, {answers.name}: {reason}" for who, reason in out.items() if answers.names]
    title = f"{model.name}, {model.n_vocab:,} tokens: median microseconds (p10 to p90)"
    slow = ", ".join(f"{who} {seconds:.1f} s" for who, seconds in setups.items() if seconds > 0.01)
    notes.insert(0, f"Once for each model, before any set: {slow}.")
    results.tables.append(Table(title, lines, "\n".join(notes)))


def _set_up(model: Model) -> tuple[dict[str, Any], dict[str, str], dict[str, float]]:
    """Make all contenders; return them, the reasons of those that cannot be made here, and the seconds of each."""
    ready, broken, seconds = {}, {}, {}
    for who, make in ALL.items():
        start = perf_counter_ns()
        try:
            ready[who] = make(model)
        except Exception as error:  # whatever another engine may raise
            broken[who] = f"{type(error).__name__}: {error}"
        seconds[who] = (perf_counter_ns() - start) / 1e9
    return ready, broken, seconds


def _reason_against(contender: str, model: str, answers: str, limit_s: float) -> str | None:
    """Return why a contender is out for a set; None if it built it and took one step within the limit.

    This is found out in a process that may hang or die.
    """
    spawn = get_context("spawn")
    ready, errors = spawn.Event(), spawn.SimpleQueue()
    process = spawn.Process(target=_try, args=(contender, model, answers, ready, errors))
    process.start()
    while not ready.wait(0.1) and process.is_alive():  # the clock runs from when it is ready
        pass
    process.join(limit_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        return f"not done after {limit_s:g} s"
    if process.exitcode < 0:
        return signal.Signals(-process.exitcode).name
    return None if errors.empty() else str(errors.get())[:120]


def _try(who: str, model_name: str, answers_name: str, ready: Any, errors: Any) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    model = load(model_name)
    contender = ALL[who](model)
    answers = SETS[answers_name](model)
    ready.set()
    try:
        for measure in contender.measures(answers).values():
            measure(1)
    except Exception as error:  # whatever another engine may raise
        errors.put(f"{type(error).__name__}: {error}")
