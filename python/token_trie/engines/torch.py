"""Sets on a torch device: masks, steps and beam search for a whole batch, without a transfer to the host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.engines.matcher import PUT_BACK
from token_trie.errors import ArgumentError, LimitError, VocabularyError
from token_trie.native.core import _core
from token_trie.native.options import check_counts, check_name
from token_trie.sets.tokenization import to_tokens
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


TorchDevice: TypeAlias = Any
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

    `mask_` and `step` read nothing back and use plain operations alone, so that they work on any device and inside
    ``torch.compile``. Rows of one batch may be in different sets; rows at node `FREE` are in none. To reorder beams,
    use ``nodes.index_select(0, parents)``; to roll back, keep earlier nodes. Draft tokens are rows of their own. For
    lists and thinking, see `TrieMatcher`.

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

    def __init__(self, vocab_size: int, *, device: TorchDevice = None) -> None:
        check_counts(vocab_size=vocab_size)
        self.vocab_size = vocab_size
        try:
            self.device = torch.empty(0, device=device).device
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise ArgumentError(f"device: {error}") from error
        # Drawn in csrc/trie/tensors.h and csrc/cursor/tables.h. Row 0 is free; each set adds a row for its end, one for
        # a complete member, and its own, of which the first is its root.
        narrow = torch.int16 if vocab_size <= _NARROW else torch.int32
        self._first = self._tensor([0, 0], torch.int32)
        self._kinds = self._tensor([RELEASED], torch.uint8)
        self._tokens = self._tensor([], narrow)
        self._targets = self._tensor([], torch.int32)
        self._tails = self._tensor([], narrow)
        self._tail_begins = self._tensor([0], torch.int32)
        self._completes = self._tensor([FREE], torch.int32)
        self._width = 1
        self._max_tokens = 0
        self._has_warned = False
        self._share_with_host()

    def __getstate__(self) -> dict[str, Any]:
        """Return the tensors, without the host's view of them."""
        return {name: value for name, value in self.__dict__.items() if name != "_host"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the tensors, and make the host's view of them again."""
        self.__dict__.update(state)
        self._share_with_host()

    def _tensor(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(values, device=self.device).to(dtype)

    def _tensors(self) -> list[torch.Tensor]:
        names = ("first", "kinds", "tokens", "targets", "tails", "tail_begins", "completes")
        return [getattr(self, f"_{name}") for name in names]

    def _share_with_host(self) -> None:
        on_host = self.device.type == "cpu"
        arrays = [tensor.numpy() for tensor in self._tensors()] if on_host else []
        self._host = _core.Tables(self.vocab_size, *arrays) if on_host else None

    @property
    def nbytes(self) -> int:
        """Number of bytes of the sets on the device."""
        return sum(tensor.nbytes for tensor in self._tensors())

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
            The set.
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
            raise ArgumentError(f"trie must be a TokenTrie, not {type(trie).__name__}")
        check_name(on_complete, ("release", "end"), "on_complete")
        must_end = on_complete == "end"
        ends = np.unique(to_tokens(() if end_tokens is None else end_tokens, "end_tokens"))
        if must_end != bool(len(ends)):
            raise ArgumentError("end_tokens: needed with on_complete end, and with nothing else")
        handle = trie.core.kept_alone()
        for what, token in (("trie", handle.max_token), ("end_tokens", int(ends[-1]) if len(ends) else 0)):
            if token >= self.vocab_size:
                raise VocabularyError(f"{what}: {token} is outside the vocabulary ({self.vocab_size} tokens)")
        if len(ends) and ends[0] < 0:
            raise VocabularyError(f"end_tokens: {ends[0]} is outside the vocabulary ({self.vocab_size} tokens)")
        first, tokens, targets, tails, ends_at = handle.tensors()
        base, tail = len(self._kinds), len(self._tails)
        n_edges = len(self._tokens) + len(tokens) + len(ends) * (2 + int(ends_at.sum()))
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
        start = len(self._tokens)
        before = start + len(ends) * np.arange(2)
        added = [self._tensor(some, torch.int32) for some in (before, first + (start + 2 * len(ends)))]
        self._first = torch.cat([self._first[:-1], *added])
        self._kinds = torch.cat([self._kinds, self._tensor(kinds, torch.uint8)])
        self._tokens = torch.cat(
            [self._tokens, *[self._tensor(some, self._tokens.dtype) for some in (ends, ends, tokens)]]
        )
        at_end = np.full(2 * len(ends), ended, np.int32)
        self._targets = torch.cat([self._targets, *[self._tensor(some, torch.int32) for some in (at_end, to)]])
        self._tails = torch.cat([self._tails, self._tensor(tails, self._tails.dtype)])
        if len(tails):
            self._tail_begins = torch.cat([self._tail_begins, self._tensor([tail], torch.int32)])
            self._completes = torch.cat([self._completes, self._tensor([complete], torch.int32)])
        self._width = max(self._width, len(ends), int(np.diff(first).max()))
        self._max_tokens = max(self._max_tokens, handle.max_length + must_end)
        self._share_with_host()
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
        return self._mask(logits, nodes)

    def _mask(self, logits: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        if self._runs_natively(logits):
            assert self._host is not None
            if self._host.mask(*_matrix(logits, logits.shape[1]), nodes.contiguous().numpy()):
                self._warn()
            return logits
        if _overlaps(logits):
            raise ArgumentError("logits: share memory with each other, as after expand; mask a clone")
        if logits.requires_grad and torch.is_grad_enabled():
            return self._mask_under_grad(logits, nodes)
        is_traced = torch.compiler.is_compiling()
        if not is_traced and logits.is_inference() and not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self._mask(logits, nodes)
        if not len(self._tokens):
            return logits
        # Rows are padded with their first child; a row without children is free, and keeps its logits.
        tokens, is_child, _ = self._child_tokens(nodes, self._width)
        tokens = torch.where(is_child, tokens, tokens[:, :1])
        is_bound = ~self._is_kind(nodes, RELEASED)
        kept = logits.gather(1, tokens)
        is_empty = is_bound & (kept.amax(1) == -torch.inf)
        if self.device.type == "cpu" and not is_traced and bool((is_empty & ~self._is_kind(nodes, ENDED)).any()):
            self._warn()
        kept = torch.where(is_empty[:, None], 0.0, kept)
        logits.masked_fill_(is_bound[:, None], -torch.inf)
        return logits.scatter_(1, tokens, kept)

    def _mask_under_grad(self, logits: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """Mask by operations whose gradients need no logits; if one fails, it is the first, and nothing is written."""
        with torch.no_grad():
            masked = self._mask(logits.clone(), nodes)
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
        if self._runs_natively(logprobs):
            assert self._host is not None
            rows = nodes.contiguous().numpy()
            shape = len(nodes), self._host.width(rows) if width is None else width
            values = torch.empty(shape, dtype=logprobs.dtype)
            # As one tensor: allocators would return two of this size to the system, and request them again each step.
            tokens, targets = torch.empty((2, *shape), dtype=torch.int64)
            matrix = _matrix(logprobs, self.vocab_size)
            self._host.candidates(*matrix, rows, values.data_ptr(), tokens.numpy(), targets.numpy())
            return Candidates(values, tokens, targets)
        if width is None and torch.compiler.is_compiling():
            width = self._width
        elif width is None:
            width = max(1, int(self._n_children(nodes).max())) if len(nodes) else 1
        tokens, is_child, edges = self._child_tokens(nodes, width)
        targets = self._targets[edges].to(torch.int64) if len(self._targets) else tokens
        if len(self._tails):
            targets = torch.where((nodes < 0)[:, None], self._in_tails(nodes)[1][:, None], targets)
        tokens, targets = torch.where(is_child, tokens, 0), torch.where(is_child, targets, FREE)
        return Candidates(torch.where(is_child, logprobs.gather(1, tokens), -torch.inf), tokens, targets)

    def beam(
        self, logits_of: LogitsOf, roots: torch.Tensor, *, beam_width: int, max_tokens: int | None = None
    ) -> Beams:
        """Search for the most probable members of each row's set; it returns only members.

        A step ranks the children of all beams, no other tokens. With on_complete "end" the end token counts; with
        "release" a member is complete without one. Like any beam search, it may lose a member with an improbable
        prefix; `choose` with mode "exact" does not.

        Parameters
        ----------
        logits_of : callable
            ``logits_of(tokens, parents)``: tokens so far, int64 of shape (batch, beams, steps), 0 after an end; and
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
            return self._search(logits_of, roots, beam_width, max_tokens or self._max_tokens)

    def _search(self, logits_of: LogitsOf, roots: torch.Tensor, width: int, max_tokens: int) -> Beams:
        """Keep at each step the `width` most probable children of a row's beams."""
        batch = len(roots)
        nodes = roots[:, None]
        scores = torch.zeros((batch, 1), device=roots.device)
        tokens = torch.zeros((batch, 1, 0), dtype=torch.int64, device=roots.device)
        parents = torch.zeros_like(nodes)
        may_stop = torch.zeros_like(nodes, dtype=torch.bool)
        has_warned = False
        for _ in range(max_tokens):
            n_beams, n_vocab = nodes.shape[1], self.vocab_size
            logits = logits_of(tokens.clamp(min=0), parents)  # NONE is a row of no embedding
            if not isinstance(logits, torch.Tensor):
                raise ArgumentError(f"logits_of must be a torch.Tensor, not {type(logits).__name__}")
            if logits.ndim != 3 or logits.shape[:2] != (batch, n_beams) or logits.shape[2] < n_vocab:
                given = tuple(logits.shape)
                raise ArgumentError(f"logits_of must have shape ({batch}, {n_beams}, {n_vocab} or more), not {given}")
            logprobs = torch.log_softmax(logits.reshape(batch * n_beams, -1).float(), -1)
            found = self.candidates(logprobs, nodes.reshape(-1))
            is_open = ~self._is_kind(nodes, ENDED)[:, :, None]
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
            stayed = torch.where(self._is_kind(before, ENDED), before, FREE)
            nodes = torch.where(stopped, stayed, came_to)
            nodes = torch.where(is_none, FREE, nodes)
            took = torch.where(stopped | is_none, NONE, took)
            tokens = torch.cat(
                [tokens.gather(1, parents[:, :, None].expand(-1, -1, tokens.shape[2])), took[:, :, None]], 2
            )
            may_stop = (self._is_kind(nodes, ENDED) | self._is_kind(nodes, RELEASED)) & ~is_none
        scores = torch.where(may_stop, scores, -torch.inf)
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        lost = scores == -torch.inf
        tokens = tokens.gather(1, order[:, :, None].expand(-1, -1, tokens.shape[2])).masked_fill(lost[:, :, None], NONE)
        return Beams(tokens, scores, nodes.gather(1, order).masked_fill(lost, FREE))

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
        if self._host is not None and not torch.compiler.is_compiling():
            out = torch.empty_like(nodes, memory_format=torch.contiguous_format)
            self._host.step(nodes.contiguous().numpy(), tokens.contiguous().numpy(), out.numpy())
            return out
        if not len(self._tokens):
            return torch.zeros_like(nodes)
        rows = nodes.clamp(min=0)
        begin, end = self._first[rows].to(torch.int64), self._first[rows + 1].to(torch.int64)
        last = len(self._tokens) - 1
        low, high = begin, end
        for _ in range(self._width.bit_length()):
            middle = (low + high) // 2
            is_below = (low < high) & (self._tokens[middle.clamp(max=last)] < tokens)
            low, high = torch.where(is_below, middle + 1, low), torch.where(is_below, high, middle)
        edge = low.clamp(max=last)
        is_child = (low < end) & (self._tokens[edge] == tokens)
        stays = torch.where(self._kinds[rows] == ENDED, nodes, FREE)
        of_row = torch.where(is_child, self._targets[edge].to(torch.int64), stays)
        if not len(self._tails):
            return of_row
        token, after = self._in_tails(nodes)
        return torch.where(nodes < 0, torch.where(token == tokens, after, FREE), of_row)

    def is_terminated(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return for each row whether an end token was accepted."""
        self._check(nodes, "nodes")
        return self._is_kind(nodes, ENDED)

    def _is_kind(self, nodes: torch.Tensor, kind: int) -> torch.Tensor:
        return (nodes >= 0) & (self._kinds[nodes.clamp(min=0)] == kind)

    def _n_children(self, nodes: torch.Tensor) -> torch.Tensor:
        rows = nodes.clamp(min=0)
        return torch.where(nodes < 0, 1, self._first[rows + 1] - self._first[rows])

    def _child_tokens(self, nodes: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the tokens of the first `width` children, any for missing ones, which exist, and their edges."""
        at = torch.arange(width, device=self.device)
        is_child = at < self._n_children(nodes)[:, None]
        edges = (self._first[nodes.clamp(min=0)][:, None] + at).clamp(max=max(len(self._tokens) - 1, 0))
        if not len(self._tokens):
            return torch.zeros_like(edges), torch.zeros_like(is_child), edges
        tokens = self._tokens[edges].to(torch.int64)
        if len(self._tails):
            tokens = torch.where((nodes < 0)[:, None], self._tail_tokens(nodes)[0][:, None], tokens)
        return tokens, is_child, edges

    def _in_tails(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the token at each node's position in the tails, and the node after it; undefined for rows."""
        token, is_last = self._tail_tokens(nodes)
        at = (~nodes).clamp(min=0)
        of_set = torch.searchsorted(self._tail_begins, at.to(torch.int32), right=True) - 1
        return token, torch.where(is_last, self._completes[of_set].to(torch.int64), ~(at + 1))

    def _tail_tokens(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the token at each node's position in the tails, and whether it is the last; undefined for rows."""
        tail = self._tails[(~nodes).clamp(min=0)].to(torch.int64)
        return torch.where(tail < 0, ~tail, tail), tail < 0

    def _runs_natively(self, logits: torch.Tensor) -> bool:
        return (
            self._host is not None
            and not torch.compiler.is_compiling()
            and not logits.is_neg()
            and logits.stride(1) == 1
            and (len(logits) < 2 or logits.stride(0) >= logits.shape[1])
            and not logits.requires_grad
        )

    def _check_logits(self, logits: torch.Tensor, nodes: torch.Tensor, what: str) -> None:
        self._check(nodes, "nodes")
        _check_dense(logits, what)
        shape = logits.shape
        if len(shape) != 2 or shape[0] != nodes.shape[0] or shape[1] < self.vocab_size:
            raise ArgumentError(
                f"{what} must have shape ({nodes.shape[0]}, {self.vocab_size} or more), not {tuple(shape)}"
            )
        if logits.dtype not in MINUS_INFINITY or logits.device != self.device:
            raise ArgumentError(f"{what} must be floats on {self.device}, not {logits.dtype} on {logits.device}")

    def _check(self, tensor: torch.Tensor, what: str) -> None:
        _check_dense(tensor, what)
        if tensor.ndim != 1 or tensor.dtype != torch.int64 or tensor.device != self.device:
            raise ArgumentError(
                f"{what} must be int64 in one dimension on {self.device}, not {tensor.dtype}, shape "
                f"{tuple(tensor.shape)}, on {tensor.device}"
            )


def _check_dense(tensor: torch.Tensor, what: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{what} must be a torch.Tensor, not {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise ArgumentError(f"{what} must be a dense tensor, not nested or sparse")


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
