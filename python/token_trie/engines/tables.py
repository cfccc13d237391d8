"""Sets joined in tensors of a device, and walks of them: native on the host, by tensor operations elsewhere."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from token_trie.errors import LimitError
from token_trie.native.core import _core

FREE = 0
"""The node of a row without constraint: it never had one, the span was released, or a token was not allowed."""

PLAIN, RELEASED, ENDED = 0, 1, 2
"""Kinds of rows: under constraint, free, at the end."""

_COMPLETE = np.iinfo(np.int32).max
_MOST = np.iinfo(np.int32).max
_NARROW = 1 << 15
_MINUS_INFINITY = {
    torch.float16: 0xFC00,
    torch.bfloat16: 0xFF80,
    torch.float32: 0xFF800000,
    torch.float64: 0xFFF0000000000000,
}
"""Bits of minus infinity in the types of logits that the host's walk writes."""


class Candidates(NamedTuple):
    """What may follow each row, as wide as the widest of them."""

    logprobs: torch.Tensor
    """Shape (rows, width), of the type of what was given; ``-inf`` behind a row's last."""
    tokens: torch.Tensor
    """int64, the same shape; ascending in a row, 0 behind its last."""
    nodes: torch.Tensor
    """int64, the same shape: where each token leads; `FREE` behind a row's last."""


class JoinedTables:
    """The tensors of all sets, drawn in csrc/trie/tensors.h and csrc/walk/tables.h.

    A node is a row, or, below 0, the complement of a place in the tails. Row 0 is free; each set adds the rows of its
    end, of a complete member, and its own, the first of which is its root.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size, self.device = vocab_size, device
        narrow = torch.int16 if vocab_size <= _NARROW else torch.int32
        self.first = self._tensor([0, 0], torch.int32)
        self.kinds = self._tensor([RELEASED], torch.uint8)
        self.tokens = self._tensor([], narrow)
        self.targets = self._tensor([], torch.int32)
        self.tails = self._tensor([], narrow)
        self.tail_begins = self._tensor([0], torch.int32)
        self.completes = self._tensor([FREE], torch.int32)
        self.width = 1
        self._on_host()

    def _tensor(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(values, device=self.device).to(dtype)

    def _on_host(self) -> None:
        self.host: _core.Tables | None = None
        if self.device.type == "cpu":
            arrays = (self.first, self.kinds, self.tokens, self.targets, self.tails, self.tail_begins, self.completes)
            self.host = _core.Tables(self.vocab_size, *(tensor.numpy() for tensor in arrays))

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        tensors = (self.first, self.kinds, self.tokens, self.targets, self.tails, self.tail_begins, self.completes)
        return sum(tensor.nbytes for tensor in tensors)

    def join(self, core: _core.Trie, ends: npt.NDArray[np.int32]) -> int:
        """Add a set, whose members the end tokens follow, or, without any, whatever may; return its root."""
        first, tokens, targets, tails, ends_at = core.tensors()
        base, place = len(self.kinds), len(self.tails)
        n_edges = len(self.tokens) + len(tokens) + len(ends) * (2 + int(ends_at.sum()))
        if max(n_edges, base + len(ends_at), place + len(tails)) >= _MOST - 2:
            raise LimitError("the sets have too many edges for 32 bits; use another DeviceTries")
        ended, complete, root = base, base + 1, base + 2
        whither = np.where(targets < 0, targets - place, targets + root)
        whither[targets == _COMPLETE] = complete
        kinds = np.full(2 + len(ends_at), PLAIN, np.uint8)
        kinds[0] = ENDED
        if len(ends):
            first, tokens, whither = _with_ends(first, tokens, whither, np.flatnonzero(ends_at), ends, ended)
        else:
            kinds[1] = RELEASED
            kinds[2:][ends_at != 0] = RELEASED
        start = len(self.tokens)
        before = start + len(ends) * np.arange(2)
        self.first = torch.cat(
            [
                self.first[:-1],
                self._tensor(before, torch.int32),
                self._tensor(first + (start + 2 * len(ends)), torch.int32),
            ]
        )
        self.kinds = torch.cat([self.kinds, self._tensor(kinds, torch.uint8)])
        self.tokens = torch.cat(
            [self.tokens, *[self._tensor(some, self.tokens.dtype) for some in (ends, ends, tokens)]]
        )
        at_end = np.full(2 * len(ends), ended, np.int32)
        self.targets = torch.cat([self.targets, *[self._tensor(some, torch.int32) for some in (at_end, whither)]])
        self.tails = torch.cat([self.tails, self._tensor(tails, self.tails.dtype)])
        if len(tails):
            self.tail_begins = torch.cat([self.tail_begins, self._tensor([place], torch.int32)])
            self.completes = torch.cat([self.completes, self._tensor([complete], torch.int32)])
        self.width = max(self.width, len(ends), int(np.diff(first).max()))
        self._on_host()
        return root

    def mask_(self, logits: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """Set what is not allowed to -inf, in place."""
        if self._walks_natively(logits):
            assert self.host is not None
            self.host.mask(*_matrix(logits, logits.shape[1]), nodes.contiguous().numpy())
            return logits
        if not len(self.tokens):
            return logits
        # Behind a row's last child its first one stands again; a row without children is free, and keeps its logits.
        tokens, _, is_child = self._children(nodes, self.width)
        tokens = torch.where(is_child, tokens, tokens[:, :1])
        kept = logits.gather(1, tokens)
        logits.masked_fill_(~self.is_free(nodes)[:, None], -torch.inf)
        return logits.scatter_(1, tokens, kept)

    def step(self, nodes: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the nodes behind tokens."""
        if self.host is not None and not torch.compiler.is_compiling():
            out = torch.empty_like(nodes, memory_format=torch.contiguous_format)
            self.host.step(nodes.contiguous().numpy(), tokens.contiguous().numpy(), out.numpy())
            return out
        if not len(self.tokens):
            return torch.zeros_like(nodes)
        rows = nodes.clamp(min=0)
        begin, end = self.first[rows].to(torch.int64), self.first[rows + 1].to(torch.int64)
        last = len(self.tokens) - 1
        low, high = begin, end
        for _ in range(self.width.bit_length()):
            middle = (low + high) // 2
            is_below = (low < high) & (self.tokens[middle.clamp(max=last)] < tokens)
            low, high = torch.where(is_below, middle + 1, low), torch.where(is_below, high, middle)
        edge = low.clamp(max=last)
        is_child = (low < end) & (self.tokens[edge] == tokens)
        stays = torch.where(self.kinds[rows] == ENDED, nodes, FREE)
        of_row = torch.where(is_child, self.targets[edge].to(torch.int64), stays)
        if not len(self.tails):
            return of_row
        token, behind = self._in_tails(nodes)
        return torch.where(nodes < 0, torch.where(token == tokens, behind, FREE), of_row)

    def candidates(self, logprobs: torch.Tensor, nodes: torch.Tensor, width: int | None) -> Candidates:
        """Return the children of each row."""
        if self._walks_natively(logprobs):
            assert self.host is not None
            rows = nodes.contiguous().numpy()
            shape = len(nodes), self.host.width(rows) if width is None else width
            values = torch.empty(shape, dtype=logprobs.dtype)
            # As one, or allocators give memory of this size back to the system, and take it again at each step.
            tokens, targets = torch.empty((2, *shape), dtype=torch.int64)
            matrix = _matrix(logprobs, self.vocab_size)
            self.host.candidates(*matrix, rows, values.data_ptr(), tokens.numpy(), targets.numpy())
            return Candidates(values, tokens, targets)
        if width is None and torch.compiler.is_compiling():
            width = self.width
        elif width is None:
            width = max(1, int(self._n_children(nodes).max())) if len(nodes) else 1
        tokens, targets, is_child = self._children(nodes, width)
        values = torch.where(is_child, logprobs.gather(1, tokens), -torch.inf)
        return Candidates(values, tokens, targets)

    def is_terminated(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return which nodes are ends."""
        return (nodes >= 0) & (self.kinds[nodes.clamp(min=0)] == ENDED)

    def is_free(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return behind which nodes any token may follow."""
        return (nodes >= 0) & (self.kinds[nodes.clamp(min=0)] == RELEASED)

    def _n_children(self, nodes: torch.Tensor) -> torch.Tensor:
        rows = nodes.clamp(min=0)
        return torch.where(nodes < 0, 1, self.first[rows + 1] - self.first[rows])

    def _children(self, nodes: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the first `width` children's tokens and nodes, 0 where there are none, and which there are."""
        at = torch.arange(width, device=self.device)
        is_child = at < self._n_children(nodes)[:, None]
        edges = (self.first[nodes.clamp(min=0)][:, None] + at).clamp(max=max(len(self.tokens) - 1, 0))
        if not len(self.tokens):
            none = torch.zeros_like(edges)
            return none, none, torch.zeros_like(is_child)
        tokens, targets = self.tokens[edges].to(torch.int64), self.targets[edges].to(torch.int64)
        if len(self.tails):
            in_tail = (nodes < 0)[:, None]
            token, behind = self._in_tails(nodes)
            tokens = torch.where(in_tail, token[:, None], tokens)
            targets = torch.where(in_tail, behind[:, None], targets)
        return torch.where(is_child, tokens, 0), torch.where(is_child, targets, FREE), is_child

    def _in_tails(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the token at each node's place in the tails and the node behind it; of a row, any."""
        place = (~nodes).clamp(min=0)
        tail = self.tails[place].to(torch.int64)
        of_set = torch.searchsorted(self.tail_begins, place.to(torch.int32), right=True) - 1
        behind = torch.where(tail < 0, self.completes[of_set].to(torch.int64), ~(place + 1))
        return torch.where(tail < 0, ~tail, tail), behind

    def _walks_natively(self, logits: torch.Tensor) -> bool:
        return (
            self.host is not None
            and not torch.compiler.is_compiling()
            and logits.dtype in _MINUS_INFINITY
            and logits.stride(1) == 1
            and (len(logits) < 2 or logits.stride(0) >= logits.shape[1])
            and not logits.requires_grad
        )


def _matrix(logits: torch.Tensor, n_columns: int) -> tuple[int, int, int, int, int]:
    return logits.data_ptr(), n_columns, logits.stride(0), logits.element_size(), _MINUS_INFINITY[logits.dtype]


def _with_ends(
    first: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int32],
    targets: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int32],
    ended: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Insert the end tokens into rows; where one also goes on with a member, it does not end the answer."""
    if not len(rows):
        return first, tokens, targets
    stride = 1 << 32
    keys = np.repeat(np.arange(len(first) - 1, dtype=np.int64), np.diff(first)) * stride + tokens
    new = (rows[:, None] * stride + ends).ravel()
    at = np.searchsorted(keys, new)
    is_new = (at == len(keys)) | (keys[np.minimum(at, len(keys) - 1)] != new)
    at, new = at[is_new], new[is_new]
    added = np.bincount(new // stride, minlength=len(first) - 1)
    grown = (first + np.concatenate([[0], np.cumsum(added)])).astype(np.int32)
    return grown, np.insert(tokens, at, new % stride), np.insert(targets, at, ended)
