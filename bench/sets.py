"""The sets that an answer has to come from."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.models import Model

FAN_OUT = 30


def data(name: str) -> Any:
    """Read a JSON file of bench/data."""
    return json.loads(files("bench").joinpath("data", name).read_text(encoding="utf-8"))


@dataclass(frozen=True, eq=False)
class Answers:
    """A set of answers; names is empty where they are token sequences that spell no text."""

    name: str
    names: list[str]
    tokens: list[list[int]]
    paths: NDArray[np.int32] | None = None  # positions to measure at, padded with -1; None: at the beginning

    def __len__(self) -> int:
        return len(self.tokens)

    @cache  # noqa: B019  sets live as long as the run
    def _tail(self) -> bytes:
        pairs = zip(self.names or map(str, range(len(self))), self.tokens, strict=True)
        descriptor = {"path": "", "leaves": [{"name": name, "tokens": tokens} for name, tokens in pairs]}
        return json.dumps({"descriptors": [descriptor]}, separators=(",", ":")).encode()[1:]

    def payload(self, nonce: int = 0) -> bytes:
        """Return the set as token-trie's payload; another nonce makes other bytes of the same set."""
        return b'{"modelId":"%010d",' % nonce + self._tail()


def actions(model: Model) -> Answers:
    """30 names of an agent's actions."""
    names = data("actions.json")
    return Answers("30 actions", names, [model.tokenize(name) for name in names])


def ids(n: int) -> list[str]:
    """Names as in a catalogue, such as amber-anchor-000000."""
    words = data("words.json")
    kinds, things = words["kinds"], words["things"]
    return [f"{kinds[i % len(kinds)]}-{things[i // len(kinds) % len(things)]}-{i:06d}" for i in range(n)]


def catalogue(model: Model, n: int) -> Answers:
    """Ids of a catalogue."""
    names = ids(n)
    return Answers(f"{n:,} ids", names, [model.tokenize(name) for name in names])


def fan_out(n_vocab: int, n: int, *, inner: bool = False) -> Answers:
    """Sequences over the same 30 tokens, so that nodes have 30 children whatever the number of leaves.

    The tokens are spread over the vocabulary. Sequences are numbers in base 30, first digit fastest, as long as needed.
    Measured at the root or, with inner, at random ones of the 931 nodes on the first three levels.
    """
    alphabet = np.linspace(1000, n_vocab - 1000, FAN_OUT, dtype=np.int64)
    depth = next(depth for depth in range(1, 99) if FAN_OUT**depth >= n)
    digits = np.arange(n)[:, None] // FAN_OUT ** np.arange(depth) % FAN_OUT
    name = f"{n:,} at fan-out {FAN_OUT}"
    if not inner:
        return Answers(name, [], alphabet[digits].tolist())
    rng = np.random.default_rng(0)
    paths = alphabet[rng.integers(FAN_OUT, size=(4096, 2))].astype(np.int32)
    nodes = np.array([1, FAN_OUT, FAN_OUT**2])
    lengths = rng.choice(3, size=4096, p=nodes / nodes.sum())
    paths[np.arange(2)[None, :] >= lengths[:, None]] = -1
    return Answers(name + ", inner nodes", [], alphabet[digits].tolist(), paths)


SETS: dict[str, Callable[[Model], Answers]] = {
    "30 actions": actions,
    "1,000 ids": partial(catalogue, n=1000),
    "100,000 ids": partial(catalogue, n=100_000),
    "30 at fan-out 30": lambda model: fan_out(model.n_vocab, n=30),
    "100,000 at fan-out 30": lambda model: fan_out(model.n_vocab, n=100_000),
    "100,000 at fan-out 30, inner nodes": lambda model: fan_out(model.n_vocab, n=100_000, inner=True),
}
