"""Which row of logits belongs to which request, as vLLM's two model runners tell it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext, LogitsProcRequestState

from token_trie.engines.vllm.decoding import Decoder, Decoding, Row


class Batch:
    """Rows of Model Runner V1: one a request. vLLM moves requests between rows, and appends to the outputs given."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._rows: dict[int, tuple[Decoding, Sequence[int]]] = {}

    def update(self, changes: BatchUpdate) -> None:
        """Remove, add and move requests, in this order."""
        for row in changes.removed:
            self._rows.pop(row, None)
        for row, params, prompt, output in changes.added:
            self._put(row, self._begin(params, prompt, output))
        for source, target, direction in changes.moved:
            moved, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
            self._put(target, moved)
            if direction is MoveDirectionality.SWAP:
                self._put(source, replaced)

    def _begin(
        self, params: Any, prompt: Sequence[int] | None, output: Sequence[int]
    ) -> tuple[Decoding, Sequence[int]] | None:
        decoding = self._decoder.begin(params, prompt)
        return None if decoding is None else (decoding, output)

    def _put(self, row: int, entry: tuple[Decoding, Sequence[int]] | None) -> None:
        self._rows.pop(row, None)
        if entry is not None:
            self._rows[row] = entry

    def rows(self) -> list[Row]:
        """Return the rows of requests with a set. Outputs are current when logits are masked, and not before."""
        found: list[Row] = []
        for row, (decoding, output) in self._rows.items():
            decoding.follow(output)
            found += decoding.rows(row)
        return found


class Slots:
    """Rows of Model Runner V2: one or more a request, whose tokens are on the device, in the request's slot.

        slot 3    [p p p p|a b]             committed: all_token_ids, of which the first prompt_len are the prompt
        row 5     slot 3, local position 0  behind b; the token fed there is b
        row 6     slot 3, local position 1  behind the draft token fed there

    The new tokens of each step are copied to the host in one transfer, which waits for the device.
    """

    def __init__(self, decoder: Decoder, states: LogitsProcRequestState) -> None:
        self._decoder = decoder
        self._states = states
        self._added: dict[int, Any] = {}
        self._decodings: dict[int, Decoding] = {}

    def add(self, slot: int, params: Any) -> bool:
        """Give a slot to a new request; returns whether the request has a set."""
        self._decodings.pop(slot, None)
        self._added.pop(slot, None)
        if not (params.extra_args or {}).get("token_trie"):
            return False
        self._added[slot] = params
        return True

    def begin(self) -> None:
        """Begin to decode the requests added, now that their prompts can be read."""
        for slot, params in self._added.items():
            n_prompt = int(self._states.prompt_len.np[slot])
            decoding = self._decoder.begin(params, self._states.all_token_ids.gpu[slot, :n_prompt].tolist())
            if decoding is not None:
                self._decodings[slot] = decoding
        self._added.clear()

    def rows(self, context: LogitsContext) -> list[Row]:
        """Return the rows of requests with a set."""
        at = [i for i, slot in enumerate(context.idx_mapping_np.tolist()) if slot in self._decodings]
        if not at:
            return []
        slots = [int(context.idx_mapping_np[i]) for i in at]
        known = [int(self._states.prompt_len.np[slot]) + self._decodings[slot].n_tokens for slot in slots]
        n_new = max(0, *(int(context.seq_lens_upper_bound_np[i]) - n for i, n in zip(at, known, strict=True)))
        totals, news, row_slots, positions, fed = self._read(context, slots, known, n_new)
        for slot, total, start, new in zip(slots, totals, known, news, strict=True):
            self._decodings[slot].advance(new[: max(total - start, 0)])
        found: list[Row] = []
        firsts = [row for row, position in enumerate(positions) if position == 0]
        for row, end in pairwise([*firsts, len(positions)]):
            if row_slots[row] in self._decodings:
                found += self._decodings[row_slots[row]].rows(row, fed[row + 1 : end])
        return found

    def _read(
        self, context: LogitsContext, slots: list[int], known: list[int], n_new: int
    ) -> tuple[list[int], list[list[int]], list[int], list[int], list[int]]:
        """Read the lengths and new tokens of slots, and the slots, local positions and input tokens of rows."""
        device, tokens = self._states.device, self._states.all_token_ids.gpu
        slot, first = torch.tensor([slots, known], device=device)
        at = (first[:, None] + torch.arange(n_new, device=device)).clamp(max=tokens.shape[1] - 1)
        rows = (context.expanded_idx_mapping, context.expanded_local_pos, context.input_ids)
        n_rows = len(context.expanded_idx_mapping)
        parts = [self._states.total_len.gpu[slot], tokens[slot[:, None], at].flatten(), *(r[:n_rows] for r in rows)]
        flat = torch.cat([part.to(torch.int64) for part in parts]).tolist()
        n, end = len(slots), len(slots) * (1 + n_new)
        news = [flat[n + i * n_new : n + (i + 1) * n_new] for i in range(n)]
        read = [flat[end + i * n_rows : end + (i + 1) * n_rows] for i in range(3)]
        return flat[:n], news, read[0], read[1], read[2]
