"""The cost of one constrained sampling step, of the constraint alone, and of building the set."""

from time import perf_counter_ns
from typing import Any

from bench.contenders import ALL, OURS, PEERS
from bench.models import Model, load
from bench.plots import sampler as plot
from bench.probe import reason_against
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
            reason = out.get(engine) if engine != who else reason_against(who, name, set_name, options.limit)
            out |= {who: reason} if reason else {}
        contenders = [who for who in (ALL if answers.names else OURS) if who not in out]
        rows = list(take_turns({who: ready[who].measures(answers) for who in contenders}, options.rounds or 10))
        where = {"model": model.name, "n_vocab": model.n_vocab, "set": answers.name}
        results.rows += [where | row for row in rows]
        title = f"{answers.name}\n{answers.branching} first tokens"
        for who in contenders:
            found = {row["quantity"]: row for row in rows if row["contender"] == who}
            cells = {heading: _cell(found[quantity]) for quantity, heading in _COLUMNS.items() if quantity in found}
            lines.append({"set": title, "contender": who, **dict.fromkeys(_COLUMNS.values()), **cells})
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


def _cell(row: dict[str, Any]) -> str:
    return f"{figure(row['median_us'])} ({figure(row['p10_us'])}-{figure(row['p90_us'])})"
