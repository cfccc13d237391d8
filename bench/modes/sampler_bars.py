"""What token-trie promises of a sampling step, against what was measured."""

from bench.contenders import FREE, GBNF, PEERS, TOKEN_TRIE, engine
from bench.results import Bar, Row

_ACTIONS = "30 actions"


def bars(rows: list[Row]) -> list[Bar]:
    """Return every bar, at the largest vocabulary measured."""
    n_vocab = max((row.n_vocab for row in rows), default=0)
    median = {
        (row.set, row.contender, row.quantity): row.median_us
        for row in rows
        if row.n_vocab == n_vocab and row.median_us is not None
    }

    def cheapest(quantity: str, *engines: str) -> float | None:
        found = [median.get((_ACTIONS, who, quantity)) for who in PEERS if engine(who) in engines]
        return min((us for us in found if us is not None), default=None)

    def ours(quantity: str, answers: str = _ACTIONS) -> float | None:
        return median.get((answers, TOKEN_TRIE, quantity))

    def ratio(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None or b <= 0 else a / b

    at = f"{_ACTIONS}, {n_vocab:,} tokens"
    fan_out = "30 at fan-out 30"
    many = "100,000 at fan-out 30"
    return [
        Bar(f"apply, {at}: llguidance's and xgrammar's cheapest fill + apply over ours",
            ratio(cheapest("mask", "llguidance", "xgrammar"), ours("mask")), True, 100),
        Bar("the same, all from empty caches",
            ratio(cheapest("cold", "llguidance", "xgrammar"), ours("cold")), True, 100),
        Bar(f"apply, {at}: GBNF over ours", ratio(cheapest("mask", GBNF), ours("mask")), True, 10_000),
        Bar(f"whole step, {at}: ours over an unconstrained greedy one",
            ratio(ours("step"), median.get((_ACTIONS, FREE, "step"))), False, 1),
        Bar("apply at equal branching: 100,000 leaves over 30, at the root",
            ratio(ours("mask", many), ours("mask", fan_out)), False, 1.5),
        Bar("apply at equal branching: 100,000 leaves over 30, at random inner nodes, from empty caches",
            ratio(ours("cold", f"{many}, inner nodes"), ours("cold", fan_out)), False, 1.5),
        Bar(f"payload to ready, cold, {at}: llguidance over ours",
            ratio(cheapest("build", "llguidance"), ours("build")), True, 10),
        Bar(f"payload to ready, cold, {at}: xgrammar over ours",
            ratio(cheapest("build", "xgrammar"), ours("build")), True, 10),
        Bar("cache hit over SHA-256 of the payload, 30 actions", ratio(ours("hit"), ours("hash")), False, 2),
        Bar("cache hit over SHA-256 of the payload, 100,000 ids",
            ratio(ours("hit", "100,000 ids"), ours("hash", "100,000 ids")), False, 1.1),
    ]  # fmt: skip
