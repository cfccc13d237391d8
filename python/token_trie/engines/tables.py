"""Sets joined in tensors of a device, and walks of them: native on the host, by tensor operations elsewhere."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from token_trie.engines.masks import PUT_BACK
from token_trie.errors import ArgumentError, LimitError
from token_trie.native.core import _core

_log = logging.getLogger("token_trie.torch")

FREE = 0
"""The node of a row without constraint: it never had one, the span was released, or a token was not allowed."""

PLAIN, RELEASED, ENDED = 0, 1, 2
"""Kinds of rows: under constraint, free, at the end."""

_COMPLETE = np.iinfo(np.int32).max
_MOST = np.iinfo(np.int32).max
_NARROW = 1 << 15
MINUS_INFINITY = {
    torch.float16: 0xFC00,
    torch.bfloat16: 0xFF80,
    torch.float32: 0xFF800000,
    torch.float64: 0xFFF0000000000000,
}
"""Bits of minus infinity in the types of logits."""


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
        self._has_warned = False
        self._on_host()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle the tensors; the host's view of them is made again."""
        return {name: value for name, value in self.__dict__.items() if name != "host"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over the tensors."""
        self.__dict__.update(state)
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
        """Set what is not allowed to -inf, in place; a row without a logit above it gets what is allowed back, at 0."""
        if self._walks_natively(logits):
            assert self.host is not None
            if self.host.mask(*_matrix(logits, logits.shape[1]), nodes.contiguous().numpy()):
                self._warn()
            return logits
        if _overlaps(logits):
            raise ArgumentError("logits: share memory with each other, as after expand; mask a clone")
        if logits.requires_grad and torch.is_grad_enabled():
            return self._mask_under_grad(logits, nodes)
        is_traced = torch.compiler.is_compiling()
        if not is_traced and logits.is_inference() and not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.mask_(logits, nodes)
        if not len(self.tokens):
            return logits
        # After a row's last child its first one comes again; a row without children is free, and keeps its logits.
        tokens, is_child, _ = self._child_tokens(nodes, self.width)
        tokens = torch.where(is_child, tokens, tokens[:, :1])
        is_bound = ~self.is_free(nodes)
        kept = logits.gather(1, tokens)
        is_empty = is_bound & (kept.amax(1) == -torch.inf)
        if self.device.type == "cpu" and not is_traced and bool((is_empty & ~self.is_terminated(nodes)).any()):
            self._warn()
        kept = torch.where(is_empty[:, None], 0.0, kept)
        logits.masked_fill_(is_bound[:, None], -torch.inf)
        return logits.scatter_(1, tokens, kept)

    def _mask_under_grad(self, logits: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """Mask by operations whose gradients need no value of the logits; the first of them fails or none does."""
        with torch.no_grad():
            masked = self.mask_(logits.clone(), nodes)
            is_out = masked == -torch.inf
            is_back = ~is_out & (logits == -torch.inf)
        try:
            return logits.masked_fill_(is_out, -torch.inf).masked_fill_(is_back, 0.0)
        except RuntimeError as error:
            raise ArgumentError(f"logits: {error} Mask a clone, or under torch.no_grad().") from error

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(PUT_BACK, "these were put back with equal logits")

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
        tokens, is_child, edges = self._child_tokens(nodes, width)
        if not len(self.tokens):
            return tokens, tokens, is_child
        targets = self.targets[edges].to(torch.int64)
        if len(self.tails):
            targets = torch.where((nodes < 0)[:, None], self._in_tails(nodes)[1][:, None], targets)
        return torch.where(is_child, tokens, 0), torch.where(is_child, targets, FREE), is_child

    def _child_tokens(self, nodes: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the first `width` children's tokens, any where there are none, which there are, and their edges."""
        rows = nodes.clamp(min=0)
        begin, at = self.first[rows], torch.arange(width, device=self.device)
        is_child = at < torch.where(nodes < 0, 1, self.first[rows + 1] - begin)[:, None]
        edges = (begin[:, None] + at).clamp(max=max(len(self.tokens) - 1, 0))
        if not len(self.tokens):
            return torch.zeros_like(edges), torch.zeros_like(is_child), edges
        tokens = self.tokens[edges].to(torch.int64)
        if len(self.tails):
            tokens = torch.where((nodes < 0)[:, None], self._tail_tokens(nodes)[0][:, None], tokens)
        return tokens, is_child, edges

    def _in_tails(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the token at each node's place in the tails and the node after it; of a row, any."""
        token, is_last = self._tail_tokens(nodes)
        place = (~nodes).clamp(min=0)
        of_set = torch.searchsorted(self.tail_begins, place.to(torch.int32), right=True) - 1
        return token, torch.where(is_last, self.completes[of_set].to(torch.int64), ~(place + 1))

    def _tail_tokens(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the token at each node's place in the tails, and whether it is the last; of a row, any."""
        tail = self.tails[(~nodes).clamp(min=0)].to(torch.int64)
        return torch.where(tail < 0, ~tail, tail), tail < 0

    def _walks_natively(self, logits: torch.Tensor) -> bool:
        return (
            self.host is not None
            and not torch.compiler.is_compiling()
            and not logits.is_neg()
            and logits.stride(1) == 1
            and (len(logits) < 2 or logits.stride(0) >= logits.shape[1])
            and not logits.requires_grad
        )


def _overlaps(matrix: torch.Tensor) -> bool:
    """Tell whether two elements of a matrix may be one place in memory."""
    (near, n_near), (far, n_far) = sorted(zip(matrix.stride(), matrix.shape, strict=True))
    return bool((n_near > 1 and near == 0) or (n_far > 1 and far < near * (n_near - 1) + 1))


def _matrix(logits: torch.Tensor, n_columns: int) -> tuple[int, int, int, int, int]:
    return logits.data_ptr(), n_columns, logits.stride(0), logits.element_size(), MINUS_INFINITY[logits.dtype]


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
