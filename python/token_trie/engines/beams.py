"""Beam search for members, over a whole batch on a device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch

from token_trie.engines.masks import PUT_BACK
from token_trie.engines.tables import FREE, JoinedTables
from token_trie.errors import ArgumentError

LogitsOf: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Tokens so far, int64 of shape (batch, beams, steps), and which beam of the step before each goes on, int64 of shape
(batch, beams); returns logits, or log-probabilities, of shape (batch, beams, at least vocab_size)."""

_log = logging.getLogger("token_trie.torch")

NONE = -1
"""The token behind a beam's last."""


class Beams(NamedTuple):
    """The best members of each row of a batch, best first; where fewer are found, logprobs are ``-inf``."""

    tokens: torch.Tensor
    """int64, shape (batch, beams, steps): a member and the end token behind it, then -1."""
    logprobs: torch.Tensor
    """float32, shape (batch, beams): of all its tokens."""
    nodes: torch.Tensor
    """int64, shape (batch, beams): where it came to."""


def search(tables: JoinedTables, logits_of: LogitsOf, roots: torch.Tensor, width: int, max_tokens: int) -> Beams:
    """Keep at each step, of all children of a row's beams, the `width` most probable; see `DeviceTries.beam`."""
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
        # What is complete may stay as it is, beside what goes on from it.
        grown = found.logprobs.reshape(shape)
        # Of logits that are no numbers, or none above -inf, no token is better than another: the beam is lost.
        may_grow = is_open & ~grown.isnan()
        grown = torch.where(may_grow, grown, -torch.inf)
        stays = torch.where(may_stop, 0.0, -torch.inf)[:, :, None]
        total = (scores[:, :, None] + torch.cat([stays, grown], 2)).reshape(batch, -1)
        is_empty = total.amax(1) == -torch.inf
        if bool(is_empty.any()):
            # What is left of such a row is put back; beams that are lost already stay so.
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
        # A released member that stops is done with; an ended one has no way on.
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
