"""`TrieLogitsProcessor`, the class that vLLM loads, and the rows of logits of both model runners."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import pairwise
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

try:
    import torch
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
    from vllm.v1.sample.logits_processor.interface import LogitsProcessor as LogitsProcessorV1
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext, LogitsProcRequestState
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as LogitsProcessorV2
except ImportError as error:
    raise ImportError(f"token_trie.engines.vllm needs vllm 0.32 or newer: pip install vllm ({error})") from error

from token_trie.engines.vllm.decoding import Decoder, Decoding, MaskedRow, mask_
from token_trie.engines.vllm.request import EngineVocabulary, read_request


class RequestBatch:
    """Rows of Model Runner V1: one for each request. vLLM moves requests between rows, and appends to their outputs."""

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

    def rows(self) -> list[MaskedRow]:
        """Return the rows of requests with a set. Outputs are current only when logits are masked."""
        found: list[MaskedRow] = []
        for row, (decoding, output) in self._rows.items():
            decoding.follow(output)
            found += decoding.rows(row)
        return found


class Slots:
    """Rows of Model Runner V2: one or more for each request, whose tokens are on the device, in the request's slot.

        slot 3    [p p p p|a b]             committed: all_token_ids, of which the first prompt_len are the prompt
        row 5     slot 3, local position 0  after b; the token fed there is b
        row 6     slot 3, local position 1  after the draft token fed there

    The new tokens of each step are copied to the host in one transfer, which waits for the device.
    """

    def __init__(self, decoder: Decoder, states: LogitsProcRequestState) -> None:
        self._decoder = decoder
        self._states = states
        self._added: dict[int, Any] = {}
        self._decodings: dict[int, Decoding] = {}

    def add(self, slot: int, params: Any) -> bool:
        """Assign a slot to a new request; returns whether the request has a set."""
        self._decodings.pop(slot, None)
        self._added.pop(slot, None)
        if not (params.extra_args or {}).get("token_trie"):
            return False
        self._added[slot] = params
        return True

    def begin(self) -> None:
        """Begin to decode the added requests, whose prompts can be read now."""
        for slot, params in self._added.items():
            n_prompt = int(self._states.prompt_len.np[slot])
            decoding = self._decoder.begin(params, self._states.all_token_ids.gpu[slot, :n_prompt].tolist())
            if decoding is not None:
                self._decodings[slot] = decoding
        self._added.clear()

    def rows(self, context: LogitsContext) -> list[MaskedRow]:
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
        found: list[MaskedRow] = []
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


class TrieLogitsProcessor(LogitsProcessorV1, LogitsProcessorV2):  # type: ignore[misc]
    """Constrains the requests of a vLLM engine that give a set.

    The engine names it: ``LLM(model, logits_processors=["token_trie.engines.vllm:TrieLogitsProcessor"])``, or ``vllm
    serve model --logits-processors token_trie.engines.vllm:TrieLogitsProcessor``. A request gives its set in
    ``SamplingParams(extra_args={"token_trie": ...})``; over HTTP, where vLLM takes no objects, in ``vllm_xargs``:

    ================================  ==================================================================================
    a TokenTreePayload, or its JSON   as ``TokenTrie.from_payload`` reads one
    ``{"choices": [...]}``            texts, spelled by the engine's tokenizer as they follow the request's prompt
    ``{"path": file}``                a payload in a file that the engine can read
    a name, or ``{"name": ...}``      the file ``name.json`` in the folder that the environment's ``TOKEN_TRIE_SETS``
                                      names
    ================================  ==================================================================================

    Besides these, an object (a payload as ``{"payload": ...}``) may hold ``mode``: "sampled", by temperature, or
    "greedy", the best token of the set; ``on_complete``, ``separator``, ``max_items``, ``min_items``, ``unique``,
    ``exclude``, ``start_after``, ``max_before`` and ``max_span`` as for `TrieMatcher`; ``leading_space`` as for
    `TokenTrie.from_choices`, and ``descriptor``, the path of the payload's descriptors that are the set. The engine's
    end token and the request's ``stop_token_ids`` end an answer.

    vLLM's default of ``max_tokens`` is 16; it truncates a longer answer.

    A wrong request is refused when it comes in, over HTTP with status 400: by vLLM's ``VLLMValidationError``, with the
    message of this package's error. A later error, such as a file that has changed since, ends the request with an
    empty answer and an error in the engine's log (logger ``token_trie.vllm``).

    A path in an object may be any file; from a text, as over HTTP, only one in the folder ``TOKEN_TRIE_SETS``. If that
    is set, all paths must be in it.

    Notes
    -----
    One class serves Model Runner V1 and V2, with draft tokens of speculative decoding; V2 has not been run on a GPU
    yet. A request may be preempted, as its position is found from its tokens. Under V2, each step with such a request
    copies its new tokens to the host. vLLM calls the processor from one thread.
    """

    def __init__(self, vllm_config: Any, where: Any, is_pin_memory: bool | None = None) -> None:
        """Begin without requests. V1 passes a device and whether memory is pinned, V2 the state of its requests."""
        model = vllm_config.model_config
        self._decoder = Decoder(
            lambda: EngineVocabulary(
                model.get_vocab_size(), None if model.skip_tokenizer_init else cached_tokenizer_from_config(model)
            )
        )
        is_v2 = is_pin_memory is None
        if not is_v2 and vllm_config.scheduler_config.async_scheduling and not model.logits_processors:
            raise RuntimeError(
                "token_trie: loaded from an entry point alone, which under asynchronous scheduling is given no tokens; "
                "name it, by --logits-processors token_trie.engines.vllm:TrieLogitsProcessor"
            )
        self._slots = Slots(self._decoder, where) if is_v2 else None
        self._batch = RequestBatch(self._decoder)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a wrong request before the engine gets it.

        Raises
        ------
        TokenTrieError
            The request is wrong. It is a ValueError, as vLLM expects.
        """
        request = read_request(sampling_params)
        if request is None:
            return
        vocabulary = _vocabulary_of_caller()
        if vocabulary is not None:
            request.matcher(vocabulary, [], [*(sampling_params.stop_token_ids or ()), 0])

    def is_argmax_invariant(self) -> bool:
        """Return False: greedy requests are masked too."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Apply the changes of a batch (V1)."""
        if batch_update is not None:
            self._batch.update(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Assign a slot to a request (V2); returns whether it is constrained."""
        assert self._slots is not None
        return self._slots.add(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """Begin to decode the added requests (V2)."""
        assert self._slots is not None
        self._slots.begin()

    def apply(self, logits: torch.Tensor, ctx: LogitsContext | None = None) -> torch.Tensor:
        """Set the logits of tokens that are not allowed to -inf, in place; can be called repeatedly in a step."""
        if self._slots is None or ctx is None:
            return mask_(logits, self._batch.rows())
        return mask_(logits, self._slots.rows(ctx))


_vocabularies: WeakKeyDictionary[InputProcessor, EngineVocabulary] = WeakKeyDictionary()


def _vocabulary_of_caller() -> EngineVocabulary | None:
    """Return the vocabulary of the engine whose InputProcessor is calling; vLLM passes no configuration here.

    None for any other caller; the engine then finds a wrong request.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, InputProcessor):
            if caller not in _vocabularies:
                _vocabularies[caller] = EngineVocabulary(caller.model_config.get_vocab_size(), caller.tokenizer)
            return _vocabularies[caller]
        frame = frame.f_back
    return None
