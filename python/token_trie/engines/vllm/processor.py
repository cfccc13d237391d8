"""`TrieLogitsProcessor`: the class that vLLM loads."""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

try:
    import torch
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.sample.logits_processor.interface import BatchUpdate
    from vllm.v1.sample.logits_processor.interface import LogitsProcessor as LogitsProcessorV1
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as LogitsProcessorV2
except ImportError as error:
    raise ImportError(f"token_trie.engines.vllm needs vllm 0.32 or newer: pip install vllm ({error})") from error

from token_trie.engines.vllm.batches import Batch, Slots
from token_trie.engines.vllm.decoding import Decoder, mask_
from token_trie.engines.vllm.request import read_request
from token_trie.engines.vllm.vocabulary import EngineVocabulary


class TrieLogitsProcessor(LogitsProcessorV1, LogitsProcessorV2):  # type: ignore[misc]
    """Constrains those requests of a vLLM engine that give a set.

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

    Beside these, an object (a payload as ``{"payload": ...}``) may hold ``mode``: "sampled", by which the temperature
    decides, or "greedy", by which the best token of the set does; ``on_complete``, ``separator``, ``max_items``,
    ``min_items``, ``unique``, ``exclude``, ``start_after``, ``max_before`` and ``max_span`` as of `TrieMatcher`;
    ``leading_space`` as of `TokenTrie.from_choices`, and ``descriptor``, the path of the payload's descriptors that are
    the set. What ends an answer is what the engine stops at: its end token, and the request's ``stop_token_ids``.

    vLLM's ``max_tokens`` is 16 where a request says nothing; it cuts a longer answer short.

    A wrong request is refused when it comes in, over HTTP with status 400: by vLLM's ``VLLMValidationError``, with the
    message of this package's error. A mistake that shows only later, such as in a file that has changed since, ends
    the request with an empty answer and an error in the engine's log (logger ``token_trie.vllm``).

    A path in an object may be any file; from a text, as over HTTP, only one in the folder ``TOKEN_TRIE_SETS``, in
    which all paths must lie where it is set.

    Notes
    -----
    One class serves Model Runner V1 and V2, draft tokens of speculative decoding included; V2 has not been run on a GPU
    yet. A request may be preempted, as its position is found from its tokens. Under V2, each step with such a request
    copies its new tokens to the host. vLLM calls the processor from one thread.
    """

    def __init__(self, vllm_config: Any, where: Any, is_pin_memory: bool | None = None) -> None:
        """Begin without requests. V1 gives a device and whether memory is pinned, V2 the state of its requests."""
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
        self._batch = Batch(self._decoder)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request that is wrong before the engine has it.

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
        """Apply V1's changes of the batch."""
        if batch_update is not None:
            self._batch.update(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Give V2's slot to a request; returns whether it is constrained."""
        assert self._slots is not None
        return self._slots.add(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """Begin to decode V2's requests that were added."""
        assert self._slots is not None
        self._slots.begin()

    def apply(self, logits: torch.Tensor, ctx: LogitsContext | None = None) -> torch.Tensor:
        """Set the logits of tokens that are not allowed to -inf, in place; may be called any number of times a step."""
        if self._slots is None or ctx is None:
            return mask_(logits, self._batch.rows())
        return mask_(logits, self._slots.rows(ctx))


_vocabularies: WeakKeyDictionary[InputProcessor, EngineVocabulary] = WeakKeyDictionary()


def _vocabulary_of_caller() -> EngineVocabulary | None:
    """Return the vocabulary of the engine whose InputProcessor is calling, as vLLM passes no configuration here.

    None for any other caller; a wrong request is then found in the engine.
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
