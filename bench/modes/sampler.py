"""The cost of one constrained sampling step, of the constraint alone, and of building the set."""

from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import numpy as np
from rich.progress import Progress

from bench import native
from bench.contenders import ALL, OURS, PEERS, Contender, Measure, engine
from bench.models import Model, load
from bench.modes.sampler_bars import bars
from bench.modes.sampler_plot import plot
from bench.modes.sampler_table import tables
from bench.options import Options
from bench.outcome import show
from bench.probe import reason_against
from bench.results import Results, Row
from bench.rounds import take_turns
from bench.sets import SETS, Answers
from bench.table import progress_bar, wide_console

_ROUNDS = 10
_NEVER_RISKY = 100  # members that every engine is trusted with


def run(options: Options) -> None:
    """Measure all contenders on all sets with all models; print, and write what was asked for."""
    rounds = options.rounds or _ROUNDS
    settings = {"rounds": rounds, "limit_s": options.limit_s, "clock_ns_taken_off": native.clock_ns()}
    results = Results[Row]("sampler", settings)
    console = wide_console(160)
    with progress_bar(console, counts=False) as progress:
        total = len(options.models) * len(SETS) * rounds
        bar = progress.add_task("", total=total)
        for name in options.models:
            _OneModel(name, options, rounds, results, progress, bar).run()
    results.bars = bars(results.rows)
    show(console, tables(results.rows), results, options.output)
    if options.output is not None:
        plot(results.rows, options.output.with_suffix(".png"))
        console.print(f"Written: {options.output.with_suffix('.png')}")


@dataclass
class _OneModel:
    name: str
    options: Options
    rounds: int
    results: Results[Row]
    progress: Progress
    bar: Any
    ready: dict[str, Contender] = field(default_factory=dict)

    def run(self) -> None:
        self.progress.update(self.bar, description=f"{self.name}: loading")
        model = load(self.name)
        broken = self._set_up(model)
        for set_name, make in SETS.items():
            self._say(f"{set_name}: tokenizing")
            answers = make(model)
            out = dict(broken)
            measures: dict[str, dict[str, Measure]] = {}
            for who in ALL if answers.names else OURS:
                if who not in out:
                    reason = self._reason_against(who, answers, out)
                    if reason is None:
                        measures[who] = self.ready[who].measures(answers)
                    else:
                        out[who] = reason
            self._say(set_name)
            sampled = take_turns(measures, self.rounds, lambda: self.progress.advance(self.bar))
            where = self._where(model) | {"set": answers.name, "leaves": len(answers), "branching": answers.branching}
            for who, quantities in sampled.items():
                self.results.rows += [
                    Row.of(samples, **where, contender=who, quantity=quantity)
                    for quantity, samples in quantities.items()
                ]
            if answers.names:
                self.results.rows += [
                    Row(**where, contender=who, quantity="all", failed=reason) for who, reason in out.items()
                ]

    def _set_up(self, model: Model) -> dict[str, str]:
        """Make all contenders; return the reasons of those that this installation cannot make."""
        broken = {}
        for who, make in ALL.items():
            self._say(f"{who}: setting up")
            start = perf_counter_ns()
            try:
                self.ready[who] = make(model)
            except Exception as error:  # whatever another engine may say
                broken[who] = f"{type(error).__name__}: {error}"
                continue
            elapsed = np.array([perf_counter_ns() - start])
            where = self._where(model) | {"set": "", "leaves": 0, "branching": 0}
            self.results.rows.append(Row.of(elapsed, **where, contender=who, quantity="setup"))
        return broken

    def _reason_against(self, who: str, answers: Answers, out: dict[str, str]) -> str | None:
        if who not in PEERS or len(answers) < _NEVER_RISKY:
            return None
        if engine(who) != who:  # a variant builds sets like the engine's first
            return out.get(engine(who))
        self._say(f"{answers.name}: trying {who} apart")
        return reason_against(who, self.name, answers.name, self.options.limit_s)

    def _say(self, text: str) -> None:
        self.progress.update(self.bar, description=f"{self.name}: {text}")

    @staticmethod
    def _where(model: Model) -> dict[str, Any]:
        return {"model": model.name, "n_vocab": model.n_vocab}
