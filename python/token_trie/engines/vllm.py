"""Sets in vLLM: a logits processor, loaded by its name.

`TrieLogitsProcessor` describes the options of a request.

Examples
--------
>>> llm = LLM(model, logits_processors=["token_trie.engines.vllm:TrieLogitsProcessor"])    # doctest: +SKIP
>>> params = SamplingParams(max_tokens=32, extra_args={"token_trie": {"choices": ["yes", "no"]}})    # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import re
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from token_trie.engines.matcher import PUT_BACK, BatchMatcher, TrieMatcher
from token_trie.errors import ArgumentError, PayloadError, TokenTrieError, VocabularyError
from token_trie.llama.query import STEP_MODES, SpanOptions
from token_trie.native.core import _core
from token_trie.native.lifetime import LruCache
from token_trie.native.options import check_name, encode
from token_trie.sets.choices import read_choices
from token_trie.sets.tokenization import find_seam, inner_tokens, joined, spell
from token_trie.sets.trie import TokenTrie

try:
    import torch
    import xgrammar
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
    from vllm.v1.sample.logits_processor.interface import LogitsProcessor as LogitsProcessorV1
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext, LogitsProcRequestState
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as LogitsProcessorV2
except ImportError as error:
    raise ImportError(f"token_trie.engines.vllm needs vllm 0.32 or newer: pip install vllm ({error})") from error

_log = logging.getLogger("token_trie.vllm")


class EngineVocabulary:
    """The vocabulary and tokenizer of an engine; a `Speller`. `size` is the number of columns of the logits.

    Without a tokenizer, texts are refused, and the fingerprint of a set cannot be checked.
    """

    def __init__(self, size: int, tokenizer: Any | None) -> None:
        self.size = size
        self._tokenizer = tokenizer
        self._sets: LruCache[TokenTrie] = LruCache(128, 500_000)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; ArgumentError if there is none."""
        if self._tokenizer is None:
            raise ArgumentError("the engine has no tokenizer for texts; give token sequences, by a payload")
        return self._tokenizer

    @cached_property
    def _controls(self) -> frozenset[int]:
        added = getattr(self.tokenizer, "added_tokens_decoder", {})  # most are not in all_special_ids, as with Llama 3
        return frozenset(self.tokenizer.all_special_ids).union(i for i, token in added.items() if token.special)

    def is_control(self, token: int) -> bool:
        """Tell whether a token is a control token."""
        return token in self._controls

    def tokenize(
        self, texts: Sequence[bytes], what: str, special: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Tokenize texts; VocabularyError names a text that the vocabulary cannot spell."""
        rows = self.tokenizer([text.decode() for text in texts], add_special_tokens=False)["input_ids"]
        for i, (text, row) in enumerate(zip(texts, rows, strict=True)):
            # SentencePiece tokenizers add a space before a text.
            if self.detokenize(row, special) not in (text, b" " + text):
                raise VocabularyError(f"{what}[{i}]: cannot be spelled in this vocabulary")
        return joined(rows)

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> bytes:
        """Return the text of tokens; invalid characters become U+FFFD."""
        shown = [token for token in map(int, tokens) if special or not self.is_control(token)]
        pieces = self.tokenizer.convert_ids_to_tokens(shown)
        text: str = self.tokenizer.convert_tokens_to_string(pieces) if pieces else ""
        return text.encode()

    def fingerprint(self) -> str:
        """Return the fingerprint that sets made here carry, ``""`` without a tokenizer."""
        return self._fingerprints[0] if self._tokenizer is not None else ""

    @cached_property
    def _fingerprints(self) -> list[str]:
        """Fingerprints that a set for this vocabulary may have: GGUF files differ in two ways.

        They list all columns of the logits, with placeholder names for those without a token, or only the tokens; and
        they write runs of SentencePiece's space marks as they are, or as spaces if these are added tokens, as Gemma's.
        """
        names = {token: name for name, token in self.tokenizer.get_vocab().items()}
        n_tokens = max(names, default=-1) + 1
        texts = [names.get(token, f"[PAD{token}]") for token in range(max(n_tokens, self.size))]
        spaced = [" " * len(text) if len(text) > 1 and not text.strip("\u2581") else text for text in texts]
        lengths = dict.fromkeys((self.size, n_tokens))
        return [_hash_texts(some[:n]) for some in (texts, spaced) for n in lengths]

    def check(self, trie: TokenTrie) -> None:
        """Raise VocabularyError if a set was made for another vocabulary."""
        if not trie.vocab:
            return
        if self._tokenizer is None:
            _log.warning("a set carries a fingerprint, which cannot be checked: the engine has no tokenizer")
        elif trie.vocab not in self._fingerprints:
            raise VocabularyError(
                f"vocab: the set was made for another vocabulary ({trie.vocab}) than this model's "
                f"({self.fingerprint()}); build it again with this model"
            )

    def set_of(self, texts: tuple[str, ...], prompt: list[int], leading_space: bool | None) -> TokenTrie:
        """Build the set of texts as they follow a prompt, as `TokenTrie.from_choices` does.

        The tokens of the prompt cannot change any more. If the prompt would merge with a text, the texts are spelled
        separately.
        """
        seam = find_seam(self, prompt, leading_space)

        def make() -> TokenTrie:
            n_moved = 1
            with suppress(VocabularyError):
                tokens, offsets, n_moved = spell(self, seam, texts, all_spaced=leading_space is True, is_whole=True)
            if n_moved:
                alone = seam._replace(tail=(), text=b"")
                tokens, offsets, _ = spell(self, alone, texts, all_spaced=leading_space is True, is_whole=True)
            return TokenTrie.of_core(_core.Trie.build(tokens, offsets, list(texts), self.fingerprint()))

        return self._sets.get((texts, seam, leading_space), len(texts), make)


def _hash_texts(texts: list[str]) -> str:
    """Return the fingerprint that token_trie.h defines: of the number of texts, and the length and bytes of each."""
    hashed = hashlib.sha256(struct.pack("<I", len(texts)))
    for text in map(str.encode, texts):
        hashed.update(struct.pack("<I", len(text)) + text)
    return f"sha256:{hashed.hexdigest()}"


KEY = "token_trie"
FOLDER = "TOKEN_TRIE_SETS"
"""Environment variable: the folder of named sets."""

_SETS = ("choices", "payload", "name")
_TEXT_OPTIONS = ("separator", "start_after")
_MATCHER_OPTIONS = tuple(
    field.name for field in fields(SpanOptions) if field.name not in ("end_tokens", *_TEXT_OPTIONS)
)
_OPTIONS = ("mode", "path", "leading_space", *_MATCHER_OPTIONS, *_TEXT_OPTIONS)

_files: LruCache[TokenTrie] = LruCache(128, 1 << 30)


@dataclass(frozen=True)
class TrieRequest:
    """The set and the options of a request."""

    source: str
    """The key of the set in the request."""
    given: Any
    options: Mapping[str, Any]
    is_greedy: bool

    def _set(self, vocabulary: EngineVocabulary, prompt: list[int]) -> TokenTrie:
        path = self.options.get("path")
        if self.source == "choices":
            texts = read_choices(self.given).texts
            return vocabulary.set_of(texts, prompt, self.options.get("leading_space"))
        if self.source == "payload":
            return TokenTrie.from_payload(self.given, path)
        return _read_set(_named(self.given), path)

    def matcher(self, vocabulary: EngineVocabulary, prompt: list[int], end_tokens: Sequence[int]) -> TrieMatcher:
        """Make a matcher after a prompt, with the engine's end tokens; TokenTrieError if they do not fit."""
        trie = self._set(vocabulary, prompt)
        vocabulary.check(trie)
        options = {name: self.options[name] for name in _MATCHER_OPTIONS if name in self.options}
        for name in _TEXT_OPTIONS:
            given = self.options.get(name)
            if given is None:
                continue
            is_text = isinstance(given, str)
            options[name] = inner_tokens(given, name, vocabulary, special=True).tolist() if is_text else given
        if options.get("on_complete") != "release":
            options["end_tokens"] = sorted(end_tokens)
        return TrieMatcher(trie, vocabulary.size, **options)


def read_request(params: Any) -> TrieRequest | None:
    """Read the set of ``SamplingParams``, None for none; TokenTrieError if it is wrong or contradicts other options."""
    given = (params.extra_args or {}).get(KEY)
    if given is None:
        return None
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        given = {"name": given}
    elif isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise PayloadError(f"{KEY}: {error}") from error
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{KEY} must be an object, its JSON or a name, not {type(given).__name__}")
    if "descriptors" in given:
        given = {"payload": given}
    for key in given:
        if key not in (*_SETS, *_OPTIONS):
            raise ArgumentError(f"{KEY}: unknown key {key!r}; there are {', '.join((*_SETS, *_OPTIONS))}")
    sources = [key for key in _SETS if key in given]
    if len(sources) != 1:
        named = " and ".join(sources) or "none"
        raise ArgumentError(f"{KEY} must have one of {', '.join(_SETS)} or be a payload, not {named}")
    options = {key: value for key, value in given.items() if key in _OPTIONS}
    if options.get("path") is not None:
        encode(options["path"], "path")
    mode = options.get("mode")
    if mode is not None:
        check_name(mode, STEP_MODES, "mode")
    if params.structured_outputs is not None:
        raise ArgumentError(f"{KEY}: beside structured_outputs; a request has one constraint")
    if params.min_tokens > 0:
        raise ArgumentError(f"{KEY}: beside min_tokens, which forbids the end where nothing else may follow")
    if params.ignore_eos and options.get("on_complete") != "release":
        raise ArgumentError(f"{KEY}: beside ignore_eos, by which an answer would not end; on_complete release may")
    return TrieRequest(sources[0], given[sources[0]], options, mode == "greedy")


def _named(name: object) -> Path:
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise ArgumentError(f"{KEY}: {name!r} is no name of a set")
    folder = os.environ.get(FOLDER)
    if not folder:
        raise ArgumentError(f"{KEY}: a name, {name!r}, where {FOLDER} names no folder to look in")
    return Path(folder, f"{name}.json")


def _read_set(file: Path, path: Any) -> TokenTrie:
    try:
        now = file.stat()
        if not stat.S_ISREG(now.st_mode):
            raise ArgumentError(f"{KEY}: {file.name} is no file")
        key = (str(file), now.st_mtime_ns, now.st_size, now.st_ino, path)
        return _files.get(key, now.st_size, lambda: TokenTrie.from_payload(file.read_bytes(), path))
    except OSError as error:
        raise ArgumentError(f"{KEY}: {file.name}: {error.strerror}") from error
    except PayloadError as error:
        raise PayloadError(f"{file.name}: {error}") from error


class MaskedRow(NamedTuple):
    """A row of logits, and its position in a set."""

    at: int
    matcher: TrieMatcher
    decoding: Decoding


class Decoding:
    """The position of a request in its set, moved along its output; under V1, vLLM appends to that."""

    def __init__(self, matcher: TrieMatcher, is_greedy: bool, output: Sequence[int]) -> None:
        self._matcher = matcher
        self.is_greedy = is_greedy
        self._output = output
        self._last = -1
        self._is_lost = False
        self._has_warned = False
        self.n_tokens = 0
        """Number of tokens of the output that it has stepped over."""

    def follow(self) -> None:
        """Move to the end of the output, from the start if tokens were taken back; RuntimeError for unknown tokens."""
        n, output = self.n_tokens, self._output
        if n and (n > len(output) or output[n - 1] != self._last):
            self._matcher.reset()
            self.n_tokens, self._is_lost = 0, False
        self.advance(output[self.n_tokens :])

    def advance(self, tokens: Sequence[int]) -> None:
        """Step over new tokens of the output; errors as for `follow`."""
        if len(tokens) == 0:
            return
        if -1 in tokens:
            raise RuntimeError(
                "token_trie: vLLM does not tell the last token. Name the processor, by --logits-processors "
                "token_trie.engines.vllm:TrieLogitsProcessor or LLM(logits_processors=[...]); one that comes from an "
                "entry point alone is given no tokens under asynchronous scheduling"
            )
        self.n_tokens += len(tokens)
        self._last = tokens[-1]
        n_taken = 0 if self._is_lost else self._matcher.accept_tokens(tokens)
        if n_taken < len(tokens) and not self._is_lost and not self._matcher.is_terminated():
            _log.warning("token %d is not in the set; the request is constrained no more", tokens[n_taken])
            self._is_lost = True

    def rows(self, row: int, drafts: Sequence[int] = ()) -> list[MaskedRow]:
        """Return the row after the output, and one after each draft token that the set allows."""
        if self._is_lost:
            return []
        found = [MaskedRow(row, self._matcher, self)]
        for i, token in enumerate(drafts, start=1):
            matcher = found[-1].matcher.fork()
            if matcher.is_terminated() or not matcher.accept_token(token):
                break  # vLLM will reject this token and those after it
            found.append(MaskedRow(row + i, matcher, self))
        return found

    def warn_of_put_back(self) -> None:
        """Log once that all allowed tokens had a logit of -inf."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning(PUT_BACK, "these were put back with equal logits")


def _ended_matcher(size: int, ends: list[int]) -> TrieMatcher:
    some = next(token for token in range(len(ends) + 1) if token not in ends)
    matcher = TrieMatcher(TokenTrie.from_sequences({"": [some]}), size, end_tokens=ends)
    matcher.accept_tokens([some, ends[0]])
    return matcher


def mask_(logits: torch.Tensor, given: Sequence[MaskedRow]) -> torch.Tensor:
    """Set the logits of tokens that are not allowed to -inf, in place, and return them.

    In greedy mode, inside the span, only the best token stays. If earlier processors have left a row no allowed token,
    all of them get a logit of 0, with a warning.
    """
    if not given:
        return logits
    size = given[0].matcher.vocab_size
    mask = torch.empty((len(logits), (size + 31) // 32), dtype=torch.int32)
    indices = [row.at for row in given]
    is_needed = BatchMatcher.batch_fill_next_token_bitmask([row.matcher for row in given], mask, indices)
    kept = [row for row, is_kept in zip(given, is_needed, strict=True) if is_kept]
    if not kept:
        return logits
    words = mask.to(logits.device)
    _apply(logits, words, size, kept)
    is_empty = logits.amax(1).isneginf().tolist()
    empty = [row for row in kept if is_empty[row.at]]
    if empty:
        logits[[row.at for row in empty]] = 0.0
        _apply(logits, words, size, empty)
        for row in empty:
            row.decoding.warn_of_put_back()
    greedy = [row.at for row in kept if row.decoding.is_greedy and not row.matcher.is_free]
    if greedy:
        best = torch.tensor(greedy, device=logits.device)
        token = logits[best].argmax(1, keepdim=True)
        value = logits[best].gather(1, token)
        logits[best] = torch.full_like(logits[best], -torch.inf).scatter_(1, token, value)
    return logits


def _apply(logits: torch.Tensor, mask: torch.Tensor, size: int, given: Sequence[MaskedRow]) -> None:
    rows = [row.at for row in given]
    xgrammar.apply_token_bitmask_inplace(logits, mask, vocab_size=size, indices=rows)
    logits[:, size:].index_fill_(0, torch.tensor(rows, device=logits.device), -torch.inf)


class Slots:
    """Rows of Model Runner V2: one or more for each request, whose tokens are on the device, in the request's slot.

        slot 3    [p p p p|a b]             committed: all_token_ids, of which the first prompt_len are the prompt
        row 5     slot 3, local position 0  after b; the token fed there is b
        row 6     slot 3, local position 1  after the draft token fed there

    The new tokens of each step are copied to the host in one transfer, which waits for the device.
    """

    def __init__(self, begin: Callable[[Any, Sequence[int]], Decoding | None], states: LogitsProcRequestState) -> None:
        self._begin = begin
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
            decoding = self._begin(params, self._states.all_token_ids.gpu[slot, :n_prompt].tolist())
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
    a name, or ``{"name": ...}``      the file ``name.json`` in the folder that the environment's ``TOKEN_TRIE_SETS``
                                      names
    ================================  ==================================================================================

    Besides these, an object (a payload as ``{"payload": ...}``) may hold ``mode``: "sampled", by temperature, or
    "greedy", the best token of the set; ``on_complete``, ``separator``, ``max_items``, ``min_items``, ``unique``,
    ``exclude``, ``start_after``, ``max_before`` and ``max_span`` as for `TrieMatcher`; ``leading_space`` as for
    `TokenTrie.from_choices`, and ``path``, that of the payload's descriptors that are the set. The engine's
    end token and the request's ``stop_token_ids`` end an answer.

    vLLM's default of ``max_tokens`` is 16; it truncates a longer answer.

    A wrong request is refused when it comes in, over HTTP with status 400: by vLLM's ``VLLMValidationError``, with the
    message of this package's error. A later error, such as a file that has changed since, ends the request with an
    empty answer and an error in the engine's log (logger ``token_trie.vllm``).

    Notes
    -----
    One class serves Model Runner V1 and V2, with draft tokens of speculative decoding; V2 has not been run on a GPU
    yet. A request may be preempted, as its position is found from its tokens. Under V2, each step with such a request
    copies its new tokens to the host. vLLM calls the processor from one thread.
    """

    def __init__(self, vllm_config: Any, where: Any, is_pin_memory: bool | None = None) -> None:
        """Begin without requests. V1 passes a device and whether memory is pinned, V2 the state of its requests."""
        model = self._model = vllm_config.model_config
        is_v2 = is_pin_memory is None
        if not is_v2 and vllm_config.scheduler_config.async_scheduling and not model.logits_processors:
            raise RuntimeError(
                "token_trie: loaded from an entry point alone, which under asynchronous scheduling is given no tokens; "
                "name it, by --logits-processors token_trie.engines.vllm:TrieLogitsProcessor"
            )
        self._slots = Slots(self._begin, where) if is_v2 else None
        self._rows: dict[int, Decoding] = {}  # for V1, which moves requests between rows

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

    @cached_property
    def _vocabulary(self) -> EngineVocabulary:
        model = self._model
        tokenizer = None if model.skip_tokenizer_init else cached_tokenizer_from_config(model)
        return EngineVocabulary(model.get_vocab_size(), tokenizer)

    def _begin(self, params: Any, prompt: Sequence[int] | None, output: Sequence[int] = ()) -> Decoding | None:
        """Begin after a prompt; None for a request without a set. It never raises: a wrong request ends only itself.

        Errors that `validate_params` could not find, such as a file that has changed since, are logged.
        """
        if not params.extra_args:
            return None
        ends = sorted(params.all_stop_token_ids)
        try:
            request = read_request(params)
            if request is None:
                return None
            return Decoding(request.matcher(self._vocabulary, list(prompt or ()), ends), request.is_greedy, output)
        except TokenTrieError as error:
            _log.error("a request is ended: %s", error)
        except Exception:
            _log.exception("a request is ended, by a defect in token-trie")
        return Decoding(_ended_matcher(self._vocabulary.size, ends), False, output) if ends else None

    def is_argmax_invariant(self) -> bool:
        """Return False: greedy requests are masked too."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Remove, add and move the requests of a batch, in this order (V1)."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, prompt, output in batch_update.added:
            self._put(row, self._begin(params, prompt, output))
        for source, target, direction in batch_update.moved:
            moved, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
            self._put(target, moved)
            if direction is MoveDirectionality.SWAP:
                self._put(source, replaced)

    def _put(self, row: int, decoding: Decoding | None) -> None:
        self._rows.pop(row, None)
        if decoding is not None:
            self._rows[row] = decoding

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
        if self._slots is not None and ctx is not None:
            return mask_(logits, self._slots.rows(ctx))
        found: list[MaskedRow] = []
        for row, decoding in self._rows.items():
            decoding.follow()  # outputs are current only now
            found += decoding.rows(row)
        return mask_(logits, found)


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
