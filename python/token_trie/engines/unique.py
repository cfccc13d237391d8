"""`UniqueMatchers`: several sequences of one request, of which no two give the same member."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from token_trie.engines.masks import Bitmask, host_array
from token_trie.engines.matcher import BatchMatcher, TrieMatcher
from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_counts
from token_trie.sets.tokens import to_token, to_tokens
from token_trie.sets.trie import TokenTrie

_ENDED = -1


class UniqueMatchers:
    """Positions of several sequences in one set: no two finish the same member, and each finds one.

    A node has as many places as there are members below it that can end, and a sequence holds one at each node of its
    way. A token is legal for a sequence where the others have left a place after it. There are no more sequences than
    such members, so each finds at least one such token at each step. A member cannot end where each end token continues
    a longer member, as with the members ``[1]`` and ``[1, 0]`` and the end token 0.

    Parameters
    ----------
    trie : TokenTrie
        The set, of token sequences: not one of texts in any tokenization.
    n : int
        Sequences; at most as many as the set has members that can end.
    vocab_size : int
        Tokens of the vocabulary: a row of a mask has a bit for each.
    end_tokens : sequence of int
        The tokens that end an answer.

    Raises
    ------
    ArgumentError, VocabularyError
        There are more sequences than members that can end, or as of `TrieMatcher`.

    Notes
    -----
    One thread at a time. A step of a row costs O(n²) in the worst case, where all stand at one node, and not more for a
    larger set.

    Examples
    --------
    >>> rows = UniqueMatchers(trie, 4, vocab_size, end_tokens=[eos])           # doctest: +SKIP
    >>> rows.fill_next_token_bitmask(bitmask)                                  # doctest: +SKIP
    >>> accepted = [rows.accept_token(i, token) for i, token in enumerate(drawn)]    # doctest: +SKIP
    """

    def __init__(self, trie: TokenTrie, n: int, vocab_size: int, *, end_tokens: Sequence[int]) -> None:
        check_counts(n=n)
        self._matchers = [TrieMatcher(trie, vocab_size, end_tokens=end_tokens) for _ in range(n)]
        if not trie.core.is_tree:
            raise ArgumentError("trie: a set of texts in any tokenization, whose members have no places of their own")
        if n > len(trie):
            raise ArgumentError(f"n: {n} sequences, and {len(trie)} members")
        self._trie = trie
        self._ends = to_tokens(end_tokens, "end_tokens").tolist()
        if not self._has_more_than(n - 1, 0):
            raise ArgumentError(
                f"n: {n} sequences, and fewer members that can end; each of end_tokens continues a longer member there"
            )
        self._nodes = [0] * n
        self._gone: defaultdict[int, Counter[int]] = defaultdict(Counter)  # ways that sequences took, by node and token

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self._matchers)

    def accept_token(self, row: int, token_id: int) -> bool:
        """Step one sequence over a token.

        Returns
        -------
        bool
            Whether it was allowed. If not, the sequence stays where it is. Of two that drew the last place in one
            step, the second is refused: fill its mask again, and draw again.

        Raises
        ------
        ArgumentError, VocabularyError
            There is no such row, or as of `TrieMatcher.accept_token`.
        """
        row = self._row(row)
        matcher, node = self._matchers[row], self._nodes[row]
        token_id = to_token(token_id, matcher.vocab_size, "token_id")
        is_over = matcher.is_terminated()
        if not is_over and token_id in self._closed(row):
            return False
        if not matcher.accept_token(token_id):
            return False
        if is_over:
            return True
        if matcher.is_terminated():
            self._gone[node][_ENDED] += 1
            return True
        child = self._trie.core.child(node, token_id)
        assert child is not None
        self._gone[node][token_id] += 1
        self._nodes[row] = child
        return True

    def allowed_tokens(self, row: int) -> list[int]:
        """Return the tokens that are legal next for one sequence, ascending."""
        row = self._row(row)
        closed = self._closed(row)
        return [token for token in self._matchers[row].allowed_tokens().tolist() if token not in closed]

    def fill_next_token_bitmask(self, bitmask: Bitmask, indices: Sequence[int] | None = None) -> None:
        """Fill a row for each sequence, as `BatchMatcher.batch_fill_next_token_bitmask` does."""
        BatchMatcher.batch_fill_next_token_bitmask(self._matchers, bitmask, indices)
        rows = host_array(bitmask).view(np.uint32)
        for i in range(len(self)):
            row = i if indices is None else indices[i]
            for token in self._closed(i):
                rows[row, token // 32] &= ~np.uint32(1 << token % 32)

    def is_terminated(self, row: int) -> bool:
        """Tell whether a sequence has accepted an end token."""
        return self._matchers[self._row(row)].is_terminated()

    def _row(self, row: int) -> int:
        try:
            number = operator.index(row)
        except TypeError as error:
            raise ArgumentError(f"row: {type(row).__name__} where an integer belongs") from error
        if not 0 <= number < len(self):
            raise ArgumentError(f"row: {number} of {len(self)}")
        return number

    def _closed(self, row: int) -> set[int]:
        """Tokens of the set behind which the others hold every place."""
        node = self._nodes[row]
        gone = self._gone.get(node)
        if gone is None or self._matchers[row].is_terminated():
            return set()
        closed: set[int] = set()
        for token, n_held in gone.items():
            if token == _ENDED:
                # One that goes on from here is no end.
                closed.update(end for end in self._ends if self._trie.core.child(node, end) is None)
            else:
                child = self._trie.core.child(node, token)
                assert child is not None
                if not self._has_more_than(n_held, child):
                    closed.add(token)
        return closed

    def _has_more_than(self, n: int, node: int) -> bool:
        """Whether more than n members at a node or below it can end."""
        waiting, found = [node], 0
        while waiting:
            at = waiting.pop()
            is_end = self._trie.core.leaf(at) is not None and any(
                self._trie.core.child(at, end) is None for end in self._ends
            )
            found += is_end
            if found > n:
                return True
            for child in self._trie.core.children(at)[: n + 1].tolist():
                below = self._trie.core.child(at, child)
                assert below is not None
                waiting.append(below)
        return False
