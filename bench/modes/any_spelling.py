"""tokenization="any": what is allowed, what is chosen, and what it costs to build."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from time import perf_counter_ns

import numpy as np

from bench.contenders import ALL, OURS, TOKEN_TRIE, Contender
from bench.contenders.token_trie import GREEDY, TokenTrie
from bench.decisions.tasks import ANY_SPELLING_TASKS, longest_prompt
from bench.models import Model, load
from bench.modes.sampler_table import tables
from bench.options import Options
from bench.outcome import show
from bench.results import Bar, Results, Row
from bench.rounds import take_turns
from bench.sets import SETS
from bench.spellings.allowed import compare
from bench.spellings.greedy import decide
from bench.table import model_bars, plain_table, wide_console

_CASES = 2000
_ROUNDS = 10
_ANY = "token-trie (any)"
_PEERS = ("llguidance", "xgrammar")
_CONTENDERS: dict[str, Callable[[Model], Contender]] = {
    TOKEN_TRIE: OURS[TOKEN_TRIE],
    _ANY: partial(TokenTrie, mode=GREEDY, any_spelling=True),
    **{who: ALL[who] for who in _PEERS},
}
_BUILT = "1,000 ids"


def run(options: Options) -> None:
    """Do all three with all models; print, and write what was asked for."""
    results = Results[Row]("any", {"rounds": options.rounds or _ROUNDS, "cases": _CASES, "threads": options.threads})
    console = wide_console(160)
    for name, begin, advance in model_bars(options.models, console):
        model = load(name, n_ctx=longest_prompt(None) + 256, n_batch=512, threads=options.threads)
        _build(model, options.rounds or _ROUNDS, results, lambda: None)
        begin("random sets", _CASES)
        compared = [asdict(c) for c in compare(model, _CASES, advance)]
        decided = []
        for make in ANY_SPELLING_TASKS:
            begin("decisions", None)
            task = make(model)
            begin("decisions", len(task.cases))
            decided.append(asdict(decide(task, advance)))
        results.checks += [*compared, *decided]
        at = f"{model.n_vocab:,} tokens"
        results.bars += [
            *(
                Bar(f"steps of {c['cases']:,} random walks where {c['engine']} allows others, {at}",
                    c["different"], False, 0, "")
                for c in compared
            ),
            *(
                Bar(f"of these, steps where {c['engine']} is right, {at}", c["wrong"], False, 0, "")
                for c in compared
                if c["different"]
            ),
            Bar(f"greedy decisions with the tokens of GBNF's, of {sum(d['decisions'] for d in decided)}, {at}",
                sum(d["identical"] for d in decided), True, sum(d["decisions"] for d in decided), ""),
            Bar(f"building {_BUILT} over the faster of llguidance and xgrammar, {at}",
                _build_ratio(results.rows, model), False, 1),
        ]  # fmt: skip
    show(console, [*tables(results.rows), _checks_table(results)], results, options.output)


def _build(model: Model, rounds: int, results: Results[Row], advance: Callable[[], object]) -> None:
    where = {"model": model.name, "n_vocab": model.n_vocab}
    ready = {}
    for who, make in _CONTENDERS.items():
        start = perf_counter_ns()
        ready[who] = make(model)
        elapsed = np.array([perf_counter_ns() - start])
        results.rows.append(Row.of(elapsed, **where, set="", leaves=0, branching=0, contender=who, quantity="setup"))
    for set_name in ("30 actions", _BUILT):
        answers = SETS[set_name](model)
        sampled = take_turns({who: ready[who].measures(answers) for who in ready}, rounds, advance)
        for who, quantities in sampled.items():
            results.rows += [
                Row.of(
                    samples,
                    **where,
                    set=answers.name,
                    leaves=len(answers),
                    branching=answers.branching,
                    contender=who,
                    quantity=quantity,
                )
                for quantity, samples in quantities.items()
            ]


def _build_ratio(rows: list[Row], model: Model) -> float | None:
    median = {
        row.contender: row.median_us
        for row in rows
        if (row.model, row.set, row.quantity) == (model.name, _BUILT, "build")
    }
    ours, theirs = median.get(_ANY), [us for who in _PEERS if (us := median.get(who)) is not None]
    return None if ours is None or not theirs else ours / min(theirs)


def _checks_table(results: Results[Row]) -> object:
    table = plain_table("Beside other engines", "model", "beside", ">cases", ">steps", ">alike")
    for check in results.checks:
        if "engine" in check:
            alike = check["steps"] - check["different"]
            table.add_row(check["model"], check["engine"], f"{check['cases']:,}", f"{check['steps']:,}", f"{alike:,}")
        else:
            n = f"{check['decisions']:,}"
            table.add_row(check["model"], f"GBNF, {check['set']}", n, "", f"{check['identical']:,}")
        if check["first_difference"]:
            table.add_row("", f"[dim]{check['first_difference'][:100]}[/]")
    return table
