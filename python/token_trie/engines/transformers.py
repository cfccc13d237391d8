"""Sets for ``generate`` of transformers: a logits processor."""

from __future__ import annotations

import inspect
import logging
import math
import weakref

from token_trie.engines.matcher import PUT_BACK, BatchMatcher, TrieMatcher
from token_trie.errors import ArgumentError
from token_trie.native.options import check_counts

try:
    import torch
    from transformers import (
        ForcedBOSTokenLogitsProcessor,
        LogitsProcessor,
        LogitsProcessorList,
    )
except ImportError as error:
    raise ImportError(
        f"token_trie.engines.transformers needs transformers and torch: pip install transformers torch ({error})"
    ) from error

Tokens = tuple[int, ...]

_log = logging.getLogger("token_trie.transformers")

_PUT_BACK_SCORE = -1e4
"""The score of tokens that are put back: finite in every type, and below the scores of all other beams."""


class _Call:
    """Matchers of one call of ``generate``, by generated tokens: beams change rows, and no index says from where."""

    def __init__(self, beginning: TrieMatcher, prompt_length: int, *, rows_may_leave: bool) -> None:
        self.prompt_length = prompt_length
        self._rows_may_leave = rows_may_leave
        self._beginning = beginning
        self._before: dict[Tokens, TrieMatcher | None] = {}  # usually one token shorter
        self._now: dict[Tokens, TrieMatcher | None] = {}
        self._length = -1  # tokens of each key of _now

    def matcher_after(self, generated: list[int], what: str) -> TrieMatcher | None:
        """Return a row's matcher, None if the row has left the set; ArgumentError for a row of another call."""
        tokens = tuple(generated)
        if len(tokens) != self._length:
            self._before, self._now, self._length = self._now, {}, len(tokens)
        if tokens not in self._now:
            is_known = bool(tokens) and tokens[:-1] in self._before
            self._now[tokens] = self._step(tokens) if is_known else self._follow(tokens, what)
        return self._now[tokens]

    def _step(self, tokens: Tokens) -> TrieMatcher | None:
        before = self._before[tokens[:-1]]
        if before is None or before.is_terminated():
            return before  # tokens after the end are padding
        # A beam whose scores are all -inf takes any column of the logits.
        matcher = before.fork()
        if tokens[-1] < before.vocab_size and matcher.accept_token(tokens[-1]):
            return matcher
        if not self._rows_may_leave:
            self._rows_may_leave = True
            _log.warning(
                "token %d is not in the set, and its row is constrained no more: a processor after this one left no "
                "token that the set allows",
                tokens[-1],
            )
        return None

    def _follow(self, tokens: Tokens, what: str) -> TrieMatcher:
        matcher = self._beginning.fork()
        if matcher.accept_tokens(tokens) < len(tokens) and not matcher.is_terminated():
            raise ArgumentError(
                f"{what}: {list(tokens)} after the {self.prompt_length} columns of the prompt begins no member"
            )
        return matcher


class _Calls:
    """The running calls of ``generate``, by the list of processors that each call makes.

    Tokens do not identify a call: its output may be a step of this call or the prompt of the next.
    """

    def __init__(self, matcher: TrieMatcher, prompt_length: int | None) -> None:
        if not isinstance(matcher, TrieMatcher):
            raise ArgumentError(f"matcher must be a TrieMatcher, not {type(matcher).__name__}")
        if prompt_length is not None:
            check_counts(0, prompt_length=prompt_length)
        self._beginning = matcher.fork()
        self._prompt_length = prompt_length
        self._by_list: dict[int, _Call] = {}

    def current(self, columns: int) -> _Call:
        """Return the call that is applying its processors to so many columns; ArgumentError if there is none."""
        if columns < (self._prompt_length or 0):
            raise ArgumentError(f"input_ids: {columns} columns, where prompt_length is {self._prompt_length}")
        processors, caller = _list_applied()
        if processors is None:
            if self._prompt_length is None:
                raise ArgumentError("prompt_length: needed where it is not generate of transformers that calls")
            return _Call(self._beginning, self._prompt_length, rows_may_leave=True)
        key = id(processors)
        if key not in self._by_list:
            length = columns if self._prompt_length is None else self._prompt_length
            if columns == length == 1:
                self._check_forced(processors)
            # Except in _sample, beams at -inf and rejected drafts leave the set.
            self._by_list[key] = _Call(self._beginning, length, rows_may_leave=caller != "_sample")
            weakref.finalize(processors, self._by_list.pop, key).atexit = False
        return self._by_list[key]

    def __deepcopy__(self, memo: object) -> _Calls:
        """Return a copy without running calls."""
        return _Calls(self._beginning, self._prompt_length)

    def _check_forced(self, processors: LogitsProcessorList) -> None:
        """Refuse a forced token that begins no member: all first tokens would be put back with equal scores."""
        for processor in processors:
            if isinstance(processor, ForcedBOSTokenLogitsProcessor):
                forced = int(processor.bos_token_id)
                if forced not in self._beginning.allowed_tokens():
                    raise ArgumentError(
                        f"forced_bos_token_id: {forced} begins no member; give decoder_input_ids that end in it: "
                        f"[[decoder_start_token_id, {forced}]]"
                    )


def _list_applied() -> tuple[LogitsProcessorList | None, str]:
    """Return the list of processors that ``generate`` is applying, and the name of the function that applies it."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not LogitsProcessorList.__call__.__code__:
        frame = frame.f_back
    caller = frame
    while caller is not None and caller.f_globals.get("__name__") != "transformers.generation.utils":
        caller = caller.f_back
    return (None, "") if frame is None or caller is None else (frame.f_locals["self"], caller.f_code.co_name)


class TrieLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Constrains ``model.generate(..., logits_processor=[processor])``.

    It works with greedy decoding, sampling, beams, ``num_return_sequences``, assisted generation, and batches padded on
    the left: each row begins in the set where the prompts end. One processor serves any number of calls of
    ``generate``, also at the same time.

    Parameters
    ----------
    matcher : TrieMatcher
        The set and its rules, with ``vocab_size`` of the model's logits or less: ``TrieMatcher(trie, len(tokenizer),
        end_tokens=[tokenizer.eos_token_id])``. Its own position does not change.
    prompt_length : int, optional
        Number of columns of ``input_ids`` that are the prompt, with padding; those after them begin the answer. By
        default all columns that ``generate`` gets. Needed in a loop of your own, where no row may leave the set.

    Raises
    ------
    ArgumentError
        When called: scores of fewer columns than the vocabulary, a row that begins no member after the prompt, or a
        ``forced_bos_token_id`` that begins none.

    Notes
    -----
    ``generate`` applies it after its penalties and before its truncation (``top_k``, ``top_p``), which then cannot
    remove every allowed token. If processors before it (``no_repeat_ngram_size``, ``min_new_tokens``, ...) or the model
    leave a row none, all are put back with equal scores, below those of any other beam, with one warning (logger
    ``token_trie.transformers``). If a processor after it does, the row leaves the set, with a warning; so does a beam
    when there are more beams than members, with a score of -inf.

    An answer has up to ``TokenTrie.max_tokens`` tokens and an end token; set ``max_new_tokens`` accordingly.
    """

    def __init__(self, matcher: TrieMatcher, prompt_length: int | None = None) -> None:
        self._calls = _Calls(matcher, prompt_length)
        self._vocab_size = matcher.vocab_size
        self._has_warned = False
        self._bits = torch.ones(32, dtype=torch.int32) << torch.arange(32, dtype=torch.int32)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return a copy of the scores, -inf for tokens that are not allowed."""
        n_vocab = self._vocab_size
        _check_tensors(input_ids, scores, n_vocab)
        call = self._calls.current(input_ids.shape[1])
        rows = input_ids[:, call.prompt_length :].tolist()
        matchers = [call.matcher_after(row, f"input_ids[{i}]") for i, row in enumerate(rows)]
        mask = torch.full((len(rows), (n_vocab + 31) // 32), -1, dtype=torch.int32)
        at = [i for i, matcher in enumerate(matchers) if matcher is not None]
        bound = [matcher for matcher in matchers if matcher is not None]
        is_needed = BatchMatcher.batch_fill_next_token_bitmask(bound, mask, at)
        bits = mask.to(scores.device)[:, :, None] & self._bits.to(scores.device)
        is_out = (bits == 0).reshape(len(rows), -1)[:, :n_vocab]
        masked = scores.clone()
        masked[:, :n_vocab].masked_fill_(is_out, -torch.inf)
        if scores.shape[1] > n_vocab:
            masked[at, n_vocab:] = -torch.inf
        best = masked.amax(1).tolist()
        empty = [i for i, is_masked in zip(at, is_needed, strict=True) if is_masked and best[i] == -math.inf]
        if empty:
            masked[empty, :n_vocab] = masked[empty, :n_vocab].masked_fill(~is_out[empty], _PUT_BACK_SCORE)
            self._warn([matcher for i, matcher in zip(at, bound, strict=True) if i in empty])
        return masked

    def _warn(self, emptied: list[TrieMatcher]) -> None:
        # After its end, a row is padding.
        if not self._has_warned and not all(matcher.is_terminated() for matcher in emptied):
            self._has_warned = True
            _log.warning(PUT_BACK, "these were put back with equal scores")


def _check_tensors(input_ids: torch.Tensor, scores: torch.Tensor, n_vocab: int) -> None:
    for what, tensor in (("input_ids", input_ids), ("scores", scores)):
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{what} must be a torch.Tensor, not {type(tensor).__name__}")
    if input_ids.ndim != 2 or input_ids.is_floating_point():
        raise ArgumentError(f"input_ids must be rows of ids, not {input_ids.dtype}, shape {tuple(input_ids.shape)}")
    if scores.ndim != 2 or scores.shape[0] != input_ids.shape[0] or scores.shape[1] < n_vocab:
        shape = tuple(scores.shape)
        raise ArgumentError(f"scores must have shape ({input_ids.shape[0]}, {n_vocab} or more), not {shape}")
    if not scores.is_floating_point():
        raise ArgumentError(f"scores must be floats, not {scores.dtype}")
