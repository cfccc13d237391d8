"""Sets on a torch device: masks and steps for a whole batch, without a transfer to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, VocabularyError
from token_trie.native.arguments import check_counts, lookup
from token_trie.sets.tokens import to_tokens
from token_trie.sets.trie import TokenTrie

try:
    import torch
except ImportError as error:
    raise ImportError(f"token_trie.engines.torch needs torch: pip install torch ({error})") from error

Device: TypeAlias = Any
"""Whatever ``torch.device`` takes."""

FREE = 0
"""The node of a row without constraint: it never had one, the span was released, or a token was not allowed."""

_ENDS = {"release": 0, "end": 1}
_NARROW = 256
"""The most children of a node that are listed by number; a node with more has a row of bits."""


class DeviceTries:
    """Sets on a device; the positions in them are a tensor of nodes, one a row.

    Nothing is read back, no shape depends on values of a tensor, and only plain operations are used (indexing,
    ``searchsorted``, ``gather``, ``scatter``), so that it works on any device and inside ``torch.compile``:

    >>> tries = DeviceTries(vocab_size, device=logits.device)                  # doctest: +SKIP
    >>> root = tries.add(trie, end_tokens=[eos])                               # doctest: +SKIP
    >>> nodes = torch.full((batch,), root, device=logits.device)               # doctest: +SKIP
    >>> while True:                                                            # doctest: +SKIP
    ...     tries.mask_(logits, nodes)
    ...     tokens = logits.argmax(-1)
    ...     nodes = tries.step(nodes, tokens)

    Rows of one batch may be in different sets, and rows at node `FREE` are in none. Beams are reordered by
    ``nodes.index_select(0, parents)``; draft tokens of speculative decoding are rows of their own, stepped from the row
    before them; to roll back, keep earlier nodes. For lists, thinking first and all that goes beyond one member, see
    `TrieMatcher`.

    Parameters
    ----------
    vocab_size : int
        Tokens of the vocabulary. Logits may have more columns, which are never allowed under a constraint.
    device : torch.device, str or int, optional
        Where the tensors are; by default torch's.

    Notes
    -----
    A set is three tensors; those of all sets are joined:

        leaves  A=[7]  B=[7, 8]     node    0: free   1: ended   2: root   3: A   4: B    end
        end token 2                 first   0         0          1         2      4       5
                                    key               1·V+2      2·V+7     3·V+2, 3·V+8   4·V+2
                                    target            1          3         1, 4           1

    An edge's key is its node times the size of the vocabulary plus its token; keys ascend, so that a step is one binary
    search for all rows. 16 bytes an edge, 14 a node.
    """

    def __init__(self, vocab_size: int, *, device: Device = None) -> None:
        check_counts(vocab_size=vocab_size)
        self.vocab_size = vocab_size
        try:
            self.device = torch.empty(0, device=device).device
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise ArgumentError(f"device: {error}") from error
        self._first = self._tensor([0, 0])
        self._keys = self._tensor([])
        self._targets = self._tensor([])
        self._lost = self._tensor([FREE])  # node behind a token that is no child
        self._free = self._tensor([True], torch.bool)
        self._width = 1  # most children listed of a node
        self._wide = self._tensor([0])  # a node's row of bits
        self._bits = torch.zeros((1, (vocab_size + 31) // 32), dtype=torch.int32, device=self.device)

    def add(
        self,
        trie: TokenTrie,
        *,
        on_complete: Literal["end", "release"] = "end",
        end_tokens: Sequence[int] | None = None,
    ) -> int:
        """Add a set, and return the node that its rows begin at. Nodes of earlier sets do not change.

        Parameters
        ----------
        trie : TokenTrie
            The set, in either tokenization.
        on_complete : {"end", "release"}
            What may follow a member: an end token; or any token, and then the row is free.
        end_tokens : sequence of int, optional
            Tokens that end the answer, needed for "end". An ended row stays ended, and only they are allowed there.

        Raises
        ------
        ArgumentError, VocabularyError
            The options contradict each other, or tokens are outside the vocabulary.
        """
        if not isinstance(trie, TokenTrie):
            raise ArgumentError(f"trie: {type(trie).__name__} where a TokenTrie belongs")
        must_end = bool(lookup(on_complete, _ENDS, "on_complete"))
        ends = np.unique(to_tokens(() if end_tokens is None else end_tokens, "end_tokens"))
        if must_end != bool(len(ends)):
            raise ArgumentError("end_tokens: needed with on_complete end, and with nothing else")
        handle = trie.core.kept_alone()
        for what, token in (("trie", handle.max_token), ("end_tokens", int(ends[-1]) if len(ends) else 0)):
            if token >= self.vocab_size:
                raise VocabularyError(f"{what}: {token} is outside the vocabulary ({self.vocab_size} tokens)")
        if len(ends) and ends[0] < 0:
            raise VocabularyError(f"end_tokens: {ends[0]} is outside the vocabulary ({self.vocab_size} tokens)")
        base = len(self._lost)
        first, keys, targets = self._edges(handle.edges(), handle.leaf_nodes(), ends, base)
        n = len(first)
        lost, free = np.zeros(n, np.int64), np.zeros(n, bool)
        lost[0] = base  # an ended row stays ended
        if not must_end:
            free[1 + handle.leaf_nodes().astype(np.int64)] = True
        self._join(first, keys, targets, lost, free)
        return base + 1

    def _edges(
        self,
        edges: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32], npt.NDArray[np.uint32]],
        leaves: npt.NDArray[np.uint32],
        ends: npt.NDArray[np.int32],
        base: int,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return each node's first edge, and all keys and targets; node `base` is the set's end, the next its root."""
        counts, tokens, targets = edges
        parents = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        ended = np.concatenate([[base], base + 1 + leaves.astype(np.int64)])
        keys = np.concatenate(
            [
                (base + 1 + parents) * self.vocab_size + tokens,
                (ended[:, None] * self.vocab_size + ends).ravel(),
            ]
        )
        whither = np.concatenate([base + 1 + targets.astype(np.int64), np.full(len(ended) * len(ends), base)])
        # Where an end token also goes on with a member, it does not end the answer.
        keys, kept = np.unique(keys, return_index=True)
        first = np.searchsorted(keys, (base + np.arange(len(counts) + 1)) * self.vocab_size)
        return first, keys, whither[kept]

    def _join(
        self,
        first: npt.NDArray[np.int64],
        keys: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int64],
        lost: npt.NDArray[np.int64],
        free: npt.NDArray[np.bool_],
    ) -> None:
        counts = np.diff(np.append(first, len(keys)))
        is_wide = counts > _NARROW
        self._width = max(self._width, int(counts[~is_wide].max(initial=1)))
        rows = np.zeros((int(is_wide.sum()), self._bits.shape[1]), np.uint32)
        wide = np.where(is_wide, len(self._bits) - 1 + np.cumsum(is_wide), 0)
        for row, node in zip(rows, np.flatnonzero(is_wide), strict=True):
            tokens = keys[first[node] : first[node] + counts[node]] % self.vocab_size
            np.bitwise_or.at(row, tokens // 32, np.uint32(1) << (tokens % 32).astype(np.uint32))
        start = len(self._keys)
        self._first = torch.cat([self._first[:-1], self._tensor(start + first), self._tensor([start + len(keys)])])
        self._keys = torch.cat([self._keys, self._tensor(keys)])
        self._targets = torch.cat([self._targets, self._tensor(targets)])
        self._lost = torch.cat([self._lost, self._tensor(lost)])
        self._free = torch.cat([self._free, self._tensor(free, torch.bool)])
        self._wide = torch.cat([self._wide, self._tensor(wide)])
        self._bits = torch.cat([self._bits, self._tensor(rows.view(np.int32), torch.int32)])

    def _tensor(self, values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.as_tensor(values, dtype=dtype, device=self.device)

    def mask_(self, logits: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """Set the logits of tokens that are not allowed to -inf, in place, and return them.

        Parameters
        ----------
        logits : torch.Tensor, floating point, shape (rows, at least vocab_size)
            Rows at node `FREE`, and released ones, are left as they are.
        nodes : torch.Tensor of int64, shape (rows,)

        Raises
        ------
        ArgumentError
            Other shapes, types or devices; nothing is written. The values of nodes are not checked: those that this
            object did not return give any result, or torch's own error.
        """
        self._check(nodes, "nodes")
        if logits.ndim != 2 or logits.shape[0] != nodes.shape[0] or logits.shape[1] < self.vocab_size:
            raise ArgumentError(
                f"logits: shape {tuple(logits.shape)} where ({nodes.shape[0]}, {self.vocab_size} or more) belongs"
            )
        if not logits.dtype.is_floating_point or logits.device != self.device:
            raise ArgumentError(f"logits: {logits.dtype} on {logits.device} where floats on {self.device} belong")
        if not len(self._keys):
            return logits
        out = ~self._free[nodes][:, None]
        # A node with fewer children than the width lists its last child again. A row at a node without children is
        # free, and its tokens keep their logits.
        first = self._first[nodes]
        last = self._first[nodes + 1] - 1
        at = torch.arange(self._width, device=self.device)
        edges = torch.minimum(first[:, None] + at, last[:, None]).clamp(min=0)
        tokens = (self._keys[edges] - (nodes * self.vocab_size)[:, None]).clamp(0, self.vocab_size - 1)
        kept = logits.gather(1, tokens)
        if len(self._bits) > 1:
            bits = self._bits[self._wide[nodes]]
            is_child = (bits[:, :, None] >> torch.arange(32, dtype=torch.int32, device=self.device)) & 1
            is_child = is_child.reshape(len(nodes), -1)[:, : self.vocab_size].to(torch.bool)
            logits[:, self.vocab_size :].masked_fill_(out, -torch.inf)
            logits[:, : self.vocab_size].masked_fill_(out & ~is_child, -torch.inf)
        else:
            logits.masked_fill_(out, -torch.inf)
        return logits.scatter_(1, tokens, kept)

    def step(self, nodes: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the nodes that tokens lead to.

        A token that is not allowed ends the constraint, and its row is free. An ended row stays ended behind any token,
        such as padding.

        Parameters
        ----------
        nodes : torch.Tensor of int64, shape (rows,)
        tokens : torch.Tensor of int64 or int32, shape (rows,)

        Raises
        ------
        ArgumentError
            Other shapes, types or devices.
        """
        self._check(nodes, "nodes")
        if tokens.dtype == torch.int32:
            tokens = tokens.to(torch.int64)
        self._check(tokens, "tokens")
        if tokens.shape != nodes.shape:
            raise ArgumentError(f"tokens: {tokens.shape[0]} for {nodes.shape[0]} nodes")
        if not len(self._keys):
            return torch.zeros_like(nodes)
        key = nodes * self.vocab_size + tokens
        edge = torch.searchsorted(self._keys, key).clamp(max=len(self._keys) - 1)
        is_token = (tokens >= 0) & (tokens < self.vocab_size)
        return torch.where(is_token & (self._keys[edge] == key), self._targets[edge], self._lost[nodes])

    def is_terminated(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return whether an end token was accepted, a bool a row."""
        self._check(nodes, "nodes")
        return (nodes != FREE) & (self._lost[nodes] == nodes)

    def _check(self, tensor: torch.Tensor, what: str) -> None:
        if tensor.ndim != 1 or tensor.dtype != torch.int64 or tensor.device != self.device:
            raise ArgumentError(
                f"{what}: {tensor.dtype}, shape {tuple(tensor.shape)}, on {tensor.device}, where int64 in one "
                f"dimension on {self.device} belongs"
            )
