"""Sets on a torch device: masks, steps and beam search for a whole batch, without a transfer to the host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.engines.matcher import PUT_BACK
from token_trie.errors import ArgumentError, LimitError, VocabularyError
from token_trie.native.checks import check_counts, lookup
from token_trie.native.core import _core
from token_trie.sets.spelling import to_tokens
from token_trie.sets.trie import TokenTrie

try:
    import torch
except ImportError as error:
    raise ImportError(f"token_trie.engines.torch needs torch: pip install torch ({error})") from error

__all__ = ["FREE", "Beams", "Candidates", "DeviceTries"]

_log = logging.getLogger("token_trie.torch")

FREE = 0
"""The node of a row without constraint: it has no set, was released, or took a token that was not allowed."""

PLAIN, RELEASED, ENDED = 0, 1, 2
"""Kinds of rows: under constraint, free, at the end."""

_COMPLETE = _MAX_EDGES = np.iinfo(np.int32).max
_NARROW = 1 << 15
MINUS_INFINITY = {
    torch.float16: 0xFC00,
    torch.bfloat16: 0xFF80,
    torch.float32: 0xFF800000,
    torch.float64: 0xFFF0000000000000,
}
"""Bits of minus infinity in each type of logits."""

NONE = -1
"""The token after a beam's last."""

_ENDS = {"release": 0, "end": 1}

Device: TypeAlias = Any
"""An argument of ``torch.device``."""

LogitsOf: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From the tokens so far, int64 of shape (batch, beams, steps), and the beam of the step before that each continues,
int64 of shape (batch, beams), to logits or log-probabilities of shape (batch, beams, at least vocab_size)."""


class Candidates(NamedTuple):
    """The tokens that may follow each row, padded to the widest row."""

    logprobs: torch.Tensor
    """Shape (rows, width), of the type of the input; ``-inf`` after a row's last."""
    tokens: torch.Tensor
    """int64, the same shape; ascending in a row, 0 after its last."""
    nodes: torch.Tensor
    """int64, the same shape: the node after each token; `FREE` after a row's last."""


class Beams(NamedTuple):
    """The best members of each row of a batch, best first; where fewer are found, logprobs are ``-inf``."""

    tokens: torch.Tensor
    """int64, shape (batch, beams, steps): a member and the end token after it, then -1."""
    logprobs: torch.Tensor
    """float32, shape (batch, beams): the sum over the tokens."""
    nodes: torch.Tensor
    """int64, shape (batch, beams): the node after the last token."""


class DeviceTries:
    """Sets on a device; the positions in them are a tensor of nodes, one a row.

    `mask_` and `step` read nothing back, no shape depends on values of a tensor, and only plain operations are used
    (indexing, ``searchsorted``, ``gather``, ``scatter``), so that they work on any device and inside ``torch.compile``.

    Rows of one batch may be in different sets, and rows at node `FREE` are in none. To reorder beams, use
    ``nodes.index_select(0, parents)``; draft tokens of speculative decoding are rows of their own, stepped from the row
    before them; to roll back, keep earlier nodes. For lists, thinking and everything beyond one member, see
    `TrieMatcher`.

    Parameters
    ----------
    vocab_size : int
        Number of tokens of the vocabulary. More columns of logits are never allowed under a constraint.
    device : torch.device, str or int, optional
        The device of the tensors; by default torch's.

    Notes
    -----
    A node is the index of a row of edges or, below 0, of a position in the tails, which hold the tokens of nodes with
    one member left. A million members of 8 uniform tokens out of 2,048 take 27 bytes each, 4 to 6 of them in the tails.
    See csrc/trie/tensors.h. Native code reads these arrays on the host, tensor operations elsewhere.

    Examples
    --------
    >>> tries = DeviceTries(vocab_size, device=logits.device)                  # doctest: +SKIP
    >>> root = tries.add(trie, end_tokens=[eos])                               # doctest: +SKIP
    >>> nodes = torch.full((batch,), root, device=logits.device)               # doctest: +SKIP
    >>> while True:                                                            # doctest: +SKIP
    ...     tries.mask_(logits, nodes)
    ...     tokens = logits.argmax(-1)
    ...     nodes = tries.step(nodes, tokens)
    """

    def __init__(self, vocab_size: int, *, device: Device = None) -> None:
        check_counts(vocab_size=vocab_size)
        self.vocab_size = vocab_size
        try:
            self.device = torch.empty(0, device=device).device
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise ArgumentError(f"device: {error}") from error
        self._tables = JoinedTables(vocab_size, self.device)
        self._max_tokens = 0

    @property
    def nbytes(self) -> int:
        """Number of bytes of the sets on the device."""
        return self._tables.nbytes

    def add(
        self,
        trie: TokenTrie,
        *,
        on_complete: Literal["end", "release"] = "end",
        end_tokens: Sequence[int] | None = None,
    ) -> int:
        """Add a set, and return the node at which its rows begin. Nodes of earlier sets do not change.

        Parameters
        ----------
        trie : TokenTrie
            The set, in either tokenization.
        on_complete : {"end", "release"}
            What may follow a member: an end token; or any token, and then the row is free.
        end_tokens : sequence of int, optional
            Tokens that end the answer, needed for "end". An ended row stays ended, and allows only these.

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
        root = self._tables.join(handle, ends)
        self._max_tokens = max(self._max_tokens, handle.max_length + must_end)
        return root

    def mask_(self, logits: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """Set the logits of tokens that are not allowed to -inf, in place, and return them.

        If all allowed tokens of a row are -inf already, they are put back at 0, and on the host the first such row is
        logged as a warning (logger ``token_trie.torch``).

        Parameters
        ----------
        logits : torch.Tensor, floating point, shape (rows, at least vocab_size)
            Rows at node `FREE`, and released ones, do not change. Gradients pass through the logits that stay.
        nodes : torch.Tensor of int64, shape (rows,)

        Raises
        ------
        ArgumentError
            Other shapes, types or devices, logits that share memory with each other, or a leaf of autograd's graph;
            nothing is written. The values of nodes are not checked: with nodes from elsewhere, the result is undefined,
            or torch raises an error.
        """
        self._check_logits(logits, nodes, "logits")
        return self._tables.mask_(logits, nodes)

    def candidates(self, logprobs: torch.Tensor, nodes: torch.Tensor, *, width: int | None = None) -> Candidates:
        """Return the log-probabilities, tokens and next nodes of each row's children.

        Parameters
        ----------
        logprobs : torch.Tensor, floating point, shape (rows, at least vocab_size)
            Or logits; values are not normalized.
        nodes : torch.Tensor of int64, shape (rows,)
            A row at node `FREE` has no candidates. A released one has those that continue with a longer member.
        width : int, optional
            Number of columns; more children are left out. By default the largest number of children of a row, which
            on a device other than the host reads one number back; inside ``torch.compile``, that of all nodes.

        Returns
        -------
        Candidates
            Three tensors of shape (rows, width).

        Raises
        ------
        ArgumentError
            As for `mask_`; or width is not positive.
        """
        self._check_logits(logprobs, nodes, "logprobs")
        if width is not None:
            check_counts(width=width)
        return self._tables.candidates(logprobs, nodes, width)

    def beam(
        self, logits_of: LogitsOf, roots: torch.Tensor, *, beam_width: int, max_tokens: int | None = None
    ) -> Beams:
        """Search for the most probable members of each row's set; it returns only members.

        A step ranks the children of all beams, no other tokens; the best `beam_width` sums of log-probabilities
        continue. With on_complete "end" the end token counts; with "release" a member is complete without one, beside
        longer members that begin with it. Like any beam search, it may lose a member with an improbable prefix;
        `choose` with mode "exact" does not.

        Parameters
        ----------
        logits_of : callable
            ``logits_of(tokens, parents)``: tokens so far, int64 of shape (batch, beams, steps), -1 after an end; and
            the beam of the step before that each beam continues, int64 of shape (batch, beams), for the model's cache.
            Returns logits of shape (batch, beams, at least vocab_size). At first, beams is 1 and steps 0. A beam whose
            logits have a NaN, or are all ``-inf``, is lost. If all allowed tokens of a row's beams are ``-inf``, they
            are put back with equal probabilities, with a warning (logger ``token_trie.torch``).
        roots : torch.Tensor of int64, shape (batch,)
            The node that `add` returned for the set of each row.
        beam_width : int
            Number of beams of a row.
        max_tokens : int, optional
            Number of steps; by default that of the longest member of all sets. A beam that is not complete by then is
            lost.

        Raises
        ------
        ArgumentError
            Arguments or logits of another shape, type or device, or no rows.
        """
        self._check(roots, "roots")
        if not len(roots):
            raise ArgumentError("roots: none")
        check_counts(beam_width=beam_width)
        if max_tokens is not None:
            check_counts(max_tokens=max_tokens)
        with torch.no_grad():
            return search(self._tables, logits_of, roots, beam_width, max_tokens or self._max_tokens)

    def step(self, nodes: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the nodes that tokens lead to.

        A row whose token is not allowed becomes free. An ended row stays ended after any token, such as padding.

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
        _check_dense(tokens, "tokens")
        if tokens.dtype == torch.int32:
            tokens = tokens.to(torch.int64)
        self._check(tokens, "tokens")
        if tokens.shape != nodes.shape:
            raise ArgumentError(f"tokens: {tokens.shape[0]} for {nodes.shape[0]} nodes")
        return self._tables.step(nodes, tokens)

    def is_terminated(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return for each row whether an end token was accepted."""
        self._check(nodes, "nodes")
        return self._tables.is_terminated(nodes)

    def _check_logits(self, logits: torch.Tensor, nodes: torch.Tensor, what: str) -> None:
        self._check(nodes, "nodes")
        _check_dense(logits, what)
        shape = logits.shape
        if len(shape) != 2 or shape[0] != nodes.shape[0] or shape[1] < self.vocab_size:
            raise ArgumentError(
                f"{what}: shape {tuple(shape)} where ({nodes.shape[0]}, {self.vocab_size} or more) belongs"
            )
        if logits.dtype not in MINUS_INFINITY or logits.device != self.device:
            raise ArgumentError(f"{what}: {logits.dtype} on {logits.device} where floats on {self.device} belong")

    def _check(self, tensor: torch.Tensor, what: str) -> None:
        _check_dense(tensor, what)
        if tensor.ndim != 1 or tensor.dtype != torch.int64 or tensor.device != self.device:
            raise ArgumentError(
                f"{what}: {tensor.dtype}, shape {tuple(tensor.shape)}, on {tensor.device}, where int64 in one "
                f"dimension on {self.device} belongs"
            )


def _check_dense(tensor: torch.Tensor, what: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{what}: {type(tensor).__name__} where a torch.Tensor belongs")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise ArgumentError(f"{what}: a nested or sparse tensor where a dense one belongs")


class JoinedTables:
    """The tensors of all sets, drawn in csrc/trie/tensors.h and csrc/cursor/tables.h.

    A node is a row or, below 0, the complement of a position in the tails. Row 0 is free; each set adds a row for its
    end, a row for a complete member, and its own rows, the first of which is its root.
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
        """Return the tensors, without the host's view of them."""
        return {name: value for name, value in self.__dict__.items() if name != "host"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the tensors, and make the host's view of them again."""
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
        """Number of bytes on the device."""
        tensors = (self.first, self.kinds, self.tokens, self.targets, self.tails, self.tail_begins, self.completes)
        return sum(tensor.nbytes for tensor in tensors)

    def join(self, core: _core.Trie, ends: npt.NDArray[np.int32]) -> int:
        """Add a set, and return its root; end tokens follow its members or, without ends, any token does."""
        first, tokens, targets, tails, ends_at = core.tensors()
        base, tail = len(self.kinds), len(self.tails)
        n_edges = len(self.tokens) + len(tokens) + len(ends) * (2 + int(ends_at.sum()))
        if max(n_edges, base + len(ends_at), tail + len(tails)) >= _MAX_EDGES - 2:
            raise LimitError("the sets have too many edges for 32 bits; use another DeviceTries")
        ended, complete, root = base, base + 1, base + 2
        to = np.where(targets < 0, targets - tail, targets + root)
        to[targets == _COMPLETE] = complete
        kinds = np.full(2 + len(ends_at), PLAIN, np.uint8)
        kinds[0] = ENDED
        if len(ends):
            first, tokens, to = _with_ends(first, tokens, to, np.flatnonzero(ends_at), ends, ended)
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
        self.targets = torch.cat([self.targets, *[self._tensor(some, torch.int32) for some in (at_end, to)]])
        self.tails = torch.cat([self.tails, self._tensor(tails, self.tails.dtype)])
        if len(tails):
            self.tail_begins = torch.cat([self.tail_begins, self._tensor([tail], torch.int32)])
            self.completes = torch.cat([self.completes, self._tensor([complete], torch.int32)])
        self.width = max(self.width, len(ends), int(np.diff(first).max()))
        self._on_host()
        return root

    def mask_(self, logits: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """Set tokens that are not allowed to -inf, in place; in a row where all are -inf, allowed ones get 0."""
        if self._runs_natively(logits):
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
        # Rows are padded with their first child; a row without children is free, and keeps its logits.
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
        """Mask by operations whose gradients need no logits; if one fails, it is the first, and nothing is written."""
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
        """Return the nodes after tokens."""
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
        token, after = self._in_tails(nodes)
        return torch.where(nodes < 0, torch.where(token == tokens, after, FREE), of_row)

    def candidates(self, logprobs: torch.Tensor, nodes: torch.Tensor, width: int | None) -> Candidates:
        """Return the children of each row."""
        if self._runs_natively(logprobs):
            assert self.host is not None
            rows = nodes.contiguous().numpy()
            shape = len(nodes), self.host.width(rows) if width is None else width
            values = torch.empty(shape, dtype=logprobs.dtype)
            # As one tensor: allocators would return two of this size to the system, and request them again each step.
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
        """Return for each node whether it is an end."""
        return (nodes >= 0) & (self.kinds[nodes.clamp(min=0)] == ENDED)

    def is_free(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return for each node whether any token may follow it."""
        return (nodes >= 0) & (self.kinds[nodes.clamp(min=0)] == RELEASED)

    def _n_children(self, nodes: torch.Tensor) -> torch.Tensor:
        rows = nodes.clamp(min=0)
        return torch.where(nodes < 0, 1, self.first[rows + 1] - self.first[rows])

    def _children(self, nodes: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the tokens and nodes of the first `width` children, 0 for missing ones, and which children exist."""
        tokens, is_child, edges = self._child_tokens(nodes, width)
        if not len(self.tokens):
            return tokens, tokens, is_child
        targets = self.targets[edges].to(torch.int64)
        if len(self.tails):
            targets = torch.where((nodes < 0)[:, None], self._in_tails(nodes)[1][:, None], targets)
        return torch.where(is_child, tokens, 0), torch.where(is_child, targets, FREE), is_child

    def _child_tokens(self, nodes: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the tokens of the first `width` children, any for missing ones, which exist, and their edges."""
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
        """Return the token at each node's position in the tails, and the node after it; undefined for rows."""
        token, is_last = self._tail_tokens(nodes)
        at = (~nodes).clamp(min=0)
        of_set = torch.searchsorted(self.tail_begins, at.to(torch.int32), right=True) - 1
        return token, torch.where(is_last, self.completes[of_set].to(torch.int64), ~(at + 1))

    def _tail_tokens(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the token at each node's position in the tails, and whether it is the last; undefined for rows."""
        tail = self.tails[(~nodes).clamp(min=0)].to(torch.int64)
        return torch.where(tail < 0, ~tail, tail), tail < 0

    def _runs_natively(self, logits: torch.Tensor) -> bool:
        return (
            self.host is not None
            and not torch.compiler.is_compiling()
            and not logits.is_neg()
            and logits.stride(1) == 1
            and (len(logits) < 2 or logits.stride(0) >= logits.shape[1])
            and not logits.requires_grad
        )


def _overlaps(matrix: torch.Tensor) -> bool:
    """Tell whether two elements of a matrix may have the same address."""
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
    """Insert the end tokens into rows; one that continues a member does not end the answer."""
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


def search(tables: JoinedTables, logits_of: LogitsOf, roots: torch.Tensor, width: int, max_tokens: int) -> Beams:
    """Keep at each step the `width` most probable children of a row's beams; see `DeviceTries.beam`."""
    batch = len(roots)
    nodes = roots[:, None]
    scores = torch.zeros((batch, 1), device=roots.device)
    tokens = torch.zeros((batch, 1, 0), dtype=torch.int64, device=roots.device)
    parents = torch.zeros_like(nodes)
    may_stop = torch.zeros_like(nodes, dtype=torch.bool)
    has_warned = False
    for _ in range(max_tokens):
        n_beams, n_vocab = nodes.shape[1], tables.vocab_size
        logits = logits_of(tokens, parents)
        if not isinstance(logits, torch.Tensor):
            raise ArgumentError(f"logits_of: {type(logits).__name__} where a torch.Tensor belongs")
        if logits.ndim != 3 or logits.shape[:2] != (batch, n_beams) or logits.shape[2] < n_vocab:
            given = tuple(logits.shape)
            raise ArgumentError(f"logits_of: shape {given} where ({batch}, {n_beams}, {n_vocab} or more) belongs")
        logprobs = torch.log_softmax(logits.reshape(batch * n_beams, -1).float(), -1)
        found = tables.candidates(logprobs, nodes.reshape(-1), None)
        is_open = ~tables.is_terminated(nodes)[:, :, None]
        shape = batch, n_beams, -1
        # A complete member may stop, or continue as a longer one.
        grown = found.logprobs.reshape(shape)
        # Logits that are NaN, or all -inf, rank no token: the beam is lost.
        may_grow = is_open & ~grown.isnan()
        grown = torch.where(may_grow, grown, -torch.inf)
        stays = torch.where(may_stop, 0.0, -torch.inf)[:, :, None]
        total = (scores[:, :, None] + torch.cat([stays, grown], 2)).reshape(batch, -1)
        is_empty = total.amax(1) == -torch.inf
        if bool(is_empty.any()):
            # The allowed tokens of such a row are put back; beams that are lost stay lost.
            is_child = may_grow & (found.nodes.reshape(shape) != FREE)
            equal = torch.where(is_child, -is_child.sum(2, keepdim=True).log(), -torch.inf)
            again = (scores[:, :, None] + torch.cat([stays, equal], 2)).reshape(batch, -1)
            total = torch.where(is_empty[:, None], again, total)
            if not has_warned and bool((total[is_empty] > -torch.inf).any()):
                has_warned = True
                _log.warning(PUT_BACK, "in each beam of a row, and these were put back with equal probabilities")
        scores, best = total.topk(min(width, total.shape[1]), dim=1)
        parents, column = best // (grown.shape[2] + 1), best % (grown.shape[2] + 1)
        stopped = column == 0
        flat = parents * grown.shape[2] + (column - 1).clamp(min=0)
        took = found.tokens.reshape(batch, -1).gather(1, flat)
        came_to = found.nodes.reshape(batch, -1).gather(1, flat)
        is_none = scores == -torch.inf
        before = nodes.gather(1, parents)
        # A released member that stops is free; an ended one stays ended.
        stayed = torch.where(tables.is_terminated(before), before, FREE)
        nodes = torch.where(stopped, stayed, came_to)
        nodes = torch.where(is_none, FREE, nodes)
        took = torch.where(stopped | is_none, NONE, took)
        tokens = torch.cat([tokens.gather(1, parents[:, :, None].expand(-1, -1, tokens.shape[2])), took[:, :, None]], 2)
        may_stop = (tables.is_terminated(nodes) | tables.is_free(nodes)) & ~is_none
    scores = torch.where(may_stop, scores, -torch.inf)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    lost = scores == -torch.inf
    tokens = tokens.gather(1, order[:, :, None].expand(-1, -1, tokens.shape[2])).masked_fill(lost[:, :, None], NONE)
    return Beams(tokens, scores, nodes.gather(1, order).masked_fill(lost, FREE))
