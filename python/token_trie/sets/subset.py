"""Sets of some of another's members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError
from token_trie.native.arguments import encode_names
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.lease import lease
from token_trie.sets.payload import named_leaves, payload_of_texts
from token_trie.sets.tokens import joined

T = TypeVar("T", bound="Subsets")


class Subsets:
    """The methods of a `TokenTrie` that make a smaller one."""

    __slots__ = ()

    core: _core.Trie
    _start: int | None

    @classmethod
    def of_core(cls: type[T], core: _core.Trie, start_token: int | None = None) -> T:  # noqa: D102
        raise NotImplementedError

    def only(self: T, names: Iterable[str], *, llm: Llama | None = None) -> T:
        """Build a set of some of the members, in the same order, for the same vocabulary.

        Parameters
        ----------
        names : iterable of str
            Names, or `aliases`, of members.
        llm : llama_cpp.Llama, optional
            Needed with ``tokenization="any"``.

        Raises
        ------
        ArgumentError
            There is no member with a name, or no member is left.
        """
        return self._subset(names, llm, keep=True)

    def without(self: T, names: Iterable[str], *, llm: Llama | None = None) -> T:
        """Build a set without some of the members; everything else is as in `only`."""
        return self._subset(names, llm, keep=False)

    def filtered(self: T, mask: npt.ArrayLike) -> T:
        """Return a set of some of the members without building it: for example those that are in stock.

        Members keep their indices and names, so an answer's index is still an index into the original data. Only the
        mask is copied, as one bit for each member. The children that remain at a node are found when they are needed,
        and are kept with the returned set. Masks can be combined as arrays (``&``, ``|``, ``~``). A filtered set can be
        filtered again. A small set is first converted to the layout of large sets.

        Parameters
        ----------
        mask : array of bool, shape (n,), or of integers
            A boolean for each leaf that the set had when it was made, or the indices of the leaves to keep. It can be
            an Arrow column of booleans without nulls.

        Raises
        ------
        ArgumentError
            The mask has another length or type, an index does not exist or occurs twice, no leaf is left, or the set
            has ``tokenization="any"``.
        """
        n = self.core.n_leaves
        try:
            given = np.asarray(mask)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"mask: {error}") from error
        if given.ndim == 1 and given.dtype.kind in "iu" and len(given):
            wrong = np.flatnonzero((given < 0) | (given >= n))
            if len(wrong):
                raise ArgumentError(f"mask[{wrong[0]}]: {given[wrong[0]]} is no leaf's index; there are {n:,}")
            keep = np.zeros(n, np.bool_)
            keep[given] = True
            if np.count_nonzero(keep) != len(given):
                raise ArgumentError("mask: an index comes twice; a mask of one number a leaf must be of booleans")
        elif given.shape == (n,) and given.dtype == np.bool_:
            keep = np.ascontiguousarray(given)
        elif given.shape == (0,):
            raise ArgumentError("mask: no member of the set is left")
        else:
            raise ArgumentError(
                f"mask: {given.dtype}, shape {given.shape}, where bool, shape ({n},), or indices belong"
            )
        return self.of_core(self.core.filtered(keep), self._start)

    def _subset(self: T, names: Iterable[str], llm: Llama | None, *, keep: bool) -> T:
        return self.of_core(_subset(self.core, names, llm, keep=keep), self._start)


def _subset(trie: _core.Trie, names: Iterable[str], llm: Llama | None, *, keep: bool) -> _core.Trie:
    """Build a trie of the members of these names, or of all others."""
    trie = trie.kept_alone()
    all_names = named_leaves(trie)
    given = [name.decode() for name in encode_names(names, "names")]
    unknown = set(given).difference(name for name, _ in all_names)
    for i, name in enumerate(given):
        if name in unknown:
            raise ArgumentError(f"names[{i}]: {name!r} is no member of the set")
    wanted = set(given)
    named = {leaf for name, leaf in all_names if name in wanted}
    kept = [(name, leaf) for name, leaf in all_names if (leaf in named) == keep]
    if not kept:
        raise ArgumentError("names: no member of the set is left")
    names_kept = [name for name, _ in kept]
    if not trie.is_tree:
        if llm is None:
            raise ArgumentError("llm: a set of texts in any tokenization is made for a model; give it")
        payload = payload_of_texts(names_kept, [trie.text(leaf).decode() for _, leaf in kept])
        with lease(llm):
            return _core.cached_trie(payload.encode(), None, vocab_of(llm))
    tokens, offsets = trie.arrays()
    rows = [tokens[offsets[leaf] : offsets[leaf + 1]] for _, leaf in kept]
    return _core.Trie.build(*joined(rows), names_kept, trie.vocab)
