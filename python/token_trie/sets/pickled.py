"""Views of sets, as they go from one process to another: with all of their leaves, so that indices stay."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from token_trie.native.core import _core

Ints = npt.NDArray[np.int32]


# As arrays, with a bit for each leaf that is left. In what was joined, a leaf may repeat one that gave way to it:
#
#     leaves   D=[5]  A=[7]  B=[7,8]  b=[7,8]  C=[9]
#     left       1      0       0        1       1
#                                        ^ at the latest, what was joined begins here
class View(NamedTuple):
    """What a view is made of again."""

    tokens: Ints
    offsets: npt.NDArray[np.int64]
    names: list[str]
    aliases: list[tuple[str, int]]
    left: npt.NDArray[np.uint8]
    """A bit a leaf."""
    vocab: str


def view_of(trie: _core.Trie) -> View:
    """Return what a view is made of."""
    names = [trie.name(leaf) for leaf in range(trie.n_leaves)]
    return View(*trie.arrays(), names, trie.aliases, np.packbits(trie.left()), trie.vocab)


def made_of(view: View) -> _core.Trie:
    """Make a view again."""
    n, n_base = len(view.names), _n_unlike(view)
    keep = np.unpackbits(view.left, count=n).astype(np.bool_)
    trie = _built(view, 0, n_base)
    if n_base < n:
        trie = trie.joined(_built(view, n_base, n), keep[:n_base])
    return trie.filtered(keep)


def _n_unlike(view: View) -> int:
    """Return how many leaves there are before the first that repeats another's tokens."""
    seen = set[bytes]()
    for i, (begin, end) in enumerate(itertools.pairwise(view.offsets.tolist())):
        tokens = view.tokens[begin:end].tobytes()
        if tokens in seen:
            return i
        seen.add(tokens)
    return len(view.names)


def _built(view: View, begin: int, end: int) -> _core.Trie:
    """Build a set of some leaves and, behind them, their aliases, which give way to them again."""
    aliases = [(name, leaf) for name, leaf in view.aliases if begin <= leaf < end]
    at = view.offsets
    rows = [view.tokens[at[begin] : at[end]], *(view.tokens[at[leaf] : at[leaf + 1]] for _, leaf in aliases)]
    ends = np.cumsum([0, *np.diff(at[begin : end + 1]), *(len(row) for row in rows[1:])], dtype=np.int64)
    names = [*view.names[begin:end], *(name for name, _ in aliases)]
    return _core.Trie.build(np.concatenate(rows), ends, names, view.vocab)
