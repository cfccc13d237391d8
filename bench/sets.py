"""The sets that an answer has to come from."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from bench.models import Model

FAN_OUT = 30
_DEPTH = 4


def data(name: str) -> object:
    """Return what a file in bench/data holds."""
    return json.loads(files("bench").joinpath("data", name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Answers:
    """A set of answers; names is empty where they are token sequences that spell no text."""

    name: str
    names: list[str]
    tokens: list[list[int]]
    paths: NDArray[np.int32] | None = None  # positions to measure at, padded with -1; None: at the beginning

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def branching(self) -> int:
        """Tokens that an answer can begin with."""
        return len({tokens[0] for tokens in self.tokens})

    @cached_property
    def _tail(self) -> bytes:
        names = self.names or map(str, range(len(self)))
        leaves = [{"name": name, "tokens": tokens} for name, tokens in zip(names, self.tokens, strict=True)]
        return json.dumps({"descriptors": [{"path": "", "leaves": leaves}]}, separators=(",", ":")).encode()[1:]

    @cached_property
    def _tail_of_texts(self) -> bytes:
        leaves = [{"name": name, "text": name} for name in self.names]
        descriptor = {"tokenization": "any", "leaves": leaves}
        return json.dumps({"descriptors": [descriptor]}, separators=(",", ":")).encode()[1:]

    def payload(self, nonce: int = 0) -> bytes:
        """Return the set as token-trie's payload; another nonce makes other bytes of the same set."""
        return b'{"modelId":"%010d",' % nonce + self._tail

    def payload_of_texts(self, nonce: int = 0) -> bytes:
        """Return the names as a payload for any tokenization."""
        return b'{"modelId":"%010d",' % nonce + self._tail_of_texts


def actions(model: Model) -> Answers:
    """30 names of an agent's actions."""
    names = data("actions.json")
    assert isinstance(names, list)
    return Answers("30 actions", names, [model.tokenize(name) for name in names])


def ids(n: int) -> list[str]:
    """Names as in a catalogue, such as amber-anchor-000000."""
    words = data("words.json")
    assert isinstance(words, dict)
    kinds, things = words["kinds"], words["things"]
    return [f"{kinds[i % len(kinds)]}-{things[i // len(kinds) % len(things)]}-{i:06d}" for i in range(n)]


def catalogue(model: Model, n: int) -> Answers:
    """Ids of a catalogue."""
    names = ids(n)
    return Answers(f"{n:,} ids", names, [model.tokenize(name) for name in names])


def fan_out(model: Model, n: int, *, inner: bool = False) -> Answers:
    """Sequences over the same 30 tokens, so that nodes have 30 children whatever the number of leaves.

    The tokens are spread over the vocabulary. 30 leaves are 30 sequences of one token; 100,000 are numbers of four
    digits in base 30, first digit fastest. Measured at the root or, with inner, at random ones of the 931 nodes on the
    first three levels, which all have 30 children.
    """
    alphabet = np.linspace(1000, model.n_vocab - 1000, FAN_OUT, dtype=np.int64)
    depth = 1 if n <= FAN_OUT else _DEPTH
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
    "30 at fan-out 30": partial(fan_out, n=30),
    "100,000 at fan-out 30": partial(fan_out, n=100_000),
    "100,000 at fan-out 30, inner nodes": partial(fan_out, n=100_000, inner=True),
}
