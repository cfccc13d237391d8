"""Masks for batches of rows: ours on the host and as tensors beside xgrammar, llguidance and transformers."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby

from rich.table import Table

from bench.contenders.base import Measure
from bench.contenders.masks import single_threaded_torch
from bench.masking import contenders as who
from bench.masking.sets import fan_out
from bench.models import Model, load
from bench.options import Options
from bench.outcome import show
from bench.results import Bar, Results, Row
from bench.rounds import take_turns
from bench.sets import Answers, actions, catalogue
from bench.table import figure, plain_table, progress_bar, wide_console

_BATCHES = (1, 8, 64, 256)
_BETWEEN = 151_936
_FANS = (30, 1000, 100_000, 1_000_000)  # leaves
_ROUNDS = 10
_QUANTITIES = ("fill", "apply", "fill+apply", "mask", "step", "mask+step", "step and back")


def run(options: Options) -> None:
    """Measure with the vocabularies of all models, and one between them; print, and write what was asked for."""
    from token_trie import TokenTrie

    single_threaded_torch()
    rounds = options.rounds or _ROUNDS
    results = Results[Row]("mask", {"rounds": rounds, "torch_threads": 1})
    console = wide_console(160)
    models: list[Model | None] = [*(load(name) for name in options.models), None]
    with progress_bar(console) as progress:
        bar = progress.add_task("", total=(2 * len(options.models) + len(_FANS) * len(models)) * len(_BATCHES))
        for model in models:
            n_vocab = _BETWEEN if model is None else model.n_vocab
            named = [] if model is None else [actions(model), catalogue(model, 1000)]
            for answers in [*named, *(fan_out(n_vocab, n) for n in _FANS)]:
                trie = TokenTrie.from_sequences({str(i): tokens for i, tokens in enumerate(answers.tokens)})
                for rows in _BATCHES:
                    progress.update(bar, description=f"{n_vocab:,} tokens, {len(trie):,} leaves, {rows} rows")
                    taken = take_turns(_contenders(model, answers, trie, n_vocab, rows), rounds, lambda: None)
                    progress.advance(bar)
                    where = {
                        "model": "no model" if model is None else model.name,
                        "n_vocab": n_vocab,
                        "set": answers.name,
                        "leaves": len(trie),
                        "branching": answers.branching,
                        "rows": rows,
                    }
                    results.rows += [
                        Row.of(of, contender=contender, quantity=quantity, **where)
                        for contender, by_quantity in taken.items()
                        for quantity, of in by_quantity.items()
                    ]
    results.bars = bars(results.rows)
    show(console, _tables(results.rows), results, options.output)


def _contenders(
    model: Model | None, answers: Answers, trie: object, n_vocab: int, rows: int
) -> dict[str, dict[str, Measure]]:
    batch = who.Batch(n_vocab, rows)
    makers: dict[str, Callable[[], dict[str, Measure]]] = {
        who.BITMASK: partial(batch.bitmask, trie, 0),
        who.TENSORS: partial(batch.tensors, trie, 0),
        who.MEMORY: batch.memory,
        f"{who.XGRAMMAR} apply": batch.applied,
    }
    if model is not None and answers.names:
        makers[who.XGRAMMAR] = partial(batch.xgrammar, model, answers)
        makers[who.LLGUIDANCE] = partial(batch.llguidance, model, answers)
    if len(trie) <= 1000:  # type: ignore[arg-type]
        makers[who.TRANSFORMERS] = partial(batch.transformers, trie, 0)
    return {name: make() for name, make in makers.items()}


def bars(rows: list[Row]) -> list[Bar]:
    """Return what is promised, of 64 rows at the largest vocabulary."""
    n_vocab = max(row.n_vocab for row in rows)
    of_64 = {(r.set, r.contender, r.quantity): r.median_us for r in rows if r.n_vocab == n_vocab and r.rows == 64}

    def us(answers: str, contender: str, quantity: str) -> float | None:
        return of_64.get((answers, contender, quantity))

    def ratio(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None or b <= 0 else a / b

    ours = us("30 actions", who.BITMASK, "fill")
    peers = [t for p in (who.XGRAMMAR, who.LLGUIDANCE) if (t := us("30 actions", p, "fill")) is not None]
    few, many = "30 at fan-out 30", "1,000,000 at fan-out 30"
    tensors = us(few, who.TENSORS, "mask+step")
    filled, applied = us(few, who.BITMASK, "fill"), us(few, f"{who.XGRAMMAR} apply", "apply")
    both = None if filled is None or applied is None else filled + applied
    at = f"64 rows, {n_vocab:,} tokens"
    fill = Bar(
        f"bitmask fill, 30 actions, {at}: the faster of xgrammar and llguidance over ours",
        ratio(min(peers, default=None), ours),
        True,
        3,
    )
    if not fill.met:  # it need not be faster than the memory
        written = ratio(ours, us("30 actions", who.MEMORY, "fill"))
        fill = Bar(f"bitmask fill, 30 actions, {at}: ours over the mere writing of its bytes", written, False, 1.1)
    return [
        fill,
        Bar(f"mask + step as tensors, {at}: 1,000,000 leaves over 30",
            ratio(us(many, who.TENSORS, "mask+step"), tensors), False, 1.2),
        Bar(f"host bitmask and xgrammar's kernel over mask + step as tensors, 30 leaves, {at}",
            ratio(both, tensors), True, 2),
    ]  # fmt: skip


def _tables(rows: list[Row]) -> Iterator[Table]:
    for (model, n_vocab), of_model in groupby(rows, key=lambda row: (row.model, row.n_vocab)):
        table = plain_table(
            f"{model}, {n_vocab:,} tokens: median microseconds",
            "set",
            ">rows",
            "contender",
            *(f">{q}" for q in _QUANTITIES),
        )
        for (answers, n_rows), of_set in groupby(list(of_model), key=lambda row: (row.set, row.rows)):
            lines = list(of_set)
            for contender in dict.fromkeys(row.contender for row in lines):
                by_quantity = {row.quantity: row.median_us for row in lines if row.contender == contender}
                cells = [figure(us) if (us := by_quantity.get(q)) is not None else "" for q in _QUANTITIES]
                table.add_row(answers, str(n_rows), contender, *cells)
        yield table
