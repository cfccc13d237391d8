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
        """Build the set of some of its members, in its own order, for the same vocabulary.

        Parameters
        ----------
        names : iterable of str
            Names, or `aliases`, of members.
        llm : llama_cpp.Llama, optional
            Needed with ``tokenization="any"``.

        Raises
        ------
        ArgumentError
            A name is none of the set's, or no member is left.
        """
        return self._subset(names, llm, keep=True)

    def without(self: T, names: Iterable[str], *, llm: Llama | None = None) -> T:
        """Build the set without some of its members; all else as of `only`."""
        return self._subset(names, llm, keep=False)

    def filtered(self: T, mask: npt.ArrayLike) -> T:
        """Return the set of some of its members, without building one: in stock, allowed here, not seen yet.

        Members keep their indices and names, so that an answer's index is one into what the set was made of. Nothing is
        copied but the mask, a bit a member; what is left below a node is looked up when an answer comes there, and kept
        with the set that is returned. Masks combine as arrays do (``&``, ``|``, ``~``); a filtered set may be filtered
        again. A set of few members is laid out anew first, as large ones are.

        Parameters
        ----------
        mask : array of bool, shape (n,), or of integers
            Which leaves are left, of all there were when the set was made; or their indices. An Arrow column of
            booleans without nulls will do.

        Raises
        ------
        ArgumentError
            A mask of another length or type, an index that no leaf has or that comes twice, no leaf left, or a set
            of ``tokenization="any"``.
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
