"""Sets on a torch device: masks and steps for a whole batch, without a transfer to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from token_trie.errors import ArgumentError, VocabularyError
from token_trie.native.arguments import check_counts, lookup
from token_trie.sets.tokens import to_tokens
from token_trie.sets.trie import TokenTrie

try:
    import torch
except ImportError as error:
    raise ImportError(f"token_trie.engines.torch needs torch: pip install torch ({error})") from error

from token_trie.engines.beams import Beams, LogitsOf, search
from token_trie.engines.tables import FREE, MINUS_INFINITY, Candidates, JoinedTables

__all__ = ["FREE", "Beams", "Candidates", "DeviceTries"]

Device: TypeAlias = Any
"""Whatever ``torch.device`` takes."""

_ENDS = {"release": 0, "end": 1}


class DeviceTries:
    """Sets on a device; the positions in them are a tensor of nodes, one a row.

    `mask_` and `step` read nothing back, no shape depends on values of a tensor, and only plain operations are used
    (indexing, ``searchsorted``, ``gather``, ``scatter``), so that they work on any device and inside ``torch.compile``.

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
    A node is the number of a row of edges; below 0, of a place in the tails, where one member is left and its tokens
    lie flat: 27 bytes a member of a million of 8 uniform tokens out of 2,048, 4 to 6 of them the tails'. See
    csrc/trie/tensors.h. On the host these arrays are walked natively, elsewhere by tensor operations.

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
        """Bytes that the sets take on the device."""
        return self._tables.nbytes

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
        root = self._tables.join(handle, ends)
        self._max_tokens = max(self._max_tokens, handle.max_length + must_end)
        return root

    def mask_(self, logits: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """Set the logits of tokens that are not allowed to -inf, in place, and return them.

        Where all tokens that a row allows are at -inf already, by what ran before or by the model, they are put back
        at 0, and on the host the first such row is logged as a warning (logger ``token_trie.torch``).

        Parameters
        ----------
        logits : torch.Tensor, floating point, shape (rows, at least vocab_size)
            Rows at node `FREE`, and released ones, are left as they are. Gradients pass through the logits that stay.
        nodes : torch.Tensor of int64, shape (rows,)

        Raises
        ------
        ArgumentError
            Other shapes, types or devices, logits that share memory with each other, or a leaf of autograd's graph;
            nothing is written. The values of nodes are not checked: those that this object did not return give any
            result, or torch's own error.
        """
        self._check_logits(logits, nodes, "logits")
        return self._tables.mask_(logits, nodes)

    def candidates(self, logprobs: torch.Tensor, nodes: torch.Tensor, *, width: int | None = None) -> Candidates:
        """Return what may follow each row: log-probabilities, tokens and next nodes of its children, and no more.

        Parameters
        ----------
        logprobs : torch.Tensor, floating point, shape (rows, at least vocab_size)
            Or logits; what is taken of them is taken as it is.
        nodes : torch.Tensor of int64, shape (rows,)
            A row at node `FREE` has no candidates. A released one has those that go on with a longer member.
        width : int, optional
            Columns of what is returned. By default as many as the row with most children has, which on a device other
            than the host reads one number back, and inside ``torch.compile`` is that of all nodes. Children beyond it
            are left out.

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
        """Search for the most probable members of each row's set; all that comes back are members.

        A step takes the children of all beams, and none of the vocabulary's other columns; the best `beam_width` sums
        of log-probabilities go on. With on_complete "end" the end token counts; with "release" a member is complete as
        it is, beside longer ones that begin with it. As any beam search, it may lose a member whose beginning is
        improbable; `token_trie.search` does not.

        Parameters
        ----------
        logits_of : callable
            ``logits_of(tokens, parents)``: tokens so far, int64 of shape (batch, beams, steps), -1 behind the end of
            one; and which beam of the step before each one goes on, int64 of shape (batch, beams), for
            the model's cache. Returns logits of shape (batch, beams, at least vocab_size). At first, beams is 1 and
            steps 0. A beam whose logits are no distribution (NaN among them, or all ``-inf``) is lost. Where all that
            a row's beams may take is at ``-inf``, it is put back with equal probabilities, and a warning says so
            (logger ``token_trie.torch``).
        roots : torch.Tensor of int64, shape (batch,)
            What `add` returned, of a set for each row.
        beam_width : int
            Beams a row.
        max_tokens : int, optional
            Steps; by default as many as the longest member of all sets takes. A beam that is not complete by then is
            lost.

        Raises
        ------
        ArgumentError
            Arguments or logits of another shape, type or device, or no row.
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
        _check_dense(tokens, "tokens")
        if tokens.dtype == torch.int32:
            tokens = tokens.to(torch.int64)
        self._check(tokens, "tokens")
        if tokens.shape != nodes.shape:
            raise ArgumentError(f"tokens: {tokens.shape[0]} for {nodes.shape[0]} nodes")
        return self._tables.step(nodes, tokens)

    def is_terminated(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return whether an end token was accepted, a bool a row."""
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
